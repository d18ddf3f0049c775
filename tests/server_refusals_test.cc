// What the daemon refuses, with which code and words, and what it serves at the very border.
// HARD-CASES H01, H02, H07, H08, H11, H12, N13 by RPC.
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>

#include "tests/support/server_rig.h"

namespace quire::server_test {
namespace {

using grpc::StatusCode;

// One refusal: how to make the request, its code, and what the message must say.
struct Refusal {
  const char* what;
  std::function<void(pb::GenerateRequest&)> change;
  std::vector<std::string> parts;
  StatusCode code = StatusCode::INVALID_ARGUMENT;
};

TEST(RefusalsTest, RefusalsNameFieldValueAndLimit) {
  Rig rig;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float inf = std::numeric_limits<float>::infinity();
  const auto sampling = [](auto set) {
    return [set](pb::GenerateRequest& r) { set(*r.mutable_sampling()); };
  };
  const auto stopping = [](auto set) {
    return [set](pb::GenerateRequest& r) { set(*r.mutable_stopping()); };
  };
  const auto logprobs = [](int32_t n) {
    return [n](pb::GenerateRequest& r) { r.mutable_response()->set_num_logprobs(n); };
  };
  using S = pb::SamplingParams;
  using T = pb::StoppingOptions;
  const std::vector<Refusal> cases = {
      {"NaN", sampling([=](S& s) { s.set_temperature(nan); }), {"sampling.temperature=nan", "["}},
      {"inf", sampling([=](S& s) { s.set_temperature(inf); }), {"sampling.temperature=inf"}},
      {"negative", sampling([](S& s) { s.set_temperature(-1); }), {"sampling.temperature=-1"}},
      {"top_p", sampling([](S& s) { s.set_top_p(1.1f); }), {"sampling.top_p=1.1", "[0, 1]"}},
      {"top_k", sampling([](S& s) { s.set_top_k(-2); }), {"sampling.top_k=-2"}},
      {"min_p", sampling([=](S& s) { s.set_min_p(nan); }), {"sampling.min_p=nan"}},
      {"repetition",
       sampling([](S& s) { s.set_repetition_penalty(0); }),
       {"sampling.repetition_penalty=0"}},
      {"n=0", sampling([](S& s) { s.set_n(0); }), {"sampling.n=0"}},
      {"n large", sampling([](S& s) { s.set_n(1 << 30); }), {"sampling.n=1073741824", "128"}},
      // H01
      {"bias V",
       sampling([](S& s) { (*s.mutable_logit_bias())[801] = 1; }),
       {"sampling.logit_bias", "801", "800"}},
      {"bias -1",
       sampling([](S& s) { (*s.mutable_logit_bias())[-1] = 1; }),
       {"sampling.logit_bias", "-1"}},
      {"bias max",
       sampling([](S& s) { (*s.mutable_logit_bias())[2147483647] = 1; }),
       {"sampling.logit_bias", "2147483647"}},
      {"bias value",
       sampling([](S& s) { (*s.mutable_logit_bias())[3] = 101; }),
       {"sampling.logit_bias", "101"}},
      {"bias NaN",
       sampling([=](S& s) { (*s.mutable_logit_bias())[3] = nan; }),
       {"sampling.logit_bias", "nan"}},
      {"bias 1e38",
       sampling([](S& s) { (*s.mutable_logit_bias())[3] = 1e38f; }),
       {"sampling.logit_bias"}},
      {"allowed",
       sampling([](S& s) { s.add_allowed_token_ids(801); }),
       {"sampling.allowed_token_ids[0]=801"}},
      {"bad word",
       sampling([](S& s) { s.add_bad_words()->add_ids(4294967295u); }),
       {"sampling.bad_words[0].ids[0]=4294967295"}},
      // H08
      {"logprobs -2", logprobs(-2), {"response.num_logprobs=-2", "20"}},
      {"logprobs 21", logprobs(21), {"response.num_logprobs=21", "20"}},
      {"logprobs V", logprobs(801), {"response.num_logprobs=801"}},
      {"logprobs 2e9", logprobs(2000000000), {"response.num_logprobs=2000000000"}},
      // H07
      {"max_tokens 0", stopping([](T& t) { t.set_max_tokens(0); }), {"stopping.max_tokens=0"}},
      {"max_tokens -1", stopping([](T& t) { t.set_max_tokens(-1); }), {"stopping.max_tokens=-1"}},
      {"max_tokens max",
       stopping([](T& t) { t.set_max_tokens(2147483647); }),
       {"max_tokens=2147483647", "max_model_len=512", "prompt has"}},
      {"min above max",
       stopping([](T& t) { t.set_min_tokens(5); }),
       {"stopping.min_tokens=5", "max_tokens=4"}},
      {"empty stop", stopping([](T& t) { t.add_stop(""); }), {"stop[0]"}},
      {"stop id",
       stopping([](T& t) { t.add_stop_token_ids(900); }),
       {"stopping.stop_token_ids[0]=900"}},
      {"many stops",
       stopping([](T& t) {
         for (int i = 0; i < 65; ++i) t.add_stop("x");
       }),
       {"stop", "65", "64"}},
      {"long stop", stopping([](T& t) { t.add_stop(std::string(1025, 'x')); }), {"stop[0]"}},
      {"no input", [](pb::GenerateRequest& r) { r.clear_text(); }, {"input is not set"}},
      {"empty text", [](pb::GenerateRequest& r) { r.set_text(""); }, {"prompt has 0 tokens"}},
      {"no ids", [](pb::GenerateRequest& r) { r.mutable_token_ids(); }, {"prompt has 0 tokens"}},
      {"id V",
       [](pb::GenerateRequest& r) { r.mutable_token_ids()->add_ids(801); },
       {"token_ids.ids[0]=801", "[0, 800]"}},
      {"id max",
       [](pb::GenerateRequest& r) { r.mutable_token_ids()->add_ids(4294967295u); },
       {"token_ids.ids[0]=4294967295"}},
      {"chat",
       [](pb::GenerateRequest& r) { r.mutable_chat()->add_messages()->set_role("user"); },
       {"chat", "no chat template"},
       StatusCode::UNIMPLEMENTED},
      {"model",
       [](pb::GenerateRequest& r) { r.set_model("gpt-5"); },
       {"model=gpt-5", "scripted"},
       StatusCode::NOT_FOUND},
      {"request id",
       [](pb::GenerateRequest& r) { r.set_request_id("two words\n"); },
       {"request_id"}},
      {"long id",
       [](pb::GenerateRequest& r) { r.set_request_id(std::string(129, 'i')); },
       {"request_id has 129 bytes, limit is 128"}},
      {"queue time",
       [](pb::GenerateRequest& r) { r.mutable_scheduling()->set_queue_timeout_ms(0); },
       {"scheduling.queue_timeout_ms=0"}},
      {"total time",
       [](pb::GenerateRequest& r) { r.mutable_scheduling()->set_total_timeout_ms(-5); },
       {"scheduling.total_timeout_ms=-5"}},
      {"special",
       [](pb::GenerateRequest& r) {
         r.mutable_token_ids()->add_ids(1);
         r.set_add_special_tokens(false);
       },
       {"add_special_tokens=false"}},
      {"truncation",
       [](pb::GenerateRequest& r) { r.set_truncate_prompt_tokens(0); },
       {"truncate_prompt_tokens=0 must be at least 1"}},
  };
  for (const Refusal& c : cases) {
    pb::GenerateRequest request = Rig::TextRequest("abc", 4);
    c.change(request);
    const Answer answer = rig.Generate(request);
    EXPECT_EQ(answer.status.error_code(), c.code)
        << c.what << ": " << answer.status.error_message();
    for (const std::string& part : c.parts) {
      EXPECT_NE(answer.status.error_message().find(part), std::string::npos)
          << c.what << ": " << answer.status.error_message();
    }
    EXPECT_EQ(answer.status.error_message().find('\n'), std::string::npos) << c.what;
    EXPECT_EQ(answer.num_accepted + answer.num_deltas, 0) << c.what;
    const auto [status, unary] = rig.GenerateUnary(request);
    EXPECT_EQ(status.error_code(), c.code) << c.what;
    EXPECT_EQ(status.error_message(), answer.status.error_message()) << c.what;
  }
  EXPECT_EQ(rig.daemon().edge().counts().refused, 2 * cases.size());
  EXPECT_EQ(rig.daemon().edge().counts().started, 0u);
  rig.ExpectIdle();
  rig.Probe();
}

// H01 V-1, H02 and H11: values at the border of what is allowed are served.
TEST(RefusalsTest, ValuesAtTheBorderAreServed) {
  Rig rig;
  for (const auto& set : std::vector<std::function<void(pb::GenerateRequest&)>>{
           [](auto& r) { (*r.mutable_sampling()->mutable_logit_bias())[800] = 100; },
           [](auto& r) { (*r.mutable_sampling()->mutable_logit_bias())[0] = -100; },
           [](auto& r) { r.mutable_sampling()->set_temperature(-0.0f); },
           [](auto& r) { r.mutable_sampling()->set_temperature(1e-45f); },
           [](auto& r) { r.mutable_sampling()->set_temperature(1e6f); },
           [](auto& r) { r.mutable_sampling()->set_top_k(9999999); },
           [](auto& r) { r.mutable_sampling()->set_top_k(-1); },
           [](auto& r) { r.mutable_sampling()->set_top_p(0); },
           [](auto& r) { r.mutable_sampling()->set_min_p(1); },
           [](auto& r) { r.mutable_sampling()->set_seed(0); },
           [](auto& r) { r.mutable_sampling()->set_seed(UINT64_MAX); },
           [](auto& r) { r.mutable_response()->set_num_logprobs(20); },
           [](auto& r) { r.mutable_response()->set_num_logprobs(-1); },
           [](auto& r) { r.set_model("scripted"); },
           [](auto& r) { r.set_request_id(std::string(128, '~')); }}) {
    pb::GenerateRequest request = Rig::TextRequest("abc", 4);
    set(request);
    const Answer answer = rig.Generate(request);
    EXPECT_TRUE(answer.status.ok()) << request.DebugString() << answer.status.error_message();
  }
  rig.ExpectIdle();
}

// H12: all pairs of absurd floats end with an answer or INVALID_ARGUMENT, and harm nobody.
TEST(RefusalsTest, AbsurdFloatsInPairs) {
  Rig rig;
  const std::vector<const char*> names = {
      "temperature",       "top_p", "min_p", "typical_p", "presence_penalty", "frequency_penalty",
      "repetition_penalty"};
  const std::vector<float> values = {-1,
                                     0,
                                     std::numeric_limits<float>::denorm_min(),
                                     std::numeric_limits<float>::max(),
                                     std::numeric_limits<float>::infinity(),
                                     std::numeric_limits<float>::quiet_NaN(),
                                     -0.0f};
  int num_ok = 0;
  int num_refused = 0;
  for (size_t a = 0; a < names.size(); ++a) {
    for (size_t b = a + 1; b < names.size(); ++b) {
      for (const float va : values) {
        for (const float vb : values) {
          pb::GenerateRequest request = Rig::IdsRequest({1, 2}, 2);
          pb::SamplingParams& s = *request.mutable_sampling();
          for (const auto& [name, value] : {std::pair{names[a], va}, {names[b], vb}}) {
            s.GetReflection()->SetFloat(&s, s.GetDescriptor()->FindFieldByName(name), value);
          }
          const auto [status, result] = rig.GenerateUnary(request);
          if (status.ok()) {
            ++num_ok;
            EXPECT_EQ(result.outputs(0).token_ids_size(), 2);
          } else {
            ++num_refused;
            EXPECT_EQ(status.error_code(), StatusCode::INVALID_ARGUMENT) << status.error_message();
          }
        }
      }
    }
  }
  EXPECT_GT(num_ok, 50);
  EXPECT_GT(num_refused, 500);
  rig.Probe();
  rig.ExpectIdle();
}

// H07: prompts around the limit.
TEST(RefusalsTest, PromptAndNewTokensWithinTheLimit) {
  RigOptions options;
  options.server.max_model_len = 128;
  Rig rig(options);
  const auto run = [&](size_t prompt, std::optional<int32_t> max_tokens) {
    pb::GenerateRequest request = Rig::IdsRequest(std::vector<TokenId>(prompt, 7), 1);
    request.mutable_stopping()->clear_max_tokens();
    if (max_tokens) request.mutable_stopping()->set_max_tokens(*max_tokens);
    return rig.Generate(request);
  };
  for (const size_t prompt : {size_t{127}, size_t{100}, size_t{1}}) {
    const Answer rest = run(prompt, std::nullopt);
    ASSERT_TRUE(rest.status.ok()) << rest.status.error_message();
    EXPECT_EQ(rest.token_ids.at(0).size(), 128 - prompt);
    EXPECT_EQ(rest.finished.at(0).reason(), pb::FINISH_REASON_LENGTH);
    const auto room = static_cast<int32_t>(128 - prompt);
    EXPECT_TRUE(run(prompt, room).status.ok());
    const Answer beyond = run(prompt, room + 1);
    EXPECT_EQ(beyond.status.error_code(), StatusCode::INVALID_ARGUMENT);
    EXPECT_NE(beyond.status.error_message().find(std::to_string(prompt)), std::string::npos);
    EXPECT_NE(beyond.status.error_message().find("max_model_len=128"), std::string::npos);
  }
  for (const size_t prompt : {size_t{128}, size_t{129}, size_t{5000}}) {
    for (const std::optional<int32_t> max_tokens : {std::optional<int32_t>(), {1}, {2}}) {
      const Answer answer = run(prompt, max_tokens);
      EXPECT_EQ(answer.status.error_code(), StatusCode::INVALID_ARGUMENT);
      EXPECT_NE(answer.status.error_message().find("prompt has " + std::to_string(prompt)),
                std::string::npos)
          << answer.status.error_message();
      EXPECT_NE(answer.status.error_message().find("128"), std::string::npos);
    }
  }
  rig.ExpectIdle();
}

TEST(RefusalsTest, DefaultMaxTokensIsTheOperators) {
  RigOptions options;
  options.server.default_max_tokens = 5;
  Rig rig(options);
  pb::GenerateRequest request = Rig::IdsRequest({1, 2}, 1);
  request.mutable_stopping()->clear_max_tokens();
  EXPECT_EQ(rig.Generate(request).token_ids.at(0).size(), 5u);
}

// A request that no pool could ever hold is refused at once, with the pool untouched.
TEST(RefusalsTest, WhatCanNeverFitIsRefused) {
  RigOptions options;
  options.num_blocks = 8;  // 64 tokens
  Rig rig(options);
  const Answer answer = rig.Generate(Rig::IdsRequest(std::vector<TokenId>(40, 7), 40));
  EXPECT_EQ(answer.status.error_code(), StatusCode::INVALID_ARGUMENT)
      << answer.status.error_message();
  EXPECT_EQ(answer.num_accepted, 0);
  EXPECT_TRUE(rig.Generate(Rig::IdsRequest(std::vector<TokenId>(40, 7), 20)).status.ok());
  rig.ExpectIdle();
}

// N13: over the limit on messages, with the number; just below it works.
TEST(RefusalsTest, MessageSizeLimit) {
  RigOptions options;
  options.server.max_message_bytes = 1 << 20;
  Rig rig(options);
  pb::GenerateRequest request;
  request.mutable_token_ids()->mutable_ids()->Resize((1 << 20) + 100, 5);
  const Answer large = rig.Generate(request);
  EXPECT_EQ(large.status.error_code(), StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_NE(large.status.error_message().find("1048576"), std::string::npos)
      << large.status.error_message();
  request.mutable_token_ids()->mutable_ids()->Resize((1 << 20) - 100, 5);
  const Answer fits = rig.Generate(request);  // reaches the check of the prompt's length
  EXPECT_EQ(fits.status.error_code(), StatusCode::INVALID_ARGUMENT);
  // An answer that would not fit is refused before the work, not lost after it.
  pb::GenerateRequest answer = Rig::IdsRequest({1}, 500);
  answer.mutable_sampling()->set_n(16);
  answer.mutable_response()->set_num_logprobs(20);
  const auto [status, unused] = rig.GenerateUnary(answer);
  EXPECT_EQ(status.error_code(), StatusCode::INVALID_ARGUMENT);
  EXPECT_NE(status.error_message().find("max_message_bytes"), std::string::npos);
  EXPECT_EQ(rig.daemon().edge().counts().started, 0u);
  rig.Probe();
}

}  // namespace
}  // namespace quire::server_test
