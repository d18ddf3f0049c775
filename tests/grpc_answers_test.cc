// Outputs of ours become messages of other engines' protos. Expected shapes follow the protos'
// publishers: vLLM's gRPC servicer, openengine v0.1.0, Triton's README of its vLLM backend.
#include <gtest/gtest.h>

#include <cstring>

#include "server/grpc/zip.h"
#include "server/kserve/infer_answer.h"
#include "server/openengine/oe_answer.h"
#include "server/vllm/vllm_answer.h"

namespace quire {
namespace {

namespace oe = ::openengine::v1;

constexpr TokenId kEos = 2;

Generation MakeGeneration(int32_t n, int32_t num_logprobs, int32_t prompt_logprobs,
                          std::vector<TokenId> stop_token_ids = {}) {
  auto request = std::make_shared<Request>();
  request->prompt = {10, 11, 12};
  request->sampling.n = n;
  request->sampling.num_logprobs = num_logprobs;
  request->prompt_logprobs = prompt_logprobs;
  request->stop.stop_token_ids = std::move(stop_token_ids);
  Generation g;
  g.client_id = "id";
  g.request = request;
  return g;
}

Delta MakeDelta(int32_t branch, std::vector<TokenId> ids, bool logprobs = false) {
  Delta delta{.branch = branch, .text = "t", .token_ids = std::move(ids)};
  for (const TokenId id : delta.token_ids) {
    if (!logprobs) break;
    Sampled sampled{.token = id, .logprob = -0.5f, .top = {{id, -0.5f}, {7, -1.5f}}};
    sampled.rank = 1;
    delta.logprobs.push_back(sampled);
  }
  return delta;
}

std::vector<PromptLogprob> PromptLogprobs(int32_t first, int32_t last) {
  std::vector<PromptLogprob> logprobs;
  for (int32_t i = first; i <= last; ++i) {
    logprobs.push_back({i, {.token = 10 + i, .logprob = -1.0f * static_cast<float>(i)}});
  }
  return logprobs;
}

ServedModel Model() {
  ServedModel model;
  model.name = "m";
  model.eos_token_ids = {kEos};
  auto tokenizer = Tokenizer::FromJson(
      R"({"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "c": 2, "h": 7}, "merges": []},
          "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "use_regex": true},
          "decoder": {"type": "ByteLevel"}})",
      "");
  CHECK(tokenizer.ok(), "{}", Message(tokenizer.status()));
  model.tokenizer = *std::move(tokenizer);
  return model;
}

// ---- vllm.grpc.engine ----

TEST(VllmAnswer, ChunksCarryWhatIsNewAndTheCompleteRepeatsTheLast) {
  VllmAnswer answer(MakeGeneration(1, 2, -1), /*stream=*/true, {kEos});
  answer.Accepted({.prompt_tokens = 3, .cached_tokens = 2});
  auto messages = answer.Add(MakeDelta(0, {5, 6}, true));
  ASSERT_EQ(messages.size(), 1u);
  const auto& chunk = messages[0].chunk();
  EXPECT_EQ(chunk.token_ids_size(), 2);
  EXPECT_EQ(chunk.completion_tokens(), 2u);
  EXPECT_EQ(chunk.prompt_tokens(), 3u);
  EXPECT_EQ(chunk.cached_tokens(), 2u);
  EXPECT_EQ(chunk.output_logprobs().token_ids(1), 6u);
  EXPECT_EQ(chunk.output_logprobs().top_logprobs(0).token_ids(1), 7u);
  EXPECT_FALSE(chunk.has_input_logprobs());
  messages = answer.Add(MakeDelta(0, {7}));
  EXPECT_EQ(messages[0].chunk().completion_tokens(), 1u);
  const RequestStats stats{
      .prompt_tokens = 3, .cached_tokens = 2, .draft_tokens = 8, .accepted_draft_tokens = 6};
  messages = answer.End({.reason = FinishReason::kLength}, &stats);
  ASSERT_EQ(messages.size(), 1u);
  const auto& complete = messages[0].complete();
  ASSERT_EQ(complete.output_ids_size(), 1);
  EXPECT_EQ(complete.output_ids(0), 7u);
  EXPECT_EQ(complete.completion_tokens(), 1u);
  EXPECT_EQ(complete.finish_reason(), "length");
  EXPECT_EQ(complete.spec_draft_tokens(), 8u);
  EXPECT_EQ(complete.spec_accepted_tokens(), 6u);
  EXPECT_TRUE(answer.TakeCompletes(stats).empty());
}

