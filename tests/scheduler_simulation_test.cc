// tests/scheduler_simulation_test.cc -- thousands of small random worlds, each played to its end.
//
// A world is a set of options (pools from the smallest that can serve anything, block sizes,
// budgets, one or two cache groups) and a script of requests, cancels, deadlines, stop-string cuts
// and failing steps; in some, operators flush, pin and change sizes, and there is a host tier to
// which sequences are swapped out. Whatever happens: every request ends; each branch says what it
// says alone, or a beginning of it if it was cut; every cache read finds the right tokens
// (FakeExecutor); the audit passes after every single step; and at the end no page is in use.
// Worlds are numbered: a failure names its seed.
#include <gtest/gtest.h>

#include <random>

#include "tests/scheduler_harness.h"

namespace quire::sched_test {
namespace {

struct Totals {
  int64_t worlds = 0, refused = 0, preemptions = 0, forks = 0, copies = 0, hits = 0,
          resume_hits = 0;
  int64_t cancelled = 0, deadline = 0, stopped = 0, length = 0, failed_steps = 0;
  int64_t evictions = 0;
  int64_t beams = 0, beam_forks = 0, guesses = 0, right = 0, chains = 0, prompt_logprobs = 0;
  int64_t updates = 0, policy_changes = 0;
  int64_t swapped = 0, swap_ins = 0, loaded = 0, pins = 0, flushes = 0, resizes = 0, shrunk = 0;
};

class World {
 public:
  World(uint32_t seed, HarnessOptions (*make)(std::mt19937&))
      : rng_(seed), options_(make(rng_)), h_(options_) {}

  void Play(Totals& totals) {
    const int32_t num_requests = Pick(2, 16);
    const int32_t chaos = Pick(0, 3);  // 0: nothing but requests, so that all end by themselves
    for (int32_t i = 0; i < num_requests; ++i) {
      h_.Submit(RandomRequest(chaos));
      for (int32_t k = Pick(0, 4); k > 0 && h_.ok(); --k) {
        if (chaos > 0 && Pick(0, 7) == 0) Disturb(totals);
        if (options_.num_host > 0 && Pick(0, 7) == 0) Operate(totals);
        if (all_features() && options_.reconfigures && Pick(0, 11) == 0) Reconfigure(totals);
        h_.Step();
      }
    }
    while (h_.ok() && !h_.scheduler().idle()) {
      if (chaos > 0 && Pick(0, 15) == 0) Disturb(totals);
      h_.Step();
      if (options_.num_host > 0 && Pick(0, 7) == 0) Operate(totals);
      // Generous: every token of every branch alone in a step, recomputed as often as there are
      // others. Who starves or fights on would take for ever.
      ASSERT_LT(h_.step(), 20000) << "no end";
    }
    for (const PinInfo& pin : h_.blocks().pins()) EXPECT_TRUE(h_.blocks().Unpin(pin.id));
    h_.ExpectIdleAndClean();
    h_.ExpectOutputsAsSolo();
    CheckRefusals(totals);
    Count(totals);
    if (chaos == 0) {
      for (const auto& [id, seen] : h_.clients().all()) {
        if (!seen.error.ok()) continue;
        for (const FinishReason finish : seen.finish) {
          EXPECT_TRUE(finish == FinishReason::kStop || finish == FinishReason::kLength);
        }
      }
    }
  }

 private:
  int32_t Pick(int32_t low, int32_t high) {
    return low + static_cast<int32_t>(rng_() % static_cast<uint32_t>(high - low + 1));
  }

  Request RandomRequest(int32_t chaos) {
    // A few families of prompts that begin alike, so that prefixes are found and forks share.
    const int32_t stem = Pick(0, 3) * options_.block_size + Pick(0, options_.block_size - 1);
    std::vector<TokenId> prompt = Iota(100 * Pick(0, 1), stem);
    for (int32_t k = Pick(stem == 0 ? 1 : 0, 6); k > 0; --k) prompt.push_back(Pick(0, 3));
    Request r = h_.Make(std::move(prompt), Pick(1, 18), Pick(0, 3) == 0 ? Pick(1, 4) : 1);
    r.seed = rng_() % 4;
    r.stop.eos_token_ids = {5};
    if (Pick(0, 1) == 0) {
      for (TokenId t = 0; t < kVocab; t += 9) r.stop.stop_token_ids.push_back(t);
      if (Pick(0, 1) == 0) r.sampling.min_tokens = Pick(0, r.stop.max_tokens);
    }
    if (Pick(0, 4) == 0) r.cache_salt = "tenant";
    r.bypass_prefix_cache = Pick(0, 7) == 0;
    if (all_features()) AddFeatures(r);
    if (options_.num_host > 0 && Pick(0, 2) == 0) {
      RetentionPolicy policy;
      policy.ranges.push_back({0, Pick(1, 20), Pick(0, 100), Pick(0, 30)});
      r.retention = std::make_shared<const RetentionPolicy>(policy);
    }
    if (chaos > 0 && Pick(0, 4) == 0) {
      r.deadline = h_.now() + std::chrono::milliseconds(Pick(0, 30));
    }
    return r;
  }

