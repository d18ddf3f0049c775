// tests/scheduler_test.cc -- single rules of the scheduler. Reported bugs of other engines have
// their own file, scheduler_cases_test.cc.
#include <gtest/gtest.h>

#include "tests/scheduler_harness.h"

namespace quire::sched_test {
namespace {

using std::chrono::milliseconds;

TEST(Scheduler, ServesOneRequest) {
  Harness h;
  const RequestId id = h.Submit(Iota(1, 10), 5);
  ASSERT_TRUE(h.RunUntilIdle());
  h.ExpectIdleAndClean();
  h.ExpectOutputsAsSolo();
  EXPECT_EQ(h.seen(id).finish[0], FinishReason::kLength);
  EXPECT_EQ(h.seen(id).outputs[0].size(), 5u);
  EXPECT_EQ(h.step(), 6);                         // five steps and the empty one
  EXPECT_EQ(h.stats().scheduled_tokens, 10 + 4);  // the last token is never computed
  EXPECT_EQ(h.stats().generated_tokens, 5);
}

TEST(Scheduler, SequencesJoinAndLeaveEachStep) {
  Harness h;
  const RequestId a = h.Submit(Iota(1, 4), 3);
  h.Step();
  const RequestId b = h.Submit(Iota(2, 4), 3);
  h.Step();
  EXPECT_EQ(h.stats().running_seqs, 2);
  h.Step();
  EXPECT_TRUE(h.seen(a).done);
  EXPECT_EQ(h.stats().running_seqs, 1);
  h.Step();
  EXPECT_TRUE(h.seen(b).done);
  EXPECT_EQ(h.seen(b).done_at_step, h.seen(a).done_at_step + 1);
  h.ExpectOutputsAsSolo();
}

// Neither starves the other: each decode gets its token in every step, the prompt all the rest.
TEST(Scheduler, DecodesGoOnBesideALongPromptAndItBesideThem) {
  HarnessOptions o;
  o.num_pages = 128;
  o.scheduler.max_num_seqs = 4;
  o.scheduler.max_num_batched_tokens = 10;
  Harness h(o);
  const RequestId prompt = h.Submit(Iota(0, 100), 2);
  h.Step();
  std::vector<RequestId> decodes;
  for (int32_t i = 0; i < 3; ++i) decodes.push_back(h.Submit(Iota(i, 1), 50));
  // They can't join while the prompt takes the whole budget; let it leave room once.
  for (int32_t step = 0; step < 9; ++step) h.Step();
  ASSERT_EQ(h.seen(prompt).num_token_events, 1);
  h.Step();
  for (const RequestId id : decodes) ASSERT_EQ(h.seen(id).num_accepted, 1);

  const RequestId late = h.Submit(Iota(7, 60), 2);
  for (int32_t step = 0; step < 9 && h.seen(late).num_token_events == 0; ++step) {
    std::vector<int32_t> before;
    for (const RequestId id : decodes) before.push_back(h.seen(id).num_token_events);
    h.Step();
    for (size_t i = 0; i < decodes.size(); ++i) {
      EXPECT_EQ(h.seen(decodes[i]).num_token_events, before[i] + 1);
    }
  }
  EXPECT_EQ(h.seen(late).num_token_events, 1) << "60 tokens at 7 a step";
  ASSERT_TRUE(h.RunUntilIdle());
  h.ExpectOutputsAsSolo();
}

TEST(Scheduler, PromptOverTheBudgetIsComputedInChunks) {
  HarnessOptions o;
  o.scheduler.max_num_seqs = 4;
  o.scheduler.max_num_batched_tokens = 7;
  Harness h(o);
  const RequestId id = h.Submit(Iota(1, 20), 2);
  std::vector<int32_t> chunks;
  while (h.seen(id).num_token_events == 0) {
    h.Step();
    chunks.push_back(h.batch().num_tokens);
  }
  EXPECT_EQ(chunks, (std::vector<int32_t>{7, 7, 6}));
}

TEST(Scheduler, BranchesShareOnePromptAndCopyOnlyItsTail) {
  Harness h;
  const RequestId id = h.Submit(Iota(1, 10), 4, /*n=*/3);  // 2 full pages of 4 and a tail of 2
  h.Step();
  EXPECT_EQ(h.stats().forks, 2);
  EXPECT_EQ(h.stats().running_seqs, 3);
  EXPECT_EQ(h.pool().num_active(), 3) << "nothing is copied at the fork";
  EXPECT_EQ(h.seen(id).num_token_events, 3) << "all first tokens come from one row";
  h.Step();
  EXPECT_EQ(h.stats().page_copies, 2) << "k owners of a tail: k - 1 copies";
  EXPECT_EQ(h.pool().num_active(), 2 + 3);
  ASSERT_TRUE(h.RunUntilIdle());
  EXPECT_EQ(h.stats().scheduled_tokens, 10 + 3 * 3);
  EXPECT_NE(h.seen(id).outputs[0], h.seen(id).outputs[1]);
  EXPECT_EQ(h.seen(id).stats.completion_tokens, 12);
  h.ExpectOutputsAsSolo();
  h.ExpectIdleAndClean();
}

TEST(Scheduler, ForksNeverExceedMaxNumSeqs) {
  HarnessOptions o;
  o.scheduler.max_num_seqs = 4;
  Harness h(o);
  h.Submit(Iota(1, 5), 6, 3);
  h.Submit(Iota(2, 5), 6, 2);  // 3 + 2 > 4: waits although only one sequence runs before the fork
  h.Submit(Iota(3, 5), 6, 1);  // fits, but nobody overtakes
  while (h.Step()) EXPECT_LE(h.stats().running_seqs, 4);
  h.ExpectIdleAndClean();
  h.ExpectOutputsAsSolo();
  const RequestId refused = h.Submit(Iota(1, 5), 6, 5);
  EXPECT_EQ(h.seen(refused).error.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Message(h.seen(refused).error), "n=5 must be in [1, 4] (max_num_seqs)");
  EXPECT_EQ(h.seen(refused).finish.size(), 5u) << "every branch has its last event";
}

TEST(Scheduler, StopsAtStopTokensButNotBeforeMinTokens) {
  Harness h;
  Request r = h.Make(Iota(1, 6), 40);
  r.stop.eos_token_ids = {2};
  for (TokenId t = 0; t < kVocab; t += 3) r.stop.stop_token_ids.push_back(t);  // every third token
  r.sampling.min_tokens = 12;
  const RequestId id = h.Submit(r);
  ASSERT_TRUE(h.RunUntilIdle());
  const Seen& seen = h.seen(id);
  EXPECT_EQ(seen.finish[0], FinishReason::kStop);
  ASSERT_GT(seen.outputs[0].size(), 12u);
  EXPECT_LT(seen.outputs[0].size(), 40u);
  EXPECT_EQ(seen.stop_tokens[0], seen.outputs[0].back());
  EXPECT_TRUE(IsStop(*seen.request, seen.stop_tokens[0]));
  h.ExpectOutputsAsSolo();
}

TEST(Scheduler, FinishCutsABranchAndItsCount) {
  Harness h;
  const RequestId id = h.Submit(Iota(1, 6), 30, 2);
  h.Apply(Finish{.request = id, .branch = 0, .num_output_tokens = 0});  // nothing sampled: ignored
  EXPECT_FALSE(h.seen(id).done);
  for (int32_t i = 0; i < 9; ++i) h.Step();
  h.Apply(Finish{.request = id, .branch = 1, .num_output_tokens = 6});
  EXPECT_EQ(h.seen(id).finish[1], FinishReason::kStop);
  EXPECT_EQ(h.seen(id).outputs[1].size(), 6u);
  EXPECT_EQ(h.stats().running_seqs, 1);
  h.Apply(Finish{.request = id, .branch = 1, .num_output_tokens = 5});  // late, and still exact
  h.Apply(Finish{.request = id, .branch = 7, .num_output_tokens = 1});  // no such branch
  ASSERT_TRUE(h.RunUntilIdle());
  EXPECT_EQ(h.seen(id).stats.completion_tokens, 30 + 5);
  EXPECT_EQ(h.stats().num_finished(FinishReason::kLength), 1);
  h.Apply(Finish{.request = id, .branch = 0, .num_output_tokens = 1});  // gone
  h.Cancel(id);
  h.Cancel(id + 100);
  h.ExpectIdleAndClean();
}

TEST(Scheduler, DeadlinesHoldInTheQueueAndWhileRunning) {
  HarnessOptions o;
  o.scheduler.max_num_seqs = 1;
  Harness h(o);
  Request running = h.Make(Iota(1, 4), 100);
  running.deadline = h.now() + milliseconds(20);
  Request queued = h.Make(Iota(2, 4), 100);
  queued.deadline = h.now() + milliseconds(10);
  Request patient = h.Make(Iota(3, 4), 3);
  const RequestId a = h.Submit(running), b = h.Submit(queued), c = h.Submit(patient);
  for (int32_t i = 0; i < 11; ++i) h.Step();
  EXPECT_TRUE(h.seen(b).done);
  EXPECT_EQ(h.seen(b).finish[0], FinishReason::kDeadline);
  EXPECT_EQ(h.seen(b).num_accepted, 0) << "never scheduled";
  EXPECT_EQ(h.seen(b).stats.queue_us, 10000);
  EXPECT_FALSE(h.seen(a).done);
  for (int32_t i = 0; i < 10; ++i) h.Step();
  EXPECT_EQ(h.seen(a).finish[0], FinishReason::kDeadline);
  EXPECT_EQ(h.seen(a).outputs[0].size(), 20u) << "what was said in time stays";
  ASSERT_TRUE(h.RunUntilIdle());
  EXPECT_EQ(h.seen(c).finish[0], FinishReason::kLength);
  h.ExpectIdleAndClean();
}

TEST(Scheduler, CancelWorksAtEveryStage) {
  HarnessOptions o;
  o.num_pages = 12;
  o.scheduler.max_num_seqs = 4;
  o.scheduler.max_num_batched_tokens = 8;
  Harness h(o);
  const RequestId queued = h.Submit(Iota(1, 4), 4);
  h.Cancel(queued);
  EXPECT_TRUE(h.seen(queued).done);

  const RequestId chunking = h.Submit(Iota(2, 20), 4);
  h.Step();
  EXPECT_EQ(h.seen(chunking).num_token_events, 0);
  EXPECT_GT(h.pool().num_active(), 0);
  h.Cancel(chunking);
  EXPECT_EQ(h.pool().num_active(), 0) << "pages are free before the next step";

  const RequestId forked = h.Submit(Iota(3, 6), 10, 3);
  h.Step();
  h.Step();
  h.Cancel(forked);
  EXPECT_EQ(h.pool().num_active(), 0);
  EXPECT_EQ(h.seen(forked).finish, (std::vector<FinishReason>(3, FinishReason::kCancelled)));
  EXPECT_EQ(h.seen(forked).stats.completion_tokens, 6);

  const RequestId old = h.Submit(Iota(4, 16), 30);
  const RequestId victim = h.Submit(Iota(5, 16), 30);
  while (h.stats().preemptions == 0) ASSERT_TRUE(h.Step());
  EXPECT_EQ(h.stats().waiting_seqs, 1);
  h.Cancel(victim);
  EXPECT_EQ(h.seen(victim).stats.preemptions, 1);
  ASSERT_TRUE(h.RunUntilIdle());
  EXPECT_EQ(h.seen(old).finish[0], FinishReason::kLength);
  EXPECT_EQ(h.stats().num_finished(FinishReason::kCancelled), 4);
  h.ExpectIdleAndClean();
}

TEST(Scheduler, FailedStepEndsItsRequestsOnly) {
  HarnessOptions o;
  o.scheduler.max_num_seqs = 2;
  Harness h(o);
  const RequestId a = h.Submit(Iota(1, 4), 8, 2);
  const RequestId b = h.Submit(Iota(2, 4), 8);  // waits: the places are taken
  h.Step();
  h.executor().FailNext(absl::InternalError("layer 3: not a number"));
  h.Step();
  EXPECT_EQ(h.seen(a).finish, (std::vector<FinishReason>(2, FinishReason::kError)));
  EXPECT_EQ(Message(h.seen(a).error), "layer 3: not a number");
  ASSERT_TRUE(h.RunUntilIdle());
  EXPECT_EQ(h.seen(b).finish[0], FinishReason::kLength);
  h.ExpectIdleAndClean();
  h.ExpectOutputsAsSolo();
}

TEST(Scheduler, QueueBoundCountsOnlyWhoWasNeverScheduled) {
  HarnessOptions o;
  o.scheduler.max_num_seqs = 1;
  o.scheduler.max_queued_requests = 2;
  Harness h(o);
  h.Submit(Iota(1, 4), 4);
  h.Step();
  h.Submit(Iota(2, 4), 4);
  h.Submit(Iota(3, 4), 4);
  const RequestId refused = h.Submit(Iota(4, 4), 4);
  EXPECT_EQ(h.seen(refused).error.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(Message(h.seen(refused).error).find("max_queued_requests=2"), std::string::npos);
  ASSERT_TRUE(h.RunUntilIdle());
  EXPECT_EQ(h.stats().num_finished(FinishReason::kLength), 3);
  h.ExpectIdleAndClean();
}

TEST(Scheduler, PrefixesAreSharedOnlyWithinARoot) {
  HarnessOptions o;
  o.scheduler.rope_regime = [](int32_t prompt_tokens) {
    return prompt_tokens > 40 ? std::string("long") : std::string();
  };
  Harness h(o);
  const auto cached = [&](const std::string& salt, bool bypass, int32_t length) {
    Request r = h.Make(Iota(1, length), 2);
    r.cache_salt = salt;
    r.bypass_prefix_cache = bypass;
    const RequestId id = h.Submit(std::move(r));
    EXPECT_TRUE(h.RunUntilIdle());
    EXPECT_EQ(h.seen(id).accepted_stats.cached_tokens, h.seen(id).stats.cached_tokens);
    return h.seen(id).stats.cached_tokens;
  };
  EXPECT_EQ(cached("", true, 20), 0) << "bypass offers nothing ...";
  EXPECT_EQ(h.pool().num_cached(), 0);
  EXPECT_EQ(cached("", false, 20), 0);
  EXPECT_EQ(cached("", true, 20), 0) << "... and looks nothing up";
  EXPECT_EQ(cached("", false, 20), 19) << "all but the token that is left to compute";
  EXPECT_EQ(cached("tenant", false, 20), 0);
  EXPECT_EQ(cached("tenant", false, 20), 19);
  EXPECT_EQ(cached("", false, 41), 0) << "another rope regime: other keys for the same tokens";
  EXPECT_EQ(cached("", false, 42), 40);
  // Parts of a root don't run into each other: salt + regime spell the same here.
  EXPECT_EQ(cached("long", false, 20), 0);
  EXPECT_EQ(cached("0:4:long", false, 20), 0);
  h.ExpectOutputsAsSolo();
}

TEST(Scheduler, WithoutPrefixCachingNothingIsKept) {
  HarnessOptions o;
  o.scheduler.enable_prefix_caching = false;
  Harness h(o);
  for (int32_t i = 0; i < 3; ++i) {
    const RequestId id = h.Submit(Iota(1, 20), 3, 2);
    ASSERT_TRUE(h.RunUntilIdle());
    EXPECT_EQ(h.seen(id).stats.cached_tokens, 0);
    EXPECT_EQ(h.pool().num_blank(), h.pool().num_usable());
  }
  EXPECT_EQ(h.stats().prefix_hit_tokens, 0);
  EXPECT_EQ(h.stats().prefix_query_tokens, 60);
}

TEST(Scheduler, WatermarkLeavesRoomToGrow) {
  HarnessOptions o;
  o.num_pages = 10;
  o.scheduler.watermark = 0.3;
  Harness h(o);
  h.Submit(Iota(1, 15), 2);
  h.Step();
  EXPECT_EQ(h.pool().num_active(), 4);
  const RequestId large = h.Submit(Iota(2, 15), 2);  // 4 of the 6 pages left, 3 to be kept
  h.Step();
  EXPECT_EQ(h.seen(large).num_accepted, 0);
  ASSERT_TRUE(h.RunUntilIdle());
  // Alone, a request may have all of them.
  const RequestId whole = h.Submit(Iota(3, 36), 4);
  ASSERT_TRUE(h.RunUntilIdle());
  EXPECT_EQ(h.seen(whole).finish[0], FinishReason::kLength);
}

TEST(Scheduler, AdminCallRunsBetweenSteps) {
  Harness h;
  h.Submit(Iota(1, 5), 3);
  h.Step();
  int32_t running = -1;
  h.Apply(AdminCall{[&](Scheduler& s) { running = s.stats().running_seqs; }});
  EXPECT_EQ(running, 1);
}

TEST(Scheduler, EndAllEndsInOrder) {
  HarnessOptions o;
  o.scheduler.max_num_seqs = 2;
  Harness h(o);
  for (int32_t i = 0; i < 4; ++i) h.Submit(Iota(i, 5), 9, i % 2 + 1);
  h.Step();
  std::vector<TokenEvent> events;
  h.scheduler().EndAll(FinishReason::kCancelled, absl::UnavailableError("drained"), events);
  std::vector<RequestId> done;
  for (const TokenEvent& e : events) {
    EXPECT_EQ(e.error.code(), absl::StatusCode::kUnavailable);
    if (e.request_done) done.push_back(e.request);
  }
  EXPECT_EQ(done, (std::vector<RequestId>{1, 2, 3, 4}));
  EXPECT_TRUE(h.scheduler().idle());
  EXPECT_EQ(h.pool().num_active(), 0);
}

TEST(SchedulerOptionsTest, NamesFieldValueAndLimit) {
  const auto message = [](auto change) {
    SchedulerOptions o;
    o.max_model_len = 128;
    EXPECT_TRUE(Validate(o).ok());
    change(o);
    EXPECT_EQ(Validate(o).code(), absl::StatusCode::kInvalidArgument);
    return Message(Validate(o));
  };
  EXPECT_EQ(message([](auto& o) { o.max_num_seqs = 0; }), "max_num_seqs=0 must be at least 1");
  EXPECT_EQ(message([](auto& o) { o.max_num_batched_tokens = 63; }),
            "max_num_batched_tokens=63 must be at least max_num_seqs=64; raise it or lower "
            "max_num_seqs");
  EXPECT_EQ(message([](auto& o) { o.max_model_len = 1; }),
            "max_model_len=1 must be at least 2 (one token in, one out)");
  EXPECT_EQ(message([](auto& o) { o.max_queued_requests = 0; }),
            "max_queued_requests=0 must be at least 1");
  EXPECT_EQ(message([](auto& o) { o.watermark = 1; }), "watermark=1 must be in [0, 1)");
  EXPECT_EQ(message([](auto& o) { o.watermark = std::nan(""); }),
            "watermark=nan must be in [0, 1)");
}

}  // namespace
}  // namespace quire::sched_test
