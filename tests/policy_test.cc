// tests/policy_test.cc -- who is started next under each policy, and how long anybody can wait:
// the bounds that request_queue.h states, from their definitions.
#include <gtest/gtest.h>

#include <random>

#include "tests/scheduler_harness.h"

namespace quire::sched_test {
namespace {

HarnessOptions With(SchedulingPolicy policy, int32_t num_pages = 64, int32_t max_num_seqs = 2) {
  HarnessOptions o;
  o.num_pages = num_pages;
  o.scheduler.policy = policy;
  o.scheduler.max_num_seqs = max_num_seqs;
  o.scheduler.max_num_batched_tokens = 32;
  o.scheduler.watermark = 0;
  return o;
}

// Requests in the order in which they were started.
std::vector<RequestId> Started(const Harness& h) {
  std::vector<RequestId> ids;
  for (const TokenEvent& e : h.history()) {
    if (e.kind == TokenEvent::Kind::kAccepted) ids.push_back(e.request);
  }
  return ids;
}

// A request that takes `steps` steps and shares no prefix with others.
Request Job(Harness& h, std::mt19937& rng, int32_t prompt, int32_t steps) {
  std::vector<TokenId> tokens;
  for (int32_t i = 0; i < prompt; ++i) tokens.push_back(static_cast<TokenId>(rng() % kVocab));
  return h.Make(std::move(tokens), steps);
}

TEST(Policy, NamesAreKnownBothWays) {
  for (int i = 0; i < 5; ++i) {
    const auto policy = static_cast<SchedulingPolicy>(i);
    EXPECT_EQ(ParsePolicy(Name(policy)), policy);
    EXPECT_NE(std::string(kPolicyNames).find(Name(policy)), std::string::npos);
  }
  EXPECT_EQ(ParsePolicy("lifo"), std::nullopt);
}

// Rank by the definition: who waits while somebody else is started has no smaller one.
template <typename Rank>
void StartsByRank(SchedulingPolicy policy, Rank rank) {
  int64_t passed = 0;
  for (uint32_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 rng(seed);
    HarnessOptions o = With(policy, 256);
    o.scheduler.priority_aging_ms = 5;
    o.scheduler.shortest_aging_us_per_token = 500;
    Harness h(o);
    std::map<RequestId, std::pair<int64_t, RequestId>> ranks;  // us, then order
    std::map<RequestId, int64_t> came;
    const Clock::time_point start = h.now();
    for (int i = 0; i < 30; ++i) {
      Request r =
          Job(h, rng, 1 + static_cast<int32_t>(rng() % 10), 1 + static_cast<int32_t>(rng() % 10));
      r.priority = static_cast<int32_t>(rng() % 5) - 2;
      const int64_t us =
          std::chrono::duration_cast<std::chrono::microseconds>(h.now() - start).count();
      came[r.id] = us;
      ranks[r.id] = {us + rank(r, o.scheduler), r.id};
      h.Submit(std::move(r));
      for (uint32_t k = rng() % 3; k > 0; --k) h.Step();
    }
    ASSERT_TRUE(h.RunUntilIdle());
    // Who came after a start can't have been passed by it: times of starts are in the events.
    std::set<RequestId> waiting;
    std::map<RequestId, int64_t> started_at;
    for (const TokenEvent& e : h.history()) {
      if (e.kind == TokenEvent::Kind::kAccepted) {
        started_at[e.request] = came[e.request] + e.stats.queue_us;
      }
    }
    for (const auto& [a, at] : started_at) {
      for (const auto& [b, other_at] : started_at) {
        if (came[b] < at && other_at > at) {
          EXPECT_LT(ranks[a], ranks[b])
              << a << " was started at " << at << " us, " << b << " waited";
        }
        passed += a > b && at < other_at;
      }
    }
  }
  if (policy != SchedulingPolicy::kFcfs) {
    EXPECT_GT(passed, 1000) << "the policy changed the order";
  } else {
    EXPECT_EQ(passed, 0);
  }
}

TEST(Policy, FcfsByArrival) {
  StartsByRank(SchedulingPolicy::kFcfs,
               [](const Request&, const SchedulerOptions&) { return int64_t{0}; });
}
TEST(Policy, PriorityIsWorthSoMuchWaiting) {
  StartsByRank(SchedulingPolicy::kPriority, [](const Request& r, const SchedulerOptions& o) {
    return -int64_t{1000} * o.priority_aging_ms * r.priority;
  });
}
TEST(Policy, ShorterOnesPassForAWhile) {
  StartsByRank(SchedulingPolicy::kShortestFirst, [](const Request& r, const SchedulerOptions& o) {
    return (static_cast<int64_t>(r.prompt.size()) + r.stop.max_tokens) *
           o.shortest_aging_us_per_token;
  });
}

// One of the lowest priority in a stream of the highest that never ends: it is served after
// (difference x aging), and not before.
TEST(Policy, AgingEndsStarvation) {
  HarnessOptions o = With(SchedulingPolicy::kPriority, 64, 1);
  o.scheduler.priority_aging_ms = 20;
  Harness h(o);
  std::mt19937 rng(1);
  Request low = Job(h, rng, 3, 1);
  low.priority = -2;
  Request first = Job(h, rng, 3, 2);
  first.priority = 3;
  h.Submit(std::move(first));
  const RequestId id = h.Submit(std::move(low));
  int32_t steps = 0;
  while (h.seen(id).num_accepted == 0) {
    Request r = Job(h, rng, 3, 1);
    r.priority = 3;
    h.Submit(std::move(r));
    h.Step();
    ASSERT_LT(++steps, 1000);
  }
  // 5 levels x 20 ms, a step is 1 ms.
  EXPECT_GE(steps, 100);
  EXPECT_LE(steps, 104);
  ASSERT_TRUE(h.RunUntilIdle());
  h.ExpectOutputsAsSolo();
  h.ExpectIdleAndClean();
}

// A request of higher priority takes the place of a running one, which comes back and says what it
// says alone; one of equal or lower priority takes nothing.
TEST(Policy, HigherPriorityTakesThePlaceOfLower) {
  for (const bool full_pool : {false, true}) {
    HarnessOptions o = With(SchedulingPolicy::kPriority, full_pool ? 12 : 64, full_pool ? 8 : 1);
    o.scheduler.priority_aging_ms = 1000;
    Harness h(o);
    std::mt19937 rng(2);
    const RequestId low = h.Submit(Job(h, rng, 20, 20));
    for (int i = 0; i < 10; ++i) ASSERT_TRUE(h.Step());
    const RequestId equal = h.Submit(Job(h, rng, 20, 4));
    for (int i = 0; i < 3; ++i) ASSERT_TRUE(h.Step());
    EXPECT_EQ(h.seen(equal).num_accepted, 0);
    EXPECT_EQ(h.stats().preemptions, 0);
    Request r = Job(h, rng, 20, 4);
    r.priority = 1;
    const RequestId high = h.Submit(std::move(r));
    ASSERT_TRUE(h.Step());
    EXPECT_EQ(h.seen(high).num_accepted, 1);
    EXPECT_EQ(h.stats().preemptions, 1);
    ASSERT_TRUE(h.RunUntilIdle());
    EXPECT_LT(h.seen(high).done_at_step, h.seen(low).done_at_step);
    EXPECT_EQ(h.seen(low).stats.preemptions, 1);
    h.ExpectOutputsAsSolo();
    h.ExpectIdleAndClean();
  }
}

// Nobody gives way if it could not be enough.
TEST(Policy, NoPreemptionThatMakesNoRoom) {
  HarnessOptions o = With(SchedulingPolicy::kPriority, 16, 8);
  Harness h(o);
  std::mt19937 rng(3);
  Request high = Job(h, rng, 40, 8);  // 12 of 16 pages
  high.priority = 5;
  h.Submit(std::move(high));
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(h.Step());
  const RequestId low = h.Submit(Job(h, rng, 3, 4));
  ASSERT_TRUE(h.Step());
  ASSERT_EQ(h.seen(low).num_accepted, 1);
  Request r = Job(h, rng, 40, 4);  // beside `high` there is no room for it, with or without `low`
  r.priority = 4;
  h.Submit(std::move(r));
  ASSERT_TRUE(h.Step());
  EXPECT_EQ(h.stats().preemptions, 0);
  ASSERT_TRUE(h.RunUntilIdle());
  h.ExpectOutputsAsSolo();
}

// VTC's bound (arXiv:2401.00588, theorem 4.4) while both have something waiting: the difference of
// what two tenants got is at most twice the larger of a prompt's weight and what all places can
// still make.
TEST(Policy, TenantsGetEqualService) {
  for (uint32_t seed = 0; seed < 50; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 rng(seed);
    HarnessOptions o = With(SchedulingPolicy::kFair, 256, 4);
    o.scheduler.fair_prompt_weight = 0.5;
    Harness h(o);
    constexpr int32_t kMostPrompt = 20, kMostNew = 12;
    // One tenant floods, the other asks for other sizes and comes later.
    std::map<RequestId, std::string> tenant_of;
    const auto submit = [&](const char* tenant, int32_t count, int32_t prompt, int32_t steps) {
      for (int32_t i = 0; i < count; ++i) {
        Request r = Job(h, rng, prompt, steps);
        r.tenant = tenant;
        tenant_of[r.id] = tenant;
        h.Submit(std::move(r));
      }
    };
    submit("flood", 200, kMostPrompt, 1 + static_cast<int32_t>(rng() % kMostNew));
    for (uint32_t k = rng() % 50; k > 0; --k) h.Step();
    submit("late", 60, 1 + static_cast<int32_t>(rng() % kMostPrompt), kMostNew);
    std::map<std::string, double> served;
    std::map<std::string, int32_t> waiting = {{"late", 60}};
    const double bound =
        2 * std::max<double>(kMostPrompt * 0.5, o.scheduler.max_num_seqs * kMostNew);
    size_t seen = h.history().size();
    double most = 0;
    int32_t flood_started = 0;
    while (waiting["late"] > 0 && h.Step()) {
      for (; seen < h.history().size(); ++seen) {
        const TokenEvent& e = h.history()[seen];
        const std::string& tenant = tenant_of[e.request];
        if (e.kind == TokenEvent::Kind::kAccepted) {
          served[tenant] += 0.5 * (e.stats.prompt_tokens - e.stats.cached_tokens);
          --waiting[tenant];
          flood_started += tenant == "flood";
        }
        if (e.kind == TokenEvent::Kind::kToken) served[tenant] += 1;
      }
      most = std::max(most, std::abs(served["flood"] - served["late"]));
      ASSERT_LE(most, bound);
    }
    EXPECT_GT(served["late"], 200);
    EXPECT_GT(flood_started, 10);
    for (const RequestId id :
         std::vector<RequestId>(h.clients().live().begin(), h.clients().live().end())) {
      h.Cancel(id);
    }
    h.ExpectIdleAndClean();
  }
}

// Requests whose prefix is cached pass others, but nobody more than kMaxOvertaken times.
TEST(Policy, SharedPrefixesRunTogetherWithinTheBound) {
  HarnessOptions o = With(SchedulingPolicy::kPrefixAware, 64, 1);
  Harness h(o);
  std::mt19937 rng(5);
  const std::vector<TokenId> shared = Iota(50, 16);
  const auto with_prefix = [&] {
    std::vector<TokenId> prompt = shared;
    for (int i = 0; i < 3; ++i) prompt.push_back(static_cast<TokenId>(rng() % kVocab));
    return h.Make(std::move(prompt), 2);
  };
  h.Submit(with_prefix());
  ASSERT_TRUE(h.Step());
  std::vector<RequestId> cold;
  for (int i = 0; i < 3; ++i) cold.push_back(h.Submit(Job(h, rng, 10, 2)));
  for (int i = 0; i < 60; ++i) h.Submit(with_prefix());
  ASSERT_TRUE(h.RunUntilIdle());
  const std::vector<RequestId> order = Started(h);
  for (size_t p = 0; p < cold.size(); ++p) {
    const auto at = std::find(order.begin(), order.end(), cold[p]) - order.begin();
    EXPECT_GT(at, 5) << "others passed it";
    // One was running; the p-th of the queue is started after at most (p + 1) x (bound + 1) others.
    EXPECT_LE(at, 1 + static_cast<int64_t>(p + 1) * (RequestQueue::kMaxOvertaken + 1));
  }
  h.ExpectOutputsAsSolo();
  h.ExpectIdleAndClean();
}

// Pools for one request at a time: prefixes survive if those who share run one after the other.
TEST(Policy, PrefixAwareComputesLess) {
  std::map<SchedulingPolicy, int64_t> computed;
  for (const SchedulingPolicy policy : {SchedulingPolicy::kFcfs, SchedulingPolicy::kPrefixAware}) {
    Harness h(With(policy, 14, 1));
    for (int i = 0; i < 24; ++i) {
      std::vector<TokenId> prompt = Iota(i % 3 * 60, 40);
      prompt.push_back(static_cast<TokenId>(i));
      h.Submit(std::move(prompt), 2);
    }
    ASSERT_TRUE(h.RunUntilIdle());
    computed[policy] = h.stats().scheduled_tokens;
    h.ExpectOutputsAsSolo();
  }
  EXPECT_LT(2 * computed[SchedulingPolicy::kPrefixAware], computed[SchedulingPolicy::kFcfs]);
}

// A tenant that paused has saved up nothing; one that is new owes nothing.
TEST(Policy, IdlingSavesNothingUp) {
  Harness h(With(SchedulingPolicy::kFair, 64, 1));
  std::mt19937 rng(6);
  const auto submit = [&](const char* tenant) {
    Request r = Job(h, rng, 4, 4);
    r.tenant = tenant;
    return h.Submit(std::move(r));
  };
  for (int i = 0; i < 20; ++i) submit("busy");
  for (int i = 0; i < 40; ++i) ASSERT_TRUE(h.Step());
  std::vector<RequestId> back;
  for (int i = 0; i < 10; ++i) back.push_back(submit("back"));
  const size_t before = Started(h).size();
  ASSERT_TRUE(h.RunUntilIdle());
  const std::vector<RequestId> order = Started(h);
  int32_t in_first_eight = 0;
  for (size_t i = before; i < before + 8; ++i) in_first_eight += order[i] >= back[0];
  EXPECT_GE(in_first_eight, 3);
  EXPECT_LE(in_first_eight, 5) << "half of the service, not all of it";
}

}  // namespace
}  // namespace quire::sched_test
