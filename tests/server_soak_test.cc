// Thousands of calls that end in every way there is; afterwards nothing is held (contract C6).
// HARD-CASES B02, B03, N02.
#include <atomic>
#include <random>
#include <thread>

#include "server/admin/process_info.h"
#include "tests/support/server_rig.h"

namespace quire::server_test {
namespace {

using grpc::StatusCode;

// B03: n = 4 and a client that closes after the first chunk, 1,000 times; ids can be used again.
TEST(SoakTest, AThousandClosedCallsLeaveNothing) {
  Rig rig;
  pb::GenerateRequest request = Rig::IdsRequest({1, 2, 3}, 400);
  request.mutable_sampling()->set_n(4);
  int64_t resident_after_100 = 0;
  for (int i = 0; i < 1000; ++i) {
    request.set_request_id("call-" + std::to_string(i % 7));
    Call call(rig.stub(), request);
    const bool got_one = call.Read();
    call.context.TryCancel();
    const grpc::Status status = call.Finish();
    ASSERT_TRUE(got_one || status.error_code() == StatusCode::INVALID_ARGUMENT)
        << status.error_message();
    // An id is free again once the server has heard of the cancel.
    EXPECT_TRUE(rig.Eventually([&] { return rig.Blocks().live_requests() == 0; }));
    if (i == 99) resident_after_100 = ResidentBytes();
  }
  rig.ExpectIdle();
  EXPECT_EQ(rig.daemon().edge().counts().started, 1000u);
  EXPECT_LT(ResidentBytes(), resident_after_100 + (16 << 20));
  for (int i = 0; i < 10; ++i) {
    pb::GenerateRequest again = Rig::IdsRequest({1, 2, 3}, 8);
    again.set_request_id("call-" + std::to_string(i % 7));
    EXPECT_TRUE(rig.Generate(again).status.ok());
  }
  rig.ExpectIdle();
}

// B02 and contract C6: 2,000 requests that finish, are cancelled, time out or are refused.
TEST(SoakTest, TwoThousandMixedRequestsLeaveNothing) {
  RigOptions options;
  options.num_blocks = 64;  // scarce: requests wait and are preempted
  Rig rig(options);
  std::atomic<int> next{0};
  std::atomic<int> num_ok{0}, num_cancelled{0}, num_deadline{0}, num_refused{0}, num_other{0};
  const auto client = [&](int seed) {
    std::mt19937 random(static_cast<uint32_t>(seed));
    const auto channel = rig.Connect();
    const auto stub = pb::Generation::NewStub(channel);
    for (int i; (i = next.fetch_add(1)) < 2000;) {
      pb::GenerateRequest request = Rig::IdsRequest(
          std::vector<TokenId>(1 + random() % 40, static_cast<TokenId>(random() % 5)),
          1 + static_cast<int32_t>(random() % 20));
      request.mutable_sampling()->set_n(1 + static_cast<int32_t>(random() % 3));
      if (random() % 4 == 0) request.mutable_stopping()->add_stop("!");
      if (random() % 4 == 0) request.mutable_stopping()->add_stop_token_ids(random() % 5);
      StatusCode code;
      switch (i % 4) {
        case 0: {  // cancelled after some messages
          Call call(*stub, request);
          for (uint32_t k = random() % 6; k > 0 && call.Read(); --k) {
          }
          call.context.TryCancel();
          code = call.Finish().error_code();
          break;
        }
        case 1: {  // a deadline that may hit anywhere
          Call call(*stub, request, milliseconds(random() % 12));
          code = call.Finish().error_code();
          break;
        }
        case 2: {  // refused, early or late
          if (random() % 2 == 0) {
            request.mutable_sampling()->set_top_p(2);
          } else {
            request = Rig::IdsRequest(std::vector<TokenId>(400, 3), 112);
            request.mutable_sampling()->set_n(16);  // never fits
          }
          Call call(*stub, request);
          code = call.Finish().error_code();
          break;
        }
        default: {
          Call call(*stub, request);
          code = call.Finish().error_code();
        }
      }
      num_ok += code == StatusCode::OK;
      num_cancelled += code == StatusCode::CANCELLED;
      num_deadline += code == StatusCode::DEADLINE_EXCEEDED;
      num_refused += code == StatusCode::INVALID_ARGUMENT;
      num_other += code != StatusCode::OK && code != StatusCode::CANCELLED &&
                   code != StatusCode::DEADLINE_EXCEEDED && code != StatusCode::INVALID_ARGUMENT;
    }
  };
  std::vector<std::thread> clients;
  for (int i = 0; i < 8; ++i) clients.emplace_back(client, i);
  for (std::thread& t : clients) t.join();
  EXPECT_EQ(num_other, 0);
  EXPECT_GT(num_ok, 400);
  EXPECT_GT(num_cancelled, 50);
  EXPECT_GT(num_deadline, 50);
  EXPECT_EQ(num_refused, 500);
  rig.ExpectIdle();
  EXPECT_EQ(rig.Blocks().used_blocks(), 0u);
  // The whole pool is there for one that needs it all.
  EXPECT_TRUE(rig.Generate(Rig::IdsRequest(std::vector<TokenId>(500, 9), 12)).status.ok());
  rig.ExpectIdle();
}

// N02: deadlines anywhere between nothing and twice the latency, 10,000 calls of both kinds, from
// 32 threads.
TEST(SoakTest, DeadlinesRaceWithTheLastMessage) {
  Rig rig;
  const auto timed = [&] {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < 20; ++i) rig.Generate(Rig::IdsRequest({1, 2}, 4));
    return std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() -
                                                                 start) /
           20;
  };
  // 32 clients at once take about that much longer each.
  const int64_t latency_us = std::max<int64_t>(200, timed().count()) * 16;
  std::atomic<int> next{0};
  std::atomic<int> num_ok{0}, num_late{0}, num_other{0};
  const auto client = [&](int seed) {
    std::mt19937 random(static_cast<uint32_t>(seed));
    for (int i; (i = next.fetch_add(1)) < 10000;) {
      grpc::ClientContext context;
      context.set_deadline(std::chrono::system_clock::now() +
                           std::chrono::microseconds(random() % (2 * latency_us)));
      const pb::GenerateRequest request = Rig::IdsRequest({1, 2}, 4);
      StatusCode code;
      if (i % 2 == 0) {
        pb::GenerateResult result;
        code = rig.stub().GenerateUnary(&context, request, &result).error_code();
        if (code == StatusCode::OK) {
          EXPECT_EQ(result.outputs(0).token_ids_size(), 4);
        }
      } else {
        const Answer answer = rig.Generate(context, request);
        code = answer.status.error_code();
        if (code == StatusCode::OK) {
          EXPECT_EQ(answer.token_ids.at(0).size(), 4u);
        }
      }
      num_ok += code == StatusCode::OK;
      num_late += code == StatusCode::DEADLINE_EXCEEDED || code == StatusCode::CANCELLED;
      num_other += code != StatusCode::OK && code != StatusCode::DEADLINE_EXCEEDED &&
                   code != StatusCode::CANCELLED;
    }
  };
  std::vector<std::thread> clients;
  for (int i = 0; i < 32; ++i) clients.emplace_back(client, i);
  for (std::thread& t : clients) t.join();
  EXPECT_EQ(num_other, 0);
  EXPECT_GT(num_ok, 200);
  EXPECT_GT(num_late, 200);
  rig.ExpectIdle();
  rig.Probe();
}

}  // namespace
}  // namespace quire::server_test