TEST(VllmAnswer, WithoutStreamThereAreOnlyCompletes) {
  VllmAnswer answer(MakeGeneration(2, 0, -1), /*stream=*/false, {kEos});
  EXPECT_TRUE(answer.Add(MakeDelta(1, {5}, true)).empty());
  EXPECT_TRUE(answer.Add(MakeDelta(0, {6}, true)).empty());
  EXPECT_TRUE(answer.Add(MakeDelta(1, {7}, true)).empty());
  EXPECT_TRUE(answer.End({.branch = 1, .reason = FinishReason::kLength}, nullptr).empty());
  const RequestStats stats{.prompt_tokens = 3};
  EXPECT_TRUE(answer.End({.branch = 0, .reason = FinishReason::kStop}, &stats).empty());
  const auto messages = answer.TakeCompletes(stats);
  ASSERT_EQ(messages.size(), 2u);
  EXPECT_EQ(messages[0].complete().output_ids_size(), 1);
  EXPECT_EQ(messages[0].complete().finish_reason(), "stop");
  EXPECT_EQ(messages[1].complete().index(), 1u);
  EXPECT_EQ(messages[1].complete().output_ids_size(), 2);
  EXPECT_EQ(messages[1].complete().completion_tokens(), 2u);
  EXPECT_EQ(messages[1].complete().output_logprobs().token_logprobs_size(), 2);
  // num_logprobs 0: the token's own, no best ones.
  EXPECT_EQ(messages[1].complete().output_logprobs().top_logprobs_size(), 0);
}

TEST(VllmAnswer, WhatMatched) {
  const auto end = [](BranchEnd e) {
    VllmAnswer answer(MakeGeneration(1, -1, -1, {9}), true, {kEos, 9});
    return answer.End(e, nullptr)[0].complete();
  };
  EXPECT_EQ(end({.reason = FinishReason::kStop, .stop_token = 4}).matched_token_id(), 4u);
  EXPECT_EQ(end({.reason = FinishReason::kStop, .stop_string = "x"}).matched_stop_str(), "x");
  // The model's own end, unless the client asked for it.
  using Complete = ::vllm::grpc::engine::GenerateComplete;
  EXPECT_EQ(end({.reason = FinishReason::kStop, .stop_token = kEos}).matched_stop_case(),
            Complete::MATCHED_STOP_NOT_SET);
  EXPECT_EQ(end({.reason = FinishReason::kStop, .stop_token = 9}).matched_token_id(), 9u);
}

TEST(VllmAnswer, PromptLogprobsComeOncePerOutput) {
  VllmAnswer answer(MakeGeneration(2, -1, 0), true, {kEos});
  answer.AddPromptLogprobs(PromptLogprobs(1, 1));
  answer.AddPromptLogprobs(PromptLogprobs(2, 2));
  for (const int32_t branch : {0, 1}) {
    const auto input = answer.Add(MakeDelta(branch, {5}))[0].chunk().input_logprobs();
    ASSERT_EQ(input.token_logprobs_size(), 3);
    EXPECT_FALSE(input.token_logprobs(0).has_value());
    EXPECT_EQ(input.token_logprobs(2).value(), -2.0f);
    EXPECT_EQ(input.token_ids(0), 10u);
    EXPECT_EQ(input.token_ids(2), 12u);
    EXPECT_EQ(input.top_logprobs_size(), 0);
    EXPECT_FALSE(answer.Add(MakeDelta(branch, {5}))[0].chunk().has_input_logprobs());
  }
}

TEST(VllmAnswer, AnAbortIsToldByEveryOutput) {
  VllmAnswer answer(MakeGeneration(2, -1, -1), true, {kEos});
  EXPECT_EQ(answer.End({.branch = 0, .reason = FinishReason::kLength}, nullptr).size(), 1u);
  EXPECT_FALSE(answer.told_aborted());
  const auto end = answer.End({.branch = 1, .reason = FinishReason::kCancelled}, nullptr);
  EXPECT_EQ(end[0].complete().finish_reason(), "abort");
  EXPECT_TRUE(answer.told_aborted());
  EXPECT_TRUE(VllmAnswer(MakeGeneration(1, -1, -1), true, {})
                  .End({.reason = FinishReason::kDeadline}, nullptr)
                  .empty());
}

// ---- openengine.v1 ----