  bool all_features() const { return options_.percent_right >= 0; }

  void AddFeatures(Request& r) {
    r.priority = Pick(-2, 2);
    r.tenant = fmt::format("tenant {}", Pick(0, 2));
    if (Pick(0, 3) == 0) r.prompt_logprobs = Pick(0, 3);
    if (Pick(0, 3) == 0) {
      r.sampling.n = 1;
      r.beam.beam_width = Pick(1, 4);
      r.beam.num_return_sequences = Pick(1, r.beam.beam_width);
      r.beam.length_penalty = static_cast<float>(Pick(-1, 2));
      r.beam.early_stopping = static_cast<EarlyStopping>(Pick(0, 2));
      if (r.beam.beam_width % 2 == 0 && Pick(0, 1) == 0) {
        r.beam.num_groups = 2;
        r.beam.diversity_rate = 0.5f;
      }
    }
    r.speculation.branching_factor = Pick(1, 3);
    if (Pick(0, 3) == 0) r.speculation.num_tokens = Pick(1, 3);
    if (Pick(0, 7) == 0) r.speculation.method = SpeculationMethod::kNone;
  }

  // Live options; what is refused changes nothing.
  void Reconfigure(Totals& totals) {
    SchedulerUpdate update;
    switch (Pick(0, 3)) {
      case 0:
        update.policy = static_cast<SchedulingPolicy>(Pick(0, 4));
        break;
      case 1:
        update.max_num_seqs = Pick(1, options_.scheduler.max_num_seqs);
        update.max_num_batched_tokens =
            Pick(*update.max_num_seqs, options_.scheduler.max_num_batched_tokens);
        break;
      case 2:
        update.long_prefill_token_threshold = Pick(0, 4);
        break;
      default:
        update.target_step_ms = Pick(0, 2);
        break;
    }
    totals.updates += h_.Update(update).ok();
    least_seqs_ = std::min(least_seqs_, h_.scheduler().options().max_num_seqs);
  }

  void Disturb(Totals& totals) {
    const RequestId id =
        static_cast<RequestId>(Pick(1, static_cast<int32_t>(h_.clients().all().size() + 1)));
    const int32_t what = Pick(0, 9);
    if (what < 4) {
      h_.Cancel(id);  // may be gone, or never have been
    } else if (what < 8) {
      const auto it = h_.clients().all().find(id);
      if (it == h_.clients().all().end()) return;
      const int32_t branch = Pick(0, static_cast<int32_t>(it->second.outputs.size()) - 1);
      const auto said =
          static_cast<int32_t>(it->second.outputs[static_cast<size_t>(branch)].size());
      if (said == 0) return;
      h_.Apply(Finish{.request = id, .branch = branch, .num_output_tokens = Pick(1, said)});
    } else if (what == 8) {
      h_.executor().FailNext(absl::InternalError("injected"));
      ++totals.failed_steps;
    } else {
      h_.Advance(std::chrono::milliseconds(Pick(1, 20)));
    }
  }

  // What operators do, between steps.
  void Operate(Totals& totals) {
    std::vector<PageId> retired;
    const auto pool = static_cast<size_t>(Pick(0, options_.num_pools - 1));
    switch (Pick(0, 3)) {
      case 0:
        h_.blocks().Flush();
        ++totals.flushes;
        break;
      case 1: {
        const auto pins = h_.blocks().pins();
        if (pins.size() < 2) {
          totals.pins += h_.scheduler().PinPrefix(Iota(100 * Pick(0, 1), 16), "", Pick(0, 20)).ok();
        } else {
          EXPECT_TRUE(h_.blocks().Unpin(pins[0].id));
        }
        break;
      }
      default:
        totals.resizes +=
            h_.scheduler()
                .ResizePool(pool, std::max(1, Pick(options_.num_pages / 2, options_.num_pages)),
                            retired)
                .ok();
        break;
    }
    // Refusals are judged by the least that there ever was.
    for (size_t p = 0; p < h_.blocks().pools().size(); ++p) {
      least_capacity_ = std::min(least_capacity_, h_.blocks().Capacity(p));
    }
  }

