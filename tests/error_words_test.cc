// tests/error_words_test.cc -- an error names fields as the client's own protocol does, whatever
// part of the daemon found it; and no limit that it names is below what is possible.
#include <gtest/gtest.h>

#include "base/json.h"
#include "inference/grpc_service.grpc.pb.h"
#include "openengine/v1/openengine.grpc.pb.h"
#include "server/field_names.h"
#include "server/openai/call.h"
#include "tests/support/raw_http.h"
#include "tests/support/server_rig.h"
#include "vllm/grpc/engine/vllm_engine.grpc.pb.h"

namespace quire::server_test {
namespace {

namespace oe = ::openengine::v1;
namespace ve = ::vllm::grpc::engine;

TEST(FieldNames, WholeWordsWhereverTheyStand) {
  const FieldNames names = {
      {"stopping.", "s."}, {"stopping.stop", "text"}, {"n", "count"}, {"max_tokens", "limit"}};
  EXPECT_EQ(Renamed("n=3 is too many; lower n or max_tokens", names),
            "count=3 is too many; lower count or limit");
  EXPECT_EQ(Renamed("stopping.stop[0]='n' (n=1)", names), "text[0]='n' (count=1)");
  EXPECT_EQ(Renamed("stopping.stop_token_ids; stopping.min_tokens", names),
            "s.stop_token_ids; s.min_tokens");
  // Parts of words and values are none.
  EXPECT_EQ(Renamed("min_n, nn, beam.n, model=n, x-n, max_tokens_all", names),
            "min_n, nn, beam.n, model=n, x-n, max_tokens_all");
  EXPECT_EQ(Renamed("", names), "");
}

TEST(FieldNames, TheRestOfAStatusStays) {
  absl::Status status(absl::StatusCode::kResourceExhausted, "n=3");
  status.SetPayload("url", absl::Cord("later"));
  const absl::Status renamed = WithNames(status, {{"n", "count"}});
  EXPECT_EQ(renamed.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(Message(renamed), "count=3");
  EXPECT_EQ(renamed.GetPayload("url"), absl::Cord("later"));
  EXPECT_TRUE(WithNames(absl::OkStatus(), {{"n", "count"}}).ok());
}

std::string QuireError(Rig& rig, const pb::GenerateRequest& request) {
  return rig.Generate(request).status.error_message();
}

std::string VllmError(Rig& rig, const ve::GenerateRequest& request) {
  grpc::ClientContext context;
  const auto reader = ve::VllmEngine::NewStub(rig.channel())->Generate(&context, request);
  ve::GenerateResponse response;
  while (reader->Read(&response)) {
  }
  return reader->Finish().error_message();
}

std::string OeError(Rig& rig, const oe::GenerateRequest& request) {
  grpc::ClientContext context;
  const auto reader = oe::Inference::NewStub(rig.channel())->Generate(&context, request);
  oe::GenerateResponse response;
  std::string error;
  while (reader->Read(&response)) error = response.error().message();
  const grpc::Status status = reader->Finish();
  return status.ok() ? error : status.error_message();
}

std::string KserveError(Rig& rig, const std::string& sampling) {
  inference::ModelInferRequest request;
  request.set_model_name("scripted");
  const auto text = [&request](const char* name, const std::string& value) {
    auto& input = *request.add_inputs();
    input.set_name(name);
    input.set_datatype("BYTES");
    input.add_shape(1);
    input.mutable_contents()->add_bytes_contents(value);
  };
  text("text_input", " the");
  text("sampling_parameters", sampling);
  grpc::ClientContext context;
  inference::ModelInferResponse response;
  return inference::GRPCInferenceService::NewStub(rig.channel())
      ->ModelInfer(&context, request, &response)
      .error_message();
}

// {message, param}.
std::pair<std::string, std::string> HttpError(Rig& rig, const std::string& body) {
  http_test::RawClient client(rig.daemon().http_port());
  client.Send(http_test::Post("/v1/completions", body));
  const Json json = *Json::Parse(client.Read().body);
  return {std::string(json["error"]["message"].as_string().value_or("")),
          std::string(json["error"]["param"].as_string().value_or(""))};
}

// A context of 512, a prompt of one token: 511 are left.
TEST(ErrorWords, MaxTokensBeyondTheContext) {
  Rig rig;
  const std::string rest =
      "=100000 exceeds 511: the prompt has 1 tokens of max_model_len=512; lower it or shorten the "
      "prompt";
  ASSERT_EQ(rig.Encode(" the").size(), 1u);
  EXPECT_EQ(QuireError(rig, Rig::TextRequest(" the", 100000)), "stopping.max_tokens" + rest);
  ve::GenerateRequest vllm;
  vllm.set_text(" the");
  vllm.mutable_sampling_params()->set_max_tokens(100000);
  EXPECT_EQ(VllmError(rig, vllm), "sampling_params.max_tokens" + rest);
  oe::GenerateRequest openengine;
  openengine.set_prompt(" the");
  openengine.mutable_stopping()->set_max_tokens(100000);
  EXPECT_EQ(OeError(rig, openengine), "stopping.max_tokens" + rest);
  EXPECT_EQ(KserveError(rig, R"({"max_tokens": 100000})"), "sampling_parameters.max_tokens" + rest);
  const auto [message, param] = HttpError(rig, R"({"prompt": " the", "max_tokens": 100000})");
  EXPECT_EQ(message, "max_tokens" + rest);
  EXPECT_EQ(param, "max_tokens");
}

TEST(ErrorWords, APromptBeyondTheContext) {
  Rig rig;
  const std::string error = QuireError(rig, Rig::IdsRequest(std::vector<TokenId>(512, 7), 100000));
  EXPECT_EQ(error,
            "prompt has 512 tokens, limit is 511 (max_model_len=512 less one new token); shorten "
            "the prompt");
}

// What the scheduler finds, after the request was let in.
TEST(ErrorWords, WhatCanNeverFit) {
  RigOptions options;
  options.num_blocks = 20;  // of 8 tokens
  Rig rig(options);
  ve::GenerateRequest vllm;
  vllm.set_text(" the");
  vllm.mutable_sampling_params()->set_max_tokens(400);
  EXPECT_NE(VllmError(rig, vllm).find("lower max_tokens or n"), std::string::npos);
  oe::GenerateRequest openengine;
  openengine.set_prompt(" the");
  openengine.mutable_stopping()->set_max_tokens(100);
  openengine.mutable_sampling()->set_num_sequences(3);
  const std::string error = OeError(rig, openengine);
  EXPECT_NE(error.find("num_sequences=3"), std::string::npos) << error;
  EXPECT_NE(error.find("lower max_tokens or num_sequences"), std::string::npos) << error;
  const std::string beams =
      HttpError(rig, R"({"prompt": "hi", "max_tokens": 100, "n": 3, "use_beam_search": true,
                         "temperature": 0})")
          .first;
  EXPECT_NE(beams.find("n=3"), std::string::npos) << beams;
  EXPECT_EQ(beams.find("beam_width"), std::string::npos) << beams;
}

TEST(ErrorWords, OtherFieldsByHttp) {
  RigOptions options;
  options.server.max_message_bytes = 4096;
  Rig rig(options);
  const struct {
    const char* members;
    const char* param;
    std::vector<std::string> parts;
  } kCases[] = {
      {R"("priority": 2000)", "priority", {"priority=2000 is outside [-1000, 1000]"}},
      {R"("min_tokens": 9)", "min_tokens", {"min_tokens=9", "max_tokens=4"}},
      {R"("temperature": 0, "best_of": 2)", "best_of", {"best_of=2 needs a temperature above 0"}},
      {R"("use_beam_search": true, "n": 2, "temperature": 0, "logprobs": 1)",
       "logprobs",
       {"logprobs=1 must be at most 0 with n=2"}},
      {R"("use_beam_search": true, "n": 2, "best_of": 3, "temperature": 0, "top_k": 5)",
       "top_k",
       {"top_k=5 has no effect on a search with best_of=3"}},
      {R"("guided_regex": "(")", "guided_regex", {"guided_regex"}},
      {R"("structured_outputs": {"grammar": "x"})",
       "structured_outputs.grammar",
       {"structured_outputs.grammar"}},
      {R"("n": 100, "logprobs": 20)", "", {"max_tokens=4, n=100, logprobs=20", "have it streamed"}},
  };
  for (const auto& c : kCases) {
    const auto [message, param] =
        HttpError(rig, fmt::format(R"({{"prompt": "hi", "max_tokens": 4, {}}})", c.members));
    for (const std::string& part : c.parts) {
      EXPECT_NE(message.find(part), std::string::npos) << c.members << ": " << message;
    }
    EXPECT_EQ(param, c.param) << message;
    for (const char* ours : {"stopping.", "sampling.", "response.", "beam_width", "num_logprobs",
                             "guided.", "scheduling."}) {
      EXPECT_EQ(message.find(ours), std::string::npos) << message;
    }
  }
}

// The limit's name is that which the body has.
TEST(ErrorWords, EachRouteHasItsNames) {
  Rig rig;
  ServedModel model;
  model.name = "m";
  // The rig's own.
  model.tokenizer = std::shared_ptr<const Tokenizer>(std::shared_ptr<void>(), &rig.tokenizer());
  const auto renamed = [&model](CallReader reader, const std::string& body, const char* message) {
    const auto call = reader(body, model, {.id = "x", .created = 1, .model = &model});
    if (!call.ok()) return Message(call.status());
    return Renamed(message, call->names);
  };
  const std::string chat = R"({"messages": [{"role": "user", "content": "hi"}])";
  const char* const kMessage = "stopping.max_tokens=5; lower max_tokens, response.num_logprobs=1";
  EXPECT_EQ(renamed(ReadChat, chat + R"(, "max_tokens": 5})", kMessage),
            "max_tokens=5; lower max_tokens, top_logprobs=1");
  EXPECT_EQ(renamed(ReadChat, chat + R"(, "max_completion_tokens": 5})", kMessage),
            "max_completion_tokens=5; lower max_completion_tokens, top_logprobs=1");
  EXPECT_EQ(renamed(ReadResponse, R"({"input": "hi", "max_output_tokens": 5})", kMessage),
            "max_output_tokens=5; lower max_output_tokens, top_logprobs=1");
  EXPECT_EQ(renamed(ReadCompletion, R"({"prompt": "hi", "max_tokens": 5})", kMessage),
            "max_tokens=5; lower max_tokens, logprobs=1");
  EXPECT_EQ(renamed(ReadChat, chat + R"(, "response_format": {"type": "json_object"}})",
                    "guided.json_object: no"),
            "response_format: no");
  EXPECT_EQ(renamed(ReadResponse, R"({"input": "hi", "text": {"format": {"type": "json_object"}}})",
                    "guided.json_object: no"),
            "text.format: no");
}

}  // namespace
}  // namespace quire::server_test