TEST(OpenEngineAnswer, TokensTextAndCandidates) {
  const ServedModel model = Model();
  OeAnswer answer(MakeGeneration(1, 2, -1), {.output_logprobs = true}, model);
  const auto event = answer.Tokens(MakeDelta(0, {0, 7}, true));
  EXPECT_EQ(event.request_id(), "id");
  EXPECT_EQ(event.token().text(), "t");
  ASSERT_EQ(event.token().tokens_size(), 2);
  EXPECT_EQ(event.token().tokens(0).token(), "a");
  EXPECT_EQ(event.token().tokens(0).rank(), 1u);
  EXPECT_EQ(event.token().tokens(0).candidates(1).token(), "h");
  EXPECT_EQ(event.token().tokens(0).candidates(1).rank(), 2u);
  // Without being asked for: ids and no logprobs.
  OeAnswer plain(MakeGeneration(1, -1, -1), {}, model);
  const auto ids = plain.Tokens(MakeDelta(0, {0}));
  EXPECT_EQ(ids.token().tokens(0).token_id(), 0u);
  EXPECT_FALSE(ids.token().tokens(0).has_logprob());
}

TEST(OpenEngineAnswer, PromptFromItsStart) {
  const ServedModel model = Model();
  OeAnswer all(MakeGeneration(1, -1, 0), {}, model);
  EXPECT_EQ(all.Prompt(PromptLogprobs(1, 1))->prompt().tokens_size(), 2);
  EXPECT_EQ(all.Prompt(PromptLogprobs(2, 2))->prompt().tokens_size(), 1);
  OeAnswer late(MakeGeneration(1, -1, 0), {.prompt_logprob_start = 2}, model);
  EXPECT_FALSE(late.Prompt(PromptLogprobs(1, 1)).has_value());
  EXPECT_EQ(late.Prompt(PromptLogprobs(2, 2))->prompt().tokens(0).token_id(), 12u);
}

TEST(OpenEngineAnswer, EndsAndErrors) {
  const ServedModel model = Model();
  OeAnswer answer(MakeGeneration(2, -1, -1, {9}), {}, model);
  auto end = answer.End({.branch = 0, .reason = FinishReason::kStop, .stop_token = kEos}, nullptr);
  EXPECT_EQ(end->finished().stop_match().eos_token_id(), 2u);
  EXPECT_FALSE(end->has_usage());
  EXPECT_FALSE(answer.all_ended());
  const RequestStats stats{.prompt_tokens = 3, .completion_tokens = 4, .cached_tokens = 1};
  end = answer.End({.branch = 1, .reason = FinishReason::kStop, .stop_token = 9}, &stats);
  EXPECT_EQ(end->finished().stop_match().stop_token_id(), 9u);
  EXPECT_EQ(end->usage().total_tokens(), 7u);
  EXPECT_EQ(end->usage().cached_prompt_tokens(), 1u);
  EXPECT_TRUE(answer.all_ended());
  const auto error = answer.Error(absl::ResourceExhaustedError("slow"), stats).error();
  EXPECT_EQ(error.code(), oe::ERROR_CODE_OVERLOADED);
  EXPECT_TRUE(error.retryable());
  EXPECT_FALSE(answer.Error(absl::InternalError("x"), stats).error().retryable());
}

// ---- KServe ----

KserveAnswer MakeKserve(KserveOptions options, const ServedModel& model) {
  KserveAnswer answer(std::move(options), "prompt", model);
  answer.Begin(MakeGeneration(1, -1, -1));
  return answer;
}

TEST(KserveAnswer, OneResponseWithThePrompt) {
  const ServedModel model = Model();
  KserveAnswer answer = MakeKserve({.id = "r", .num_input_tokens = true}, model);
  EXPECT_FALSE(answer.Add(MakeDelta(0, {1})).has_value());
  EXPECT_FALSE(answer.Add(MakeDelta(0, {1})).has_value());
  answer.End({.reason = FinishReason::kStop});
  const auto response = answer.Finish();
  ASSERT_TRUE(response.has_value());
  EXPECT_EQ(response->id(), "r");
  EXPECT_EQ(response->model_name(), "m");
  ASSERT_EQ(response->outputs_size(), 2);
  EXPECT_EQ(response->raw_output_contents(0), std::string("\x08\0\0\0prompttt", 12));
  EXPECT_EQ(response->outputs(0).shape(0), 1);
  EXPECT_EQ(response->outputs(1).datatype(), "UINT32");
  EXPECT_EQ(response->raw_output_contents(1), std::string("\3\0\0\0", 4));
}