  // Refused is exactly what could never end; anything else that failed was in a failing step.
  void CheckRefusals(Totals& totals) {
    for (const auto& [id, seen] : h_.clients().all()) {
      if (seen.error.ok() || seen.error.code() == absl::StatusCode::kInternal) continue;
      ++totals.refused;
      const Request& r = *seen.request;
      const int32_t n = r.beam.on() ? r.beam.beam_width : r.sampling.n;
      // Refusals are judged by the limits of their time: the least there ever were.
      const bool too_many = n > least_seqs_;
      bool too_large = false;
      for (const int32_t pages : h_.blocks().WorstCasePages(static_cast<int32_t>(r.prompt.size()),
                                                            r.stop.max_tokens, n)) {
        too_large |= pages > least_capacity_;
      }
      EXPECT_TRUE(too_many || too_large) << seen.error;
      EXPECT_EQ(seen.num_accepted, 0);
    }
  }

  void Count(Totals& totals) {
    const SchedulerStats s = h_.stats();
    ++totals.worlds;
    totals.preemptions += s.preemptions;
    totals.forks += s.forks;
    totals.copies += s.page_copies;
    totals.hits += s.prefix_hit_tokens;
    totals.resume_hits += s.resume_hit_tokens;
    totals.beams += s.beam_steps;
    totals.beam_forks += s.beam_forks;
    totals.guesses += s.draft_tokens;
    totals.right += s.accepted_draft_tokens;
    totals.chains += s.draft_chains;
    totals.policy_changes += s.policy_changes;
    for (const auto& [id, seen] : h_.clients().all()) {
      totals.prompt_logprobs += static_cast<int64_t>(seen.prompt_logprobs.size());
    }
    totals.cancelled += s.num_finished(FinishReason::kCancelled);
    totals.deadline += s.num_finished(FinishReason::kDeadline);
    totals.stopped += s.num_finished(FinishReason::kStop);
    totals.length += s.num_finished(FinishReason::kLength);
    totals.swapped += s.swapped_preemptions;
    totals.swap_ins += s.swap_ins;
    totals.loaded += h_.blocks().stats().loaded;
    totals.shrunk += h_.pool().stats().dropped[static_cast<int>(DropReason::kShrunk)];
    totals.evictions += h_.pool().stats().dropped[static_cast<int>(DropReason::kEvicted)];
  }

