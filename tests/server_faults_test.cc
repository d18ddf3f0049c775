// The daemon when things go wrong: clients that leave, deadlines, readers that stall, too many
// requests, steps that fail, shutdown. After each, nothing is held (contract C6).
// HARD-CASES B04, N01, N04, N11, N14. Thousands of them at once: server_soak_test.cc.
#include "tests/support/server_rig.h"

namespace quire::server_test {
namespace {

using grpc::StatusCode;

TEST(FaultsTest, CancelAtEveryStage) {
  Rig rig;
  const auto cancelled = [&](Call& call) {
    call.context.TryCancel();
    EXPECT_EQ(call.Finish().error_code(), StatusCode::CANCELLED);
    rig.ExpectIdle();
  };
  // A client knows at once that it cancelled; the step must not go on before the engine does.
  const auto told_engine = [&](uint64_t count) {
    EXPECT_TRUE(
        rig.Eventually([&] { return rig.daemon().edge().counts().cancel_commands == count; }));
  };
  {  // in the queue: another request holds the engine in a step
    rig.executor.SetOpen(false);
    Call first(rig.stub(), Rig::IdsRequest({1, 2}, 4));
    rig.executor.WaitForStep();
    Call queued(rig.stub(), Rig::IdsRequest({3, 4}, 4));
    EXPECT_TRUE(rig.Eventually([&] { return rig.daemon().edge().counts().started == 2; }));
    queued.context.TryCancel();
    EXPECT_EQ(queued.Finish().error_code(), StatusCode::CANCELLED);
    told_engine(1);
    rig.executor.SetOpen(true);
    EXPECT_TRUE(first.Finish().ok());
    rig.ExpectIdle();
  }
  {  // within a prompt of several chunks
    rig.executor.SetOpen(false);
    Call call(rig.stub(), Rig::IdsRequest(std::vector<TokenId>(300, 9), 4));
    rig.executor.WaitForStep();
    call.context.TryCancel();
    EXPECT_EQ(call.Finish().error_code(), StatusCode::CANCELLED);
    told_engine(2);
    rig.executor.SetOpen(true);
    rig.ExpectIdle();
  }
  rig.executor.Pause(milliseconds(1));
  {  // after the first token
    Call call(rig.stub(), Rig::IdsRequest({1, 2}, 500));
    ASSERT_TRUE(call.Read() && call.Read());
    cancelled(call);
    EXPECT_LT(call.answer.token_ids[0].size(), 500u);
  }
  {  // after one of several branches has ended (B04)
    rig.executor.Say([](const Request&, int32_t branch, int32_t num_output) {
      return branch == 0 && num_output == 3 ? 99 : 100;
    });
    pb::GenerateRequest request = Rig::IdsRequest({1, 2}, 500);
    request.mutable_sampling()->set_n(3);
    request.mutable_stopping()->add_stop_token_ids(99);
    Call call(rig.stub(), request);
    while (call.answer.num_finished[0] == 0) ASSERT_TRUE(call.Read());
    cancelled(call);
  }
  {  // a unary call
    grpc::ClientContext context;
    pb::GenerateResult result;
    grpc::Status status;
    std::thread client([&] {
      status = rig.stub().GenerateUnary(&context, Rig::IdsRequest({1, 2}, 500), &result);
    });
    EXPECT_TRUE(rig.Eventually([&] { return rig.Blocks().used_blocks() > 0; }));
    context.TryCancel();
    client.join();
    EXPECT_EQ(status.error_code(), StatusCode::CANCELLED);
    rig.ExpectIdle();
  }
  // The edge counts after the engine has let go.
  EXPECT_TRUE(rig.Eventually([&] { return rig.daemon().edge().counts().cancelled == 5; }));
  rig.executor.Pause(milliseconds(0));
  rig.executor.Say(Echo);
  rig.Probe();
}

// N04: the engine lets go within one step of hearing of it.
TEST(FaultsTest, CancelFreesBlocksBeforeTheNextStep) {
  Rig rig;
  rig.executor.Pause(milliseconds(5));
  auto channel = rig.Connect();
  const auto stub = pb::Generation::NewStub(channel);
  Call call(*stub, Rig::IdsRequest(std::vector<TokenId>(100, 7), 400));
  ASSERT_TRUE(call.Read() && call.Read());
  EXPECT_GE(rig.Blocks().used_blocks(), 13u);
  call.context.TryCancel();
  call.Finish();
  EXPECT_TRUE(rig.Eventually([&] { return rig.daemon().edge().counts().cancelled == 1; }));
  // The last event is published with the gauges of the step that let go.
  const pb::BlockStats stats = rig.Blocks();
  EXPECT_EQ(stats.used_blocks(), 0u);
  EXPECT_LT(stats.steps(), 400u);
}

TEST(FaultsTest, DeadlinesHoldInTheQueueAndWhileRunning) {
  Rig rig;
  rig.executor.SetOpen(false);
  Call blocker(rig.stub(), Rig::IdsRequest({1, 2}, 300));
  rig.executor.WaitForStep();
  // In the queue, by grpc-timeout and by our own field.
  Call by_client(rig.stub(), Rig::IdsRequest({3}, 4), milliseconds(50));
  EXPECT_EQ(by_client.Finish().error_code(), StatusCode::DEADLINE_EXCEEDED);
  pb::GenerateRequest total = Rig::IdsRequest({3}, 4);
  total.mutable_scheduling()->set_total_timeout_ms(30);
  Call by_total(rig.stub(), total);
  pb::GenerateRequest queue = Rig::IdsRequest({3}, 4);
  queue.mutable_scheduling()->set_queue_timeout_ms(30);
  Call by_queue(rig.stub(), queue);
  EXPECT_TRUE(rig.Eventually([&] { return rig.daemon().edge().counts().started == 4; }));
  std::this_thread::sleep_for(milliseconds(60));
  rig.executor.Pause(milliseconds(1));
  rig.executor.SetOpen(true);
  EXPECT_EQ(by_total.Finish().error_code(), StatusCode::DEADLINE_EXCEEDED);
  EXPECT_EQ(by_queue.Finish().error_code(), StatusCode::DEADLINE_EXCEEDED);
  EXPECT_NE(by_queue.answer.status.error_message().find("queue_timeout_ms"), std::string::npos)
      << by_queue.answer.status.error_message();
  EXPECT_EQ(by_total.answer.num_accepted, 0);
  EXPECT_TRUE(blocker.Finish().ok());
  // While running: what was said until then arrives, with the reason and the usage.
  rig.executor.Pause(milliseconds(5));
  pb::GenerateRequest running = Rig::IdsRequest({3}, 500);
  running.mutable_scheduling()->set_total_timeout_ms(1000);
  const Answer answer = rig.Generate(running);
  EXPECT_EQ(answer.status.error_code(), StatusCode::DEADLINE_EXCEEDED);
  EXPECT_GT(answer.token_ids.at(0).size(), 0u);
  EXPECT_LT(answer.token_ids.at(0).size(), 500u);
  EXPECT_EQ(answer.finished.at(0).reason(), pb::FINISH_REASON_DEADLINE);
  EXPECT_EQ(answer.usage.completion_tokens(), answer.token_ids.at(0).size());
  Call by_grpc(rig.stub(), Rig::IdsRequest({3}, 500), milliseconds(200));
  EXPECT_EQ(by_grpc.Finish().error_code(), StatusCode::DEADLINE_EXCEEDED);
  rig.ExpectIdle();
  EXPECT_EQ(rig.daemon().edge().counts().deadline, 5u);
  EXPECT_EQ(rig.daemon().edge().counts().ok, 1u);
}

// N01: a client that doesn't read costs a bounded buffer, then loses its request; others go on.
TEST(FaultsTest, SlowReaderIsCutAtTheBound) {
  RigOptions options;
  options.server.max_stream_buffer_bytes = 64 << 10;
  options.server.max_model_len = 16384;
  options.server.block_size = 128;
  Rig rig(options);
  pb::GenerateRequest request = Rig::IdsRequest({1, 2, 3}, 12000);
  request.mutable_response()->set_num_logprobs(20);  // 12,000 tokens make 3 MB
  Call slow(rig.stub(), request);
  ASSERT_TRUE(slow.Read());
  EXPECT_TRUE(rig.Eventually([&] { return rig.daemon().edge().counts().failed == 1; }));
  EXPECT_EQ(rig.Blocks().used_blocks(), 0u) << "before the client reads on";
  const auto other_channel = rig.Connect();
  const auto other = pb::Generation::NewStub(other_channel);
  grpc::ClientContext context;
  pb::GenerateResult result;
  EXPECT_TRUE(other->GenerateUnary(&context, Rig::IdsRequest({4}, 100), &result).ok());
  EXPECT_EQ(slow.Finish().error_code(), StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_NE(slow.answer.status.error_message().find("max_stream_buffer_bytes=65536"),
            std::string::npos);
  EXPECT_LT(slow.answer.token_ids[0].size(), 12000u);
  rig.ExpectIdle();
}

TEST(FaultsTest, FullQueueRefusesBeforeAnythingElse) {
  RigOptions options;
  options.server.max_queued_requests = 3;
  Rig rig(options);
  rig.executor.Pause(milliseconds(1));
  Call running(rig.stub(), Rig::IdsRequest({1}, 500));
  ASSERT_TRUE(running.Read() && running.Read());  // it left the queue
  rig.executor.SetOpen(false);
  rig.executor.WaitForStep();
  std::vector<std::unique_ptr<Call>> queued;
  for (int i = 0; i < 3; ++i) {
    queued.push_back(std::make_unique<Call>(rig.stub(), Rig::IdsRequest({2}, 2)));
  }
  EXPECT_TRUE(rig.Eventually([&] { return rig.daemon().edge().counts().started == 4; }));
  int num_refused = 0;
  for (int i = 0; i < 10; ++i) {
    pb::GenerateRequest bad = Rig::IdsRequest({2}, 2);
    bad.mutable_sampling()->set_n(-1);  // would be INVALID_ARGUMENT if it came to that
    const Answer answer = rig.Generate(bad);
    num_refused += answer.status.error_code() == StatusCode::RESOURCE_EXHAUSTED;
    EXPECT_NE(answer.status.error_message().find("max_queued_requests"), std::string::npos)
        << answer.status.error_message();
  }
  EXPECT_EQ(num_refused, 10);
  rig.executor.SetOpen(true);
  EXPECT_TRUE(running.Finish().ok());
  for (auto& call : queued) EXPECT_TRUE(call->Finish().ok()) << call->answer.status.error_message();
  rig.ExpectIdle();
  rig.Probe();
}

TEST(FaultsTest, RequestIdsAreUniqueWhileInFlight) {
  Rig rig;
  rig.executor.SetOpen(false);
  pb::GenerateRequest request = Rig::IdsRequest({1}, 2);
  request.set_request_id("mine");
  Call first(rig.stub(), request);
  rig.executor.WaitForStep();
  const Answer twin = rig.Generate(request);
  EXPECT_EQ(twin.status.error_code(), StatusCode::INVALID_ARGUMENT);
  EXPECT_NE(twin.status.error_message().find("request_id=mine is in use"), std::string::npos);
  rig.executor.SetOpen(true);
  EXPECT_TRUE(first.Finish().ok());
  EXPECT_EQ(first.answer.request_id, "mine");
  EXPECT_TRUE(rig.Generate(request).status.ok());
  const Answer a = rig.Generate(Rig::IdsRequest({1}, 1));
  const Answer b = rig.Generate(Rig::IdsRequest({1}, 1));
  EXPECT_FALSE(a.request_id.empty());
  EXPECT_NE(a.request_id, b.request_id);
}

TEST(FaultsTest, AbortByIdEndsSomebodyElsesCall) {
  Rig rig;
  rig.executor.Pause(milliseconds(1));
  pb::GenerateRequest request = Rig::IdsRequest({1}, 500);
  request.set_request_id("victim");
  Call call(rig.stub(), request);
  ASSERT_TRUE(call.Read() && call.Read());
  pb::AbortRequest abort;
  abort.add_request_ids("nobody");
  abort.add_request_ids("victim");
  pb::AbortResponse aborted;
  grpc::ClientContext c1;
  ASSERT_TRUE(rig.stub().Abort(&c1, abort, &aborted).ok());
  ASSERT_EQ(aborted.aborted_request_ids_size(), 1);
  EXPECT_EQ(aborted.aborted_request_ids(0), "victim");
  EXPECT_EQ(call.Finish().error_code(), StatusCode::CANCELLED);
  EXPECT_EQ(call.answer.finished.at(0).reason(), pb::FINISH_REASON_CANCELLED);
  EXPECT_EQ(call.answer.usage.completion_tokens(), call.answer.token_ids[0].size());
  rig.ExpectIdle();
  Call a(rig.stub(), Rig::IdsRequest({1}, 500));
  Call b(rig.stub(), Rig::IdsRequest({2}, 500));
  ASSERT_TRUE(a.Read() && b.Read());
  pb::AbortRequest all;
  all.set_all(true);
  pb::AbortResponse both;
  grpc::ClientContext c2;
  ASSERT_TRUE(rig.stub().Abort(&c2, all, &both).ok());
  EXPECT_EQ(both.aborted_request_ids_size(), 2);
  EXPECT_EQ(a.Finish().error_code(), StatusCode::CANCELLED);
  EXPECT_EQ(b.Finish().error_code(), StatusCode::CANCELLED);
  grpc::ClientContext c3;
  EXPECT_EQ(rig.stub().Abort(&c3, {}, &both).error_code(), StatusCode::INVALID_ARGUMENT);
  rig.ExpectIdle();
}

// N11: an error after some tokens is an event and the status, never a normal end.
TEST(FaultsTest, FailedStepFailsItsRequestsAndNoOther) {
  Rig rig;
  rig.executor.Pause(milliseconds(1));
  Call call(rig.stub(), Rig::IdsRequest({1}, 500));
  while (call.answer.token_ids[0].size() < 3) ASSERT_TRUE(call.Read());
  rig.executor.FailNext(absl::InternalError("a kernel gave up"));
  EXPECT_EQ(call.Finish().error_code(), StatusCode::INTERNAL);
  EXPECT_NE(call.answer.status.error_message().find("a kernel gave up"), std::string::npos);
  EXPECT_NE(call.answer.failure.find("a kernel gave up"), std::string::npos);
  EXPECT_TRUE(call.answer.finished.empty());
  EXPECT_EQ(call.answer.usage.completion_tokens(), call.answer.token_ids[0].size());
  rig.ExpectIdle();
  rig.Probe();
}

TEST(FaultsTest, LostDeviceEndsTheDaemonAfterTellingItsClients) {
  Rig rig;
  rig.executor.Pause(milliseconds(1));
  Call call(rig.stub(), Rig::IdsRequest({1}, 500));
  ASSERT_TRUE(call.Read() && call.Read());
  rig.executor.FailNext(absl::UnavailableError("the device is lost"));
  EXPECT_EQ(call.Finish().error_code(), StatusCode::UNAVAILABLE);
  const absl::Status end = rig.daemon().Wait();
  EXPECT_EQ(end.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(rig.Generate(Rig::IdsRequest({1}, 1)).status.error_code(), StatusCode::UNAVAILABLE);
}

// N14 b, f: what runs is finished; what is new is refused.
TEST(FaultsTest, DrainFinishesWhatRuns) {
  Rig rig;
  rig.executor.Pause(milliseconds(2));
  std::vector<std::unique_ptr<Call>> calls;
  for (int i = 0; i < 5; ++i) {
    calls.push_back(std::make_unique<Call>(rig.stub(), Rig::IdsRequest({1, 2, i}, 200)));
    ASSERT_TRUE(calls.back()->Read());
  }
  rig.daemon().Drain(std::chrono::seconds(60));
  const Answer refused = rig.Generate(Rig::IdsRequest({1}, 1));
  EXPECT_EQ(refused.status.error_code(), StatusCode::UNAVAILABLE);
  EXPECT_TRUE(rig.Info().draining());
  for (auto& call : calls) {
    EXPECT_TRUE(call->Finish().ok()) << call->answer.status.error_message();
    EXPECT_EQ(call->answer.token_ids[0].size(), 200u);
  }
  EXPECT_TRUE(rig.daemon().Wait().ok());
}

// N14 c: at the deadline streams end with UNAVAILABLE.
TEST(FaultsTest, DrainDeadlineCutsTheRest) {
  Rig rig;
  rig.executor.Pause(milliseconds(10));
  Call call(rig.stub(), Rig::IdsRequest({1}, 500));
  ASSERT_TRUE(call.Read() && call.Read());
  rig.daemon().Drain(milliseconds(100));
  EXPECT_EQ(call.Finish().error_code(), StatusCode::UNAVAILABLE);
  EXPECT_GT(call.answer.token_ids[0].size(), 0u);
  EXPECT_LT(call.answer.token_ids[0].size(), 500u);
  EXPECT_TRUE(rig.daemon().Wait().ok());
}

// N14 d: the second request to stop does not wait for the first one's time.
TEST(FaultsTest, SecondDrainIsImmediate) {
  Rig rig;
  rig.executor.Pause(milliseconds(5));
  Call call(rig.stub(), Rig::IdsRequest({1}, 500));
  ASSERT_TRUE(call.Read() && call.Read());
  rig.daemon().Drain(std::chrono::hours(1));
  rig.daemon().Drain(milliseconds(0));
  EXPECT_EQ(call.Finish().error_code(), StatusCode::UNAVAILABLE);
  EXPECT_TRUE(rig.daemon().Wait().ok());
}

TEST(FaultsTest, DrainOfAnIdleServerEndsAtOnce) {
  Rig rig;
  rig.Probe();
  rig.daemon().Drain(std::chrono::hours(1));
  EXPECT_TRUE(rig.daemon().Wait().ok());
  rig.daemon().Stop();
}

}  // namespace
}  // namespace quire::server_test