TEST(KserveAnswer, AStreamTellsDeltasAndItsEnd) {
  const ServedModel model = Model();
  KserveAnswer answer = MakeKserve(
      {.stream = true, .echo_prompt = false, .finish_reason = true, .final_response = true}, model);
  const auto is_final = [](const inference::ModelInferResponse& r) {
    return r.parameters().at("triton_final_response").bool_param();
  };
  const auto delta = answer.Add(MakeDelta(0, {1}));
  EXPECT_EQ(delta->raw_output_contents(0), std::string("\1\0\0\0t", 5));
  EXPECT_EQ(delta->raw_output_contents(1), std::string("\4\0\0\0None", 8));
  EXPECT_FALSE(is_final(*delta));
  answer.End({.reason = FinishReason::kLength});
  const auto last = answer.Finish();
  EXPECT_EQ(last->raw_output_contents(0), std::string("\0\0\0\0", 4));
  EXPECT_EQ(last->raw_output_contents(1), std::string("\6\0\0\0length", 10));
  EXPECT_TRUE(is_final(*last));
}

TEST(KserveAnswer, NothingMoreIsSaidThanWasAskedFor) {
  const ServedModel model = Model();
  KserveAnswer answer = MakeKserve({.stream = true, .echo_prompt = false}, model);
  EXPECT_TRUE(answer.Add(MakeDelta(0, {1})).has_value());
  EXPECT_FALSE(answer.Finish().has_value());
  // But a request without any text gets its answer.
  KserveAnswer silent = MakeKserve({.stream = true, .echo_prompt = false}, model);
  EXPECT_EQ(silent.Finish()->raw_output_contents(0), std::string("\0\0\0\0", 4));
}

TEST(KserveAnswer, LogprobsAndTheirSum) {
  const ServedModel model = Model();
  KserveAnswer answer = MakeKserve({.echo_prompt = false,
                                    .text = false,
                                    .cumulative_logprob = true,
                                    .logprobs = true,
                                    .num_output_tokens = true},
                                   model);
  answer.Add(MakeDelta(0, {0}, true));
  answer.Add(MakeDelta(0, {1}, true));
  const auto response = *answer.Finish();
  float sum = 0;
  std::memcpy(&sum, response.raw_output_contents(0).data(), sizeof(sum));
  EXPECT_EQ(sum, -1.0f);
  EXPECT_EQ(response.raw_output_contents(1).substr(4),
            R"([{"0":{"logprob":-0.5,"rank":1,"decoded_token":"a"},)"
            R"("7":{"logprob":-1.5,"rank":2,"decoded_token":"h"}}, )"
            R"({"1":{"logprob":-0.5,"rank":1,"decoded_token":"b"},)"
            R"("7":{"logprob":-1.5,"rank":2,"decoded_token":"h"}}])");
  EXPECT_EQ(response.raw_output_contents(2), std::string("\2\0\0\0", 4));
}

// ---- ZIP: read back by offsets of PKWARE's note; Python's zipfile reads one in e2e ----

TEST(Zip, HoldsWhatWasPutIn) {
  const std::string big(300'000, 'x');
  const auto zip = MakeZip({{"a.txt", "hello"}, {"empty", ""}, {"big", big}});
  ASSERT_TRUE(zip.ok());
  EXPECT_EQ(zip->substr(0, 4), "PK\3\4");
  const auto at = [&zip](size_t offset, size_t bytes) {
    size_t value = 0;
    for (size_t i = bytes; i-- > 0;) {
      value = value << 8 | static_cast<uint8_t>(zip->at(offset + i));
    }
    return value;
  };
  const size_t end = zip->size() - 22;
  EXPECT_EQ(zip->substr(end, 4), "PK\5\6");
  EXPECT_EQ(at(end + 10, 2), 3u);
  const size_t directory = at(end + 16, 4);
  EXPECT_EQ(directory + at(end + 12, 4), end);
  EXPECT_EQ(zip->substr(directory, 4), "PK\1\2");
  EXPECT_EQ(zip->substr(directory + 46, at(directory + 28, 2)), "a.txt");
  EXPECT_EQ(at(directory + 16, 4), 0x3610a686u);  // CRC-32 of "hello"
  EXPECT_EQ(at(directory + 24, 4), 5u);
  EXPECT_LT(zip->size(), 10'000u);
}

}  // namespace
}  // namespace quire