  std::mt19937 rng_;
  const HarnessOptions options_;
  Harness h_;
  int32_t least_capacity_ = options_.num_pages;
  int32_t least_seqs_ = options_.scheduler.max_num_seqs;
};

int32_t PickOf(std::mt19937& rng, std::initializer_list<int32_t> values) {
  return values.begin()[rng() % values.size()];
}

HarnessOptions OneGroup(std::mt19937& rng) {
  HarnessOptions o;
  o.block_size = PickOf(rng, {1, 2, 4, 8});
  // A request takes 1 to 60 tokens: from pools that hold one or none to pools that hold a dozen.
  const int32_t tokens = PickOf(rng, {16, 32, 48, 48, 64, 64, 128, 256});
  o.num_pages = std::max(1, tokens / o.block_size);
  o.scheduler.max_num_seqs = PickOf(rng, {1, 2, 3, 4, 6, 8});
  o.scheduler.max_num_batched_tokens = o.scheduler.max_num_seqs + PickOf(rng, {0, 0, 1, 3, 8, 40});
  o.scheduler.enable_prefix_caching = rng() % 4 != 0;
  o.scheduler.watermark = PickOf(rng, {0, 1, 30}) / 100.0;
  return o;
}

// A full and a sliding group with a pool each.
HarnessOptions TwoPools(std::mt19937& rng) {
  HarnessOptions o = OneGroup(rng);
  o.num_pools = 2;
  o.groups = {
      {},
      {.group = {.kind = CacheKind::kSlidingWindow, .window = PickOf(rng, {3, 5, 9})}, .pool = 1}};
  return o;
}

// A full and a sliding group that compete for the same pages.
HarnessOptions TwoGroups(std::mt19937& rng) {
  HarnessOptions o = TwoPools(rng);
  o.num_pools = 1;
  o.groups[1].pool = 0;
  o.num_pages *= 2;
  return o;
}

// Both, with a host tier, swap and operators.
HarnessOptions WithTiers(std::mt19937& rng) {
  HarnessOptions o = rng() % 2 == 0 ? TwoPools(rng) : OneGroup(rng);
  o.num_host = PickOf(rng, {1, 4, 16, 100});
  o.scheduler.preemption = rng() % 4 != 0 ? PreemptionMode::kSwap : PreemptionMode::kRecompute;
  return o;
}

// All of it, with each policy, beams, guesses, prompt logprobs, and options that change on the way.
HarnessOptions Everything(std::mt19937& rng) {
  HarnessOptions o = rng() % 3 == 0   ? WithTiers(rng)
                     : rng() % 2 == 0 ? TwoGroups(rng)
                                      : OneGroup(rng);
  if (rng() % 4 == 0) o.scheduler.preemption = PreemptionMode::kAuto;
  o.scheduler.policy = static_cast<SchedulingPolicy>(rng() % 5);
  o.scheduler.priority_aging_ms = PickOf(rng, {1, 10, 1000});
  o.scheduler.num_speculative_tokens = PickOf(rng, {1, 3, 8});
  o.scheduler.long_prefill_token_threshold = PickOf(rng, {0, 0, 1, 5});
  o.scheduler.target_step_ms = PickOf(rng, {0, 0, 1});
  o.scheduler.max_logit_rows = o.scheduler.max_num_seqs + PickOf(rng, {0, 0, 2, 10});
  o.percent_right = PickOf(rng, {0, 50, 90, 100});
  return o;
}

// First come, first served to the end: then the harness checks in each step that the first goes on.
HarnessOptions EverythingInOrder(std::mt19937& rng) {
  HarnessOptions o = Everything(rng);
  o.scheduler.policy = SchedulingPolicy::kFcfs;
  o.reconfigures = false;
  return o;
}

Totals PlayAll(uint32_t first_seed, int32_t count, HarnessOptions (*make)(std::mt19937&)) {
  Totals totals;
  for (int32_t i = 0; i < count; ++i) {
    const uint32_t seed = first_seed + static_cast<uint32_t>(i);
    SCOPED_TRACE(fmt::format("world {}", seed));
    World(seed, make).Play(totals);
    if (::testing::Test::HasFailure()) return totals;
  }
  // Worlds in which nothing happens prove nothing.
  EXPECT_EQ(totals.worlds, count);
  for (const auto& [name, value] :
       {std::pair("refused", totals.refused), std::pair("preemptions", totals.preemptions),
        std::pair("forks", totals.forks), std::pair("copies", totals.copies),
        std::pair("hits", totals.hits), std::pair("resume hits", totals.resume_hits),
        std::pair("evictions", totals.evictions), std::pair("cancelled", totals.cancelled),
        std::pair("deadline", totals.deadline), std::pair("stopped", totals.stopped),
        std::pair("length", totals.length), std::pair("failed steps", totals.failed_steps)}) {
    EXPECT_GT(value, count / 20) << name;
    std::printf("%s=%lld ", name, static_cast<long long>(value));
  }
  std::printf("\n");
  return totals;
}

TEST(SchedulerSimulation, OneGroup) { PlayAll(1, 8000, OneGroup); }
TEST(SchedulerSimulation, TwoGroupsInOnePool) { PlayAll(100001, 3000, TwoGroups); }
TEST(SchedulerSimulation, TwoPools) { PlayAll(200001, 3000, TwoPools); }
TEST(SchedulerSimulation, TiersAndOperators) {
  const Totals totals = PlayAll(300001, 3000, WithTiers);
  if (::testing::Test::HasFailure()) return;
  for (const int64_t value : {totals.swapped, totals.swap_ins, totals.loaded, totals.pins,
                              totals.flushes, totals.resizes, totals.shrunk}) {
    EXPECT_GT(value, 150);
    std::printf("%lld ", static_cast<long long>(value));
  }
  std::printf("swapped, swap-ins, loaded, pins, flushes, resizes, shrunk\n");
}

TEST(SchedulerSimulation, TheFirstNeverStandsStill) {
  const Totals totals = PlayAll(500001, 6000, EverythingInOrder);
  EXPECT_GT(totals.beam_forks, 1000);
}

// Pools from the least up, mixes of everything: whatever is admitted ends, under each policy.
TEST(SchedulerSimulation, TenThousandMixesOfEverything) {
  const Totals totals = PlayAll(400001, 10000, Everything);
  if (::testing::Test::HasFailure()) return;
  for (const auto& [name, value] :
       {std::pair("beam steps", totals.beams), std::pair("beam forks", totals.beam_forks),
        std::pair("guesses", totals.guesses), std::pair("right", totals.right),
        std::pair("wrong", totals.guesses - totals.right), std::pair("chains", totals.chains),
        std::pair("prompt logprobs", totals.prompt_logprobs), std::pair("updates", totals.updates),
        std::pair("policy changes", totals.policy_changes)}) {
    EXPECT_GT(value, 1000) << name;
    std::printf("%s=%lld ", name, static_cast<long long>(value));
  }
  std::printf("\n");
}

}  // namespace
}  // namespace quire::sched_test
