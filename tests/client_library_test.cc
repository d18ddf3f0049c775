// tests/client_library_test.cc -- the C++ client library against the daemon over a scripted
// executor.
#include <gtest/gtest.h>

#include <thread>

#include "clients/cpp/generation_client.h"
#include "tests/support/server_rig.h"

namespace quire::server_test {
namespace {

GenerationClient ClientOf(Rig& rig, const std::string& key = "") {
  auto channel =
      Connect({.address = "127.0.0.1:" + std::to_string(rig.daemon().port()), .api_key = key});
  EXPECT_TRUE(channel.ok()) << channel.status();
  return GenerationClient(*std::move(channel));
}

TEST(ClientLibrary, StreamedEqualsUnary) {
  Rig rig;
  GenerationClient client = ClientOf(rig);
  pb::GenerateRequest request = Rig::TextRequest("client library text", 20);
  request.mutable_sampling()->set_n(3);
  request.mutable_sampling()->set_seed(1);
  request.mutable_response()->set_num_logprobs(1);
  request.mutable_response()->set_prompt_logprobs(0);
  const absl::StatusOr<pb::GenerateResult> whole = client.Generate(request);
  ASSERT_TRUE(whole.ok()) << whole.status();
  AnswerCollector answer;
  const absl::Status status = client.Stream(request, [&](const pb::GenerateEvent& event) {
    EXPECT_FALSE(answer.complete());
    answer.Take(event);
    return true;
  });
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_TRUE(answer.complete());
  ASSERT_EQ(whole->outputs_size(), 3);
  ASSERT_EQ(answer.result().outputs_size(), 3);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(answer.result().outputs(i).SerializeAsString(),
              whole->outputs(i).SerializeAsString());
  }
  EXPECT_GT(whole->prompt_logprobs_size(), 0);
  EXPECT_EQ(answer.result().prompt_logprobs_size(), whole->prompt_logprobs_size());
  EXPECT_EQ(answer.result().usage().completion_tokens(), 60u);
  rig.ExpectIdle();
}

TEST(ClientLibrary, HavingEnoughEndsTheWork) {
  Rig rig;
  rig.executor.Pause(milliseconds(1));
  GenerationClient client = ClientOf(rig);
  int deltas = 0;
  const absl::Status status = client.Stream(
      Rig::TextRequest("a", 500),
      [&](const pb::GenerateEvent& event) { return (deltas += event.has_delta()) < 3; });
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled) << status;
  rig.ExpectIdle();
}

TEST(ClientLibrary, TimeoutsAndErrorsAreStatuses) {
  Rig rig;
  GenerationClient client = ClientOf(rig, "a key that nobody asks for");
  rig.executor.SetOpen(false);
  EXPECT_EQ(client.Generate(Rig::TextRequest("a", 5), milliseconds(50)).status().code(),
            absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(client
                .Stream(
                    Rig::TextRequest("a", 5), [](const auto&) { return true; }, milliseconds(50))
                .code(),
            absl::StatusCode::kDeadlineExceeded);
  rig.executor.SetOpen(true);
  pb::GenerateRequest bad = Rig::TextRequest("a", 5);
  bad.mutable_sampling()->set_temperature(-1);
  const absl::Status refused = client.Generate(bad).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(std::string(refused.message()).find("temperature=-1"), std::string::npos) << refused;
  EXPECT_EQ(Connect({.client_key = "k"}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Connect({.root_certificates = "c"}).status().code(),
            absl::StatusCode::kInvalidArgument);
  GenerationClient nobody(*Connect({.address = "127.0.0.1:1"}));
  EXPECT_EQ(nobody.Generate(Rig::TextRequest("a", 1)).status().code(),
            absl::StatusCode::kUnavailable);
  rig.ExpectIdle();
}

TEST(ClientLibrary, TokensAndAborts) {
  Rig rig;
  GenerationClient client = ClientOf(rig);
  const auto ids = client.Tokenize("some text");
  ASSERT_TRUE(ids.ok());
  EXPECT_EQ(*ids, rig.Encode("some text"));
  EXPECT_EQ(client.Detokenize(*ids).value_or(""), "some text");
  rig.executor.SetOpen(false);
  pb::GenerateRequest request = Rig::TextRequest("a", 5);
  request.set_request_id("mine");
  absl::Status status;
  std::thread thread([&] { status = client.Generate(request).status(); });
  const std::vector<std::string> names = {"mine", "nobody's"};
  std::vector<std::string> aborted;
  EXPECT_TRUE(rig.Eventually([&] {
    aborted = client.Abort(names).value_or(std::vector<std::string>());
    return !aborted.empty();
  }));
  rig.executor.SetOpen(true);
  thread.join();
  EXPECT_EQ(aborted, std::vector<std::string>{"mine"});
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled) << status;
  rig.ExpectIdle();
}

// What is cut is never taken for whole.
TEST(ClientLibrary, AnAnswerIsCompleteWhenAllHasEnded) {
  AnswerCollector answer;
  EXPECT_FALSE(answer.complete());
  pb::GenerateEvent event;
  for (const uint32_t index : {2u, 0u, 1u, 0u}) {
    event.mutable_delta()->set_output_index(index);
    event.mutable_delta()->set_text(std::to_string(index));
    answer.Take(event);
  }
  for (const uint32_t index : {1u, 2u, 0u}) {
    event.mutable_finished()->set_output_index(index);
    EXPECT_FALSE(answer.complete());
    if (index == 0) event.mutable_usage()->set_prompt_tokens(1);
    answer.Take(event);
  }
  EXPECT_TRUE(answer.complete());
  ASSERT_EQ(answer.result().outputs_size(), 3);
  EXPECT_EQ(answer.result().outputs(0).text(), "00");
  EXPECT_EQ(answer.result().outputs(1).text(), "1");
  EXPECT_EQ(answer.result().outputs(2).text(), "2");
}

}  // namespace
}  // namespace quire::server_test
