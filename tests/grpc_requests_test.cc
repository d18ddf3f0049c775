// Requests of other engines' protos become ours: every field, the rules of zero and of absence, and
// what is refused by name. Expected values follow the protos' publishers: vLLM's gRPC servicer,
// TensorRT-LLM's names of beam search, Triton's README of its vLLM backend.
#include <gtest/gtest.h>

#include <cmath>

#include "google/protobuf/util/message_differencer.h"
#include "server/grpc/call.h"
#include "server/kserve/infer_request.h"
#include "server/kserve/sampling_json.h"
#include "server/openengine/oe_request.h"
#include "server/vllm/vllm_request.h"

namespace quire {
namespace {

namespace ve = ::vllm::grpc::engine;
namespace oe = ::openengine::v1;
using google::protobuf::util::MessageDifferencer;

ServedModel Model() {
  ServedModel model;
  model.name = "m";
  model.max_model_len = 100;
  model.vocab_size = 1000;
  return model;
}

template <typename T>
void ExpectRefused(const absl::StatusOr<T>& result, const std::string& part) {
  ASSERT_FALSE(result.ok()) << part;
  EXPECT_EQ(result.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(Message(result.status()).find(part), std::string::npos) << Message(result.status());
}

// ---- vllm.grpc.engine ----

ve::GenerateRequest VllmIds(const std::vector<uint32_t>& ids) {
  ve::GenerateRequest r;
  r.mutable_tokenized()->mutable_input_ids()->Add(ids.begin(), ids.end());
  return r;
}

TEST(VllmRequest, ZeroMeansTheDefaultWhereTheServicerSaysSo) {
  const auto ours = FromVllm(VllmIds({1, 2}));
  ASSERT_TRUE(ours.ok());
  pb::GenerateRequest expected;
  expected.mutable_token_ids()->add_ids(1);
  expected.mutable_token_ids()->add_ids(2);
  // temperature, top_p, repetition_penalty, n, max_tokens and seed stay absent: 1, 1, 1, 1, the
  // rest of the context, drawn. The others are zero because they were sent as zero.
  expected.mutable_sampling()->set_top_k(0);
  expected.mutable_sampling()->set_min_p(0);
  expected.mutable_sampling()->set_frequency_penalty(0);
  expected.mutable_sampling()->set_presence_penalty(0);
  expected.mutable_stopping()->set_min_tokens(0);
  expected.mutable_stopping()->set_ignore_eos(false);
  expected.mutable_stopping()->set_include_stop_in_output(false);
  expected.mutable_response()->set_text(false);
  expected.mutable_response()->set_token_ids(true);
  expected.mutable_response()->set_skip_special_tokens(false);
  EXPECT_TRUE(MessageDifferencer::Equals(*ours, expected)) << ours->DebugString();
}

TEST(VllmRequest, EveryFieldArrives) {
  ve::GenerateRequest r;
  r.set_request_id("id");
  r.set_text("text");
  ve::SamplingParams& p = *r.mutable_sampling_params();
  p.set_temperature(0);
  p.set_top_p(0.5f);
  p.set_top_k(7);
  p.set_min_p(0.25f);
  p.set_frequency_penalty(-1);
  p.set_presence_penalty(1);
  p.set_repetition_penalty(1.5f);
  p.set_max_tokens(9);
  p.set_min_tokens(2);
  p.add_stop("a");
  p.add_stop_token_ids(3);
  p.set_skip_special_tokens(true);
  p.set_ignore_eos(true);
  p.set_n(4);
  p.set_logprobs(5);
  p.set_prompt_logprobs(0);
  p.set_seed(-2);
  p.set_include_stop_str_in_output(true);
  (*p.mutable_logit_bias())[8] = -3;
  p.mutable_choice()->add_choices("x");
  const auto ours = FromVllm(r);
  ASSERT_TRUE(ours.ok());
  pb::GenerateRequest expected;
  expected.set_request_id("id");
  expected.set_text("text");
  pb::SamplingParams& s = *expected.mutable_sampling();
  s.set_temperature(0);
  s.set_top_p(0.5f);
  s.set_top_k(7);
  s.set_min_p(0.25f);
  s.set_frequency_penalty(-1);
  s.set_presence_penalty(1);
  s.set_repetition_penalty(1.5f);
  s.set_n(4);
  s.set_seed(0xfffffffffffffffe);
  (*s.mutable_logit_bias())[8] = -3;
  pb::StoppingOptions& stop = *expected.mutable_stopping();
  stop.set_max_tokens(9);
  stop.set_min_tokens(2);
  stop.add_stop("a");
  stop.add_stop_token_ids(3);
  stop.set_ignore_eos(true);
  stop.set_include_stop_in_output(true);
  pb::ResponseOptions& response = *expected.mutable_response();
  response.set_text(false);
  response.set_token_ids(true);
  response.set_num_logprobs(5);
  response.set_prompt_logprobs(0);
  response.set_skip_special_tokens(true);
  expected.mutable_guided()->mutable_choice()->add_texts("x");
  EXPECT_TRUE(MessageDifferencer::Equals(*ours, expected)) << ours->DebugString();
}

TEST(VllmRequest, EveryConstraint) {
  const auto guided = [](auto set) {
    ve::GenerateRequest r = VllmIds({1});
    set(*r.mutable_sampling_params());
    return FromVllm(r)->guided();
  };
  EXPECT_EQ(guided([](auto& p) { p.set_json_schema("{}"); }).json_schema(), "{}");
  EXPECT_EQ(guided([](auto& p) { p.set_regex("a+"); }).regex(), "a+");
  EXPECT_EQ(guided([](auto& p) { p.set_grammar("root ::= x"); }).grammar(), "root ::= x");
  EXPECT_EQ(guided([](auto& p) { p.set_structural_tag("{t}"); }).structural_tag(), "{t}");
  EXPECT_TRUE(guided([](auto& p) { p.set_json_object(true); }).json_object());
}

TEST(VllmRequest, SeedOfMinusOneIsNone) {
  ve::GenerateRequest r = VllmIds({1});
  r.mutable_sampling_params()->set_seed(-1);
  EXPECT_FALSE(FromVllm(r)->sampling().has_seed());
}

TEST(VllmRequest, TruncationIsHandedOn) {
  ve::GenerateRequest r = VllmIds({1, 2, 3});
  EXPECT_FALSE(FromVllm(r)->has_truncate_prompt_tokens());
  r.mutable_sampling_params()->set_truncate_prompt_tokens(-1);
  EXPECT_EQ(FromVllm(r)->truncate_prompt_tokens(), -1);
}

TEST(VllmRequest, RefusalsByName) {
  const auto with = [](auto set) {
    ve::GenerateRequest r = VllmIds({1});
    set(r);
    return FromVllm(r);
  };
  ExpectRefused(FromVllm({}), "input is not set");
  ExpectRefused(with([](auto& r) { r.mutable_mm_inputs(); }), "mm_inputs");
  ExpectRefused(with([](auto& r) { r.add_extra_mm_inputs(); }), "extra_mm_inputs");
  ExpectRefused(with([](auto& r) { r.mutable_media_refs(); }), "media_refs");
  ExpectRefused(with([](auto& r) { r.mutable_kv_transfer_params(); }), "kv_transfer_params");
  ExpectRefused(with([](auto& r) { r.set_data_parallel_rank(-1); }), "data_parallel_rank=-1");
  ExpectRefused(with([](auto& r) { r.mutable_sampling_params()->set_max_tokens(3'000'000'000u); }),
                "sampling_params.max_tokens=3000000000");
  ExpectRefused(with([](auto& r) { r.mutable_sampling_params()->set_logprobs(-1); }),
                "sampling_params.logprobs=-1");
  EXPECT_TRUE(with([](auto& r) { r.set_data_parallel_rank(0); }).ok());
}

TEST(FieldNames, TheLongestPrefixThatIsListedFirstWins) {
  const auto renamed = [](const char* message) {
    return Message(WithNames(absl::InvalidArgumentError(message), VllmFieldNames()));
  };
  EXPECT_EQ(renamed("sampling.top_p=2 is"), "sampling_params.top_p=2 is");
  EXPECT_EQ(renamed("stopping.include_stop_in_output=x"),
            "sampling_params.include_stop_str_in_output=x");
  EXPECT_EQ(renamed("prompt has 0 tokens"), "prompt has 0 tokens");
  EXPECT_TRUE(WithNames(absl::OkStatus(), VllmFieldNames()).ok());
}

// ---- openengine.v1 ----

TEST(OpenEngineRequest, EveryFieldArrives) {
  oe::GenerateRequest r;
  r.set_request_id("id");
  r.set_model("m");
  r.mutable_token_ids()->add_ids(5);
  oe::SamplingParams& p = *r.mutable_sampling();
  p.set_temperature(0.5);
  p.set_top_p(0.25);
  p.set_top_k(-1);
  p.set_min_p(0);
  p.set_frequency_penalty(1);
  p.set_presence_penalty(-1);
  p.set_repetition_penalty(2);
  p.set_seed(~uint64_t{0});
  p.set_num_sequences(3);
  r.mutable_stopping()->set_max_tokens(7);
  r.mutable_stopping()->set_min_tokens(1);
  r.mutable_stopping()->add_conditions()->set_stop_text("s");
  r.mutable_stopping()->add_conditions()->set_stop_token_id(9);
  r.mutable_stopping()->set_ignore_eos(true);
  r.mutable_stopping()->set_include_stop_in_output(true);
  r.mutable_response()->set_return_output_logprobs(true);
  r.mutable_response()->mutable_output_candidates()->set_top_n(4);
  r.mutable_response()->set_return_prompt_logprobs(true);
  r.mutable_response()->set_prompt_logprob_start(2);
  r.mutable_kv()->set_cache_salt("salt");
  r.mutable_kv()->set_bypass_prefix_cache(true);
  r.mutable_guided()->set_ebnf_grammar("g");
  auto& extra = *r.mutable_extra()->mutable_fields();
  extra["priority"].set_number_value(-5);
  extra["kv_retention"].set_string_value("0-512:80:600s");
  extra["of_another_engine"].set_bool_value(true);
  OeOptions options;
  const auto ours = FromOpenEngine(r, options);
  ASSERT_TRUE(ours.ok()) << Message(ours.status());
  EXPECT_TRUE(options.output_logprobs);
  EXPECT_EQ(options.prompt_logprob_start, 2u);
  pb::GenerateRequest expected;
  expected.set_request_id("id");
  expected.set_model("m");
  expected.mutable_token_ids()->add_ids(5);
  pb::SamplingParams& s = *expected.mutable_sampling();
  s.set_temperature(0.5f);
  s.set_top_p(0.25f);
  s.set_top_k(-1);
  s.set_min_p(0);
  s.set_frequency_penalty(1);
  s.set_presence_penalty(-1);
  s.set_repetition_penalty(2);
  s.set_seed(~uint64_t{0});
  s.set_n(3);
  pb::StoppingOptions& stop = *expected.mutable_stopping();
  stop.set_max_tokens(7);
  stop.set_min_tokens(1);
  stop.add_stop("s");
  stop.add_stop_token_ids(9);
  stop.set_ignore_eos(true);
  stop.set_include_stop_in_output(true);
  expected.mutable_response()->set_text(true);
  expected.mutable_response()->set_token_ids(true);
  expected.mutable_response()->set_num_logprobs(4);
  expected.mutable_response()->set_prompt_logprobs(0);
  expected.mutable_kv()->set_cache_salt("salt");
  expected.mutable_kv()->set_bypass_prefix_cache(true);
  pb::RetentionRange& range = *expected.mutable_kv()->mutable_retention()->add_ranges();
  range.set_start(0);
  range.set_end(512);
  range.set_priority(80);
  range.set_ttl_ms(600'000);
  expected.mutable_guided()->set_grammar("g");
  expected.mutable_scheduling()->set_priority(-5);
  EXPECT_TRUE(MessageDifferencer::Equals(*ours, expected)) << ours->DebugString();
}

TEST(OpenEngineRequest, Beams) {
  const auto beam = [](auto set) {
    oe::GenerateRequest r;
    r.set_prompt("x");
    r.mutable_sampling()->set_num_sequences(2);
    set(*r.mutable_extra()->mutable_fields());
    OeOptions options;
    return FromOpenEngine(r, options);
  };
  const auto four = beam([](auto& extra) {
    extra["beam_width"].set_number_value(4);
    extra["length_penalty"].set_number_value(0.5);
    extra["beam_search_diversity_rate"].set_number_value(0.25);
    extra["early_stopping"].set_number_value(1);
  });
  ASSERT_TRUE(four.ok());
  EXPECT_FALSE(four->sampling().has_n());
  EXPECT_EQ(four->beam().beam_width(), 4);
  EXPECT_EQ(four->beam().num_return_sequences(), 2);
  EXPECT_EQ(four->beam().length_penalty(), 0.5f);
  EXPECT_EQ(four->beam().diversity_rate(), 0.25f);
  EXPECT_EQ(four->beam().num_groups(), 4);
  EXPECT_EQ(four->beam().early_stopping(), pb::EARLY_STOPPING_FIRST);
  for (const auto& [value, rule] :
       {std::pair{0.0, pb::EARLY_STOPPING_HEURISTIC}, std::pair{2.0, pb::EARLY_STOPPING_NEVER}}) {
    const double number = value;
    EXPECT_EQ(beam([number](auto& extra) {
                extra["beam_width"].set_number_value(4);
                extra["early_stopping"].set_number_value(number);
              })
                  ->beam()
                  .early_stopping(),
              rule);
  }
  ExpectRefused(beam([](auto& extra) { extra["length_penalty"].set_number_value(1); }),
                "beam_width");
  for (const double bad : {1.5, 1e300, std::nan("")}) {
    ExpectRefused(beam([bad](auto& extra) { extra["beam_width"].set_number_value(bad); }),
                  "extra.beam_width");
  }
}

// ---- KServe ----

std::string Bytes(const std::string& text) {
  std::string raw;
  for (int shift = 0; shift < 32; shift += 8) raw += static_cast<char>(text.size() >> shift & 0xff);
  return raw + text;
}

class Infer {
 public:
  explicit Infer(const std::string& text = "prompt") { Add("text_input", "BYTES", Bytes(text)); }
  Infer& Add(const std::string& name, const std::string& datatype, const std::string& raw) {
    auto& input = *request.add_inputs();
    input.set_name(name);
    input.set_datatype(datatype);
    input.add_shape(1);
    request.add_raw_input_contents(raw);
    return *this;
  }
  Infer& Sampling(const std::string& json) {
    return Add("sampling_parameters", "BYTES", Bytes(json));
  }
  Infer& Flag(const std::string& name, bool value) {
    return Add(name, "BOOL", std::string(1, value ? '\1' : '\0'));
  }
  absl::StatusOr<KserveRequest> Read() const { return FromKserve(request, Model()); }

  inference::ModelInferRequest request;
};

TEST(KserveRequest, DefaultsOfTheBackend) {
  const auto ours = Infer().Read();
  ASSERT_TRUE(ours.ok());
  EXPECT_EQ(ours->request.text(), "prompt");
  EXPECT_EQ(ours->request.stopping().max_tokens(), 16);
  EXPECT_TRUE(ours->options.echo_prompt);
  EXPECT_FALSE(ours->options.stream);
  EXPECT_FALSE(ours->options.finish_reason);
  const auto streamed = Infer().Flag("stream", true).Read();
  EXPECT_FALSE(streamed->options.echo_prompt);
}

TEST(KserveRequest, EveryKeyOfSampling) {
  const auto ours = Infer()
                        .Sampling(R"({"temperature": "0.5", "top_p": 0.25, "top_k": "-1",
      "min_p": 0.125, "presence_penalty": 1, "frequency_penalty": -1, "repetition_penalty": 2,
      "n": 2, "best_of": 3, "max_tokens": 9, "min_tokens": "1", "stop": ["a", "b"],
      "stop_token_ids": [4], "allowed_token_ids": [5, 6], "seed": 7, "logprobs": 2,
      "ignore_eos": "true", "include_stop_str_in_output": true, "skip_special_tokens": false,
      "logit_bias": {"8": -2.5}, "spaces_between_special_tokens": true, "prompt_logprobs": null})")
                        .Read();
  ASSERT_TRUE(ours.ok()) << Message(ours.status());
  pb::GenerateRequest expected;
  expected.set_text("prompt");
  pb::SamplingParams& s = *expected.mutable_sampling();
  s.set_temperature(0.5f);
  s.set_top_p(0.25f);
  s.set_top_k(-1);
  s.set_min_p(0.125f);
  s.set_presence_penalty(1);
  s.set_frequency_penalty(-1);
  s.set_repetition_penalty(2);
  s.set_n(2);
  s.set_best_of(3);
  s.add_allowed_token_ids(5);
  s.add_allowed_token_ids(6);
  s.set_seed(7);
  (*s.mutable_logit_bias())[8] = -2.5f;
  pb::StoppingOptions& stop = *expected.mutable_stopping();
  stop.set_max_tokens(9);
  stop.set_min_tokens(1);
  stop.add_stop("a");
  stop.add_stop("b");
  stop.add_stop_token_ids(4);
  stop.set_ignore_eos(true);
  stop.set_include_stop_in_output(true);
  expected.mutable_response()->set_num_logprobs(2);
  expected.mutable_response()->set_skip_special_tokens(false);
  expected.mutable_response()->set_token_ids(false);
  EXPECT_TRUE(MessageDifferencer::Equals(ours->request, expected)) << ours->request.DebugString();
}

TEST(KserveRequest, ParametersAndPriority) {
  Infer infer;
  auto& parameters = *infer.request.mutable_parameters();
  parameters["triton_enable_empty_final_response"].set_bool_param(true);
  parameters["priority"].set_uint64_param(3);  // lower is sooner there
  parameters["timeout"].set_int64_param(1500);
  infer.request.set_id("id");
  const auto ours = infer.Read();
  ASSERT_TRUE(ours.ok());
  EXPECT_TRUE(ours->options.final_response);
  EXPECT_EQ(ours->options.id, "id");
  EXPECT_EQ(ours->request.scheduling().priority(), -3);
  EXPECT_EQ(ours->request.scheduling().queue_timeout_ms(), 2);
  parameters["other"].set_bool_param(true);
  ExpectRefused(infer.Read(), "parameter other");
}

TEST(KserveRequest, RefusalsByName) {
  ExpectRefused(Infer().Add("image", "BYTES", Bytes("x")).Read(), "input image");
  ExpectRefused(Infer().Add("stream", "INT32", "x").Read(), "datatype=INT32");
  ExpectRefused(Infer().Add("stream", "BOOL", "xx").Read(), "2 bytes");
  ExpectRefused(Infer().Sampling("{:").Read(), "sampling_parameters");
  ExpectRefused(Infer().Sampling("[1]").Read(), "not a JSON object");
  ExpectRefused(Infer().Sampling(R"({"use_beam_search": true})").Read(), "use_beam_search");
  ExpectRefused(Infer().Sampling(R"({"max_tokens": 1e99})").Read(), "max_tokens");
  ExpectRefused(Infer().Sampling(R"({"n": 99999999999})").Read(), "sampling_parameters.n");
  ExpectRefused(Infer().Sampling(R"({"stop": [1]})").Read(), "sampling_parameters.stop");
  ExpectRefused(Infer().Sampling(R"({"logit_bias": {"x": 1}})").Read(), "logit_bias");
  ExpectRefused(Infer().Sampling(std::string(5000, '[')).Read(), "sampling_parameters");
  Infer shared;
  (*shared.request.mutable_inputs(0)->mutable_parameters())["shared_memory_region"]
      .set_string_param("r");
  ExpectRefused(shared.Read(), "shared_memory_region");
  Infer missing;
  missing.request.clear_raw_input_contents();
  ExpectRefused(missing.Read(), "0 elements");
  Infer wide;
  wide.request.mutable_inputs(0)->set_shape(0, int64_t{1} << 40);
  ExpectRefused(wide.Read(), "extent");
  for (const std::string& raw : {std::string(), std::string("\1\0\0", 3),
                                 std::string("\xff\xff\xff\xff", 4), Bytes("ab") + "c"}) {
    Infer bad;
    bad.request.set_raw_input_contents(0, raw);
    ExpectRefused(bad.Read(), "text_input");
  }
  Infer other;
  other.request.set_model_name("other");
  EXPECT_EQ(other.Read().status().code(), absl::StatusCode::kNotFound);
  other.request.set_model_name("m");
  other.request.set_model_version("2");
  EXPECT_EQ(other.Read().status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace quire
