// What a client asks of the search for tokens, over the real daemon with a scripted executor:
// best_of, beams, prompt logprobs, asked logprobs, priority and tenant, guesses; and which
// combinations are refused. HARD-CASES D01 and D05 by RPC.
#include <algorithm>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "tests/support/server_rig.h"

namespace quire::server_test {
namespace {

using grpc::StatusCode;

// Branch b says 100 + b, over and over.
TokenId OwnToken(const Request&, int32_t branch, int32_t) { return 100 + branch; }

pb::GenerateRequest BestOf(int32_t n, int32_t best_of, int32_t max_tokens) {
  pb::GenerateRequest request = Rig::TextRequest("abc", max_tokens);
  request.mutable_sampling()->set_n(n);
  request.mutable_sampling()->set_best_of(best_of);
  return request;
}

TEST(BestOfTest, TheLikeliestComeBackBestFirst) {
  Rig rig;
  rig.executor.Say(OwnToken);
  rig.executor.SayLogprobs([](const Request&, int32_t branch, int32_t) {
    constexpr float kOf[] = {-0.75f, -0.125f, -0.5f, -0.25f};
    return kOf[branch];
  });
  const Answer answer = rig.Generate(BestOf(2, 4, 5));
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  ASSERT_EQ(answer.finished.size(), 2u);
  EXPECT_EQ(answer.token_ids.at(0), std::vector<uint32_t>(5, 101));
  EXPECT_EQ(answer.token_ids.at(1), std::vector<uint32_t>(5, 103));
  EXPECT_EQ(answer.finished.at(0).score(), -0.125f);
  EXPECT_EQ(answer.finished.at(1).score(), -0.25f);
  EXPECT_EQ(answer.usage.completion_tokens(), 20u);  // all four were computed
  // They were only for the ranking.
  EXPECT_TRUE(answer.logprobs.at(0).empty());
  const auto [status, result] = rig.GenerateUnary(BestOf(2, 4, 5));
  ASSERT_TRUE(status.ok()) << status.error_message();
  ASSERT_EQ(result.outputs_size(), 2);
  EXPECT_EQ(result.outputs(0).token_ids(0), 101u);
  EXPECT_EQ(result.outputs(1).token_ids(0), 103u);
  EXPECT_EQ(result.outputs(1).finished().output_index(), 1u);
  EXPECT_EQ(result.outputs(1).finished().score(), -0.25f);
  rig.ExpectIdle();
}

TEST(BestOfTest, TheMeanIsOverTheTokensOfTheOutput) {
  Rig rig;
  // Branch 1 ends by a stop string after two likely tokens; what follows would be unlikely. Branch
  // 0 is as good over more tokens: the sum would choose wrongly.
  const TokenId stop = rig.Encode("!").at(0);
  rig.executor.Say([stop](const Request& request, int32_t branch, int32_t num_output) {
    return branch == 1 && num_output == 1 ? stop : request.prompt[0];
  });
  rig.executor.SayLogprobs([](const Request&, int32_t branch, int32_t num_output) {
    if (branch == 0) return -0.25f;
    return num_output < 2 ? -0.5f : -8.0f;
  });
  pb::GenerateRequest request = BestOf(2, 2, 6);
  request.mutable_stopping()->add_stop("!");
  const Answer answer = rig.Generate(request);
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  EXPECT_EQ(answer.finished.at(0).score(), -0.25f);
  EXPECT_EQ(answer.finished.at(0).reason(), pb::FINISH_REASON_LENGTH);
  EXPECT_EQ(answer.finished.at(1).score(), -0.5f);
  EXPECT_EQ(answer.finished.at(1).stop_string(), "!");
  EXPECT_EQ(answer.finished.at(1).completion_tokens(), 2u);
}

TEST(BestOfTest, EqualOutputsKeepTheirOrderAndLogprobsAreToldIfAskedFor) {
  Rig rig;
  rig.executor.Say(OwnToken);
  pb::GenerateRequest request = BestOf(3, 3, 2);
  request.mutable_response()->set_num_logprobs(1);
  const Answer answer = rig.Generate(request);
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  for (uint32_t i = 0; i < 3; ++i) {
    EXPECT_EQ(answer.token_ids.at(i), std::vector<uint32_t>(2, 100 + i));
    ASSERT_EQ(answer.logprobs.at(i).size(), 2u);
    EXPECT_EQ(answer.logprobs.at(i)[0].token_id(), 100 + i);
    EXPECT_EQ(answer.logprobs.at(i)[0].top_size(), 1);
  }
}

TEST(BestOfTest, CancelledWhileItRuns) {
  Rig rig;
  rig.executor.Pause(milliseconds(2));
  Call call(rig.stub(), BestOf(2, 4, 400));
  ASSERT_TRUE(call.Read());
  call.context.TryCancel();
  EXPECT_EQ(call.Finish().error_code(), StatusCode::CANCELLED);
  rig.ExpectIdle();
  EXPECT_TRUE(rig.Eventually([&] { return rig.daemon().edge().counts().cancelled == 1; }));
}

TEST(BeamsTest, OutputsComeWithTheirScoresBestFirst) {
  Rig rig;
  pb::GenerateRequest request = Rig::TextRequest("abcdef", 3);
  request.mutable_beam()->set_beam_width(2);
  request.mutable_beam()->set_num_return_sequences(2);
  request.mutable_response()->set_num_logprobs(0);
  const std::vector<TokenId> said = rig.Encode("abcdef");
  const Answer answer = rig.Generate(request);
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  ASSERT_EQ(answer.finished.size(), 2u);
  // The best is what the script says, at -0.5 a token; the other has one token that is worth 1
  // less.
  std::vector<uint32_t> best;
  for (int32_t i = 0; i < 3; ++i) best.push_back(said[static_cast<size_t>(i) % said.size()]);
  EXPECT_EQ(answer.token_ids.at(0), best);
  EXPECT_FLOAT_EQ(answer.finished.at(0).score(), -0.5f);
  EXPECT_FLOAT_EQ(answer.finished.at(1).score(), -2.5f / 3);
  int differ = 0;
  for (size_t i = 0; i < 3; ++i) differ += answer.token_ids.at(1).at(i) != best[i];
  EXPECT_EQ(differ, 1);
  EXPECT_EQ(answer.finished.at(0).reason(), pb::FINISH_REASON_LENGTH);
  EXPECT_EQ(answer.usage.completion_tokens(), 6u);
  ASSERT_EQ(answer.logprobs.at(0).size(), 3u);
  EXPECT_EQ(answer.logprobs.at(0)[0].logprob(), -0.5f);
  const auto [status, result] = rig.GenerateUnary(request);
  ASSERT_TRUE(status.ok()) << status.error_message();
  ASSERT_EQ(result.outputs_size(), 2);
  EXPECT_EQ(std::vector<uint32_t>(result.outputs(0).token_ids().begin(),
                                  result.outputs(0).token_ids().end()),
            best);
  rig.ExpectIdle();
}

// An answer that comes at once is larger than what a slow reader may let wait; nobody was slow.
TEST(BeamsTest, AnAnswerThatComesAtOnceIsNoSlowReader) {
  RigOptions options;
  options.server.max_stream_buffer_bytes = 2048;
  options.server.max_model_len = 512;
  Rig rig(options);
  pb::GenerateRequest request = Rig::TextRequest("abcdef", 400);
  request.mutable_beam()->set_beam_width(2);
  request.mutable_beam()->set_num_return_sequences(2);
  request.mutable_response()->set_num_logprobs(0);
  const Answer answer = rig.Generate(request);
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  EXPECT_EQ(answer.token_ids.at(0).size(), 400u);
  EXPECT_EQ(answer.token_ids.at(1).size(), 400u);
}

TEST(BeamsTest, KilledAndLateClientsGiveTheirBlocksBack) {
  Rig rig;
  pb::GenerateRequest request = Rig::TextRequest("abcdef", 400);
  request.mutable_beam()->set_beam_width(4);
  rig.executor.Pause(milliseconds(2));
  {
    Call call(rig.stub(), request);
    ASSERT_TRUE(call.Read());  // accepted
    EXPECT_TRUE(rig.Eventually([&] { return rig.Blocks().used_blocks() > 4; }));
    call.context.TryCancel();
    EXPECT_EQ(call.Finish().error_code(), StatusCode::CANCELLED);
  }
  rig.ExpectIdle();
  Call call(rig.stub(), request, milliseconds(100));
  EXPECT_EQ(call.Finish().error_code(), StatusCode::DEADLINE_EXCEEDED);
  rig.ExpectIdle();
}

TEST(PromptLogprobsTest, D01_D05_EachPositionOnceInOrderBeforeTheAnswer) {
  Rig rig;
  std::vector<TokenId> prompt;
  for (TokenId i = 0; i < 117; ++i) prompt.push_back(200 + i);
  for (const bool warm : {false, true}) {
    pb::GenerateRequest request = Rig::IdsRequest(prompt, 3);
    request.mutable_response()->set_prompt_logprobs(2);
    const Answer answer = rig.Generate(request);
    ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
    EXPECT_FALSE(answer.prompt_came_late);
    EXPECT_EQ(answer.num_accepted, 1);
    // In a step there are rows for 16 sequences: they came in parts.
    EXPECT_GT(answer.prompt_logprobs.size(), 1u) << "warm " << warm;
    uint32_t position = 1;
    for (const pb::PromptLogprobs& part : answer.prompt_logprobs) {
      EXPECT_EQ(part.first_position(), position);
      for (const pb::Logprobs& entry : part.logprobs()) {
        EXPECT_EQ(entry.token_id(), 200 + position);
        EXPECT_EQ(entry.logprob(), -0.25f * static_cast<float>(position));
        ASSERT_EQ(entry.top_size(), 2);
        EXPECT_EQ(entry.top(1).token_id(), position + 1);
        ++position;
      }
    }
    EXPECT_EQ(position, 117u);
    EXPECT_EQ(answer.token_ids.at(0).size(), 3u);
    const auto [status, result] = rig.GenerateUnary(request);
    ASSERT_TRUE(status.ok()) << status.error_message();
    ASSERT_EQ(result.prompt_logprobs_size(), 116);
    EXPECT_EQ(result.prompt_logprobs(115).token_id(), 200u + 116);
  }
  // A prompt of one token has nothing before it.
  pb::GenerateRequest request = Rig::IdsRequest({7}, 1);
  request.mutable_response()->set_prompt_logprobs(0);
  EXPECT_TRUE(rig.Generate(request).prompt_logprobs.empty());
  // Nobody else gets any.
  EXPECT_TRUE(rig.Generate(Rig::IdsRequest(prompt, 1)).prompt_logprobs.empty());
}

TEST(LogprobsTest, AskedTokensAreToldInTheirOrder) {
  Rig rig;
  pb::GenerateRequest request = Rig::TextRequest("abc", 2);
  for (const uint32_t id : {300u, 7u}) request.mutable_sampling()->add_logprob_token_ids(id);
  const Answer answer = rig.Generate(request);
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  ASSERT_EQ(answer.logprobs.at(0).size(), 2u);
  for (const pb::Logprobs& entry : answer.logprobs.at(0)) {
    ASSERT_EQ(entry.asked_size(), 2);
    EXPECT_EQ(entry.asked(0).token_id(), 300u);
    EXPECT_FLOAT_EQ(entry.asked(0).logprob(), -3.0f);
    EXPECT_EQ(entry.asked(1).token_id(), 7u);
    EXPECT_EQ(entry.top_size(), 0);
  }
}

// What the engine got of a request.
struct Seen {
  int32_t priority = 0;
  std::string tenant;
  SpeculationParams speculation;
};

TEST(PolicyFieldsTest, FieldsWinOverMetadata) {
  Rig rig;
  std::mutex mutex;
  Seen seen;
  rig.executor.Say([&](const Request& request, int32_t, int32_t) {
    const std::lock_guard lock(mutex);
    seen = {request.priority, request.tenant, request.speculation};
    return request.prompt[0];
  });
  const auto ask = [&](const pb::GenerateRequest& request, const char* priority,
                       const char* tenant) {
    grpc::ClientContext context;
    if (priority != nullptr) context.AddMetadata("x-priority", priority);
    if (tenant != nullptr) context.AddMetadata("x-tenant-id", tenant);
    const grpc::Status status = rig.Generate(context, request).status;
    const std::lock_guard lock(mutex);
    return std::pair(status, seen);
  };
  const pb::GenerateRequest plain = Rig::TextRequest("abc", 1);
  EXPECT_EQ(ask(plain, nullptr, nullptr).second.priority, 0);
  EXPECT_EQ(ask(plain, nullptr, nullptr).second.tenant, "");
  EXPECT_EQ(ask(plain, "-7", "blue").second.priority, -7);
  EXPECT_EQ(ask(plain, "-7", "blue").second.tenant, "blue");
  pb::GenerateRequest own = plain;
  own.mutable_scheduling()->set_priority(1000);
  own.mutable_scheduling()->set_tenant("green");
  EXPECT_EQ(ask(own, "-7", "blue").second.priority, 1000);
  EXPECT_EQ(ask(own, "-7", "blue").second.tenant, "green");
  own.mutable_scheduling()->set_priority(0);  // zero is zero
  EXPECT_EQ(ask(own, "-7", "blue").second.priority, 0);

  const std::string long_name(129, 'a');
  const std::vector<std::pair<std::pair<const char*, const char*>, std::string>> bad = {
      {{"1001", nullptr}, "x-priority=1001 is outside [-1000, 1000]"},
      {{"-1001", nullptr}, "x-priority=-1001"},
      {{"high", nullptr}, "x-priority=high is not a whole number"},
      {{"1.5", nullptr}, "x-priority=1.5"},
      {{"99999999999999", nullptr}, "x-priority=99999999999999"},
      {{nullptr, "two words"}, "x-tenant-id has a byte 0x20"},
      {{nullptr, long_name.c_str()}, "x-tenant-id has 129 bytes, limit is 128"},
  };
  for (const auto& [metadata, message] : bad) {
    const grpc::Status status = ask(plain, metadata.first, metadata.second).first;
    EXPECT_EQ(status.error_code(), StatusCode::INVALID_ARGUMENT) << message;
    EXPECT_NE(status.error_message().find(message), std::string::npos) << status.error_message();
  }
}

TEST(SpeculationTest, WhatIsAskedReachesTheEngine) {
  Rig rig;
  std::mutex mutex;
  SpeculationParams seen;
  rig.executor.Say([&](const Request& request, int32_t, int32_t) {
    const std::lock_guard lock(mutex);
    seen = request.speculation;
    return request.prompt[0];
  });
  const auto ask = [&](std::optional<pb::SpeculationMethod> method) {
    pb::GenerateRequest request = Rig::TextRequest("abc", 1);
    if (method) request.mutable_spec()->set_method(*method);
    if (method && *method != pb::SPECULATION_METHOD_NONE) {
      request.mutable_spec()->set_num_tokens(5);
      request.mutable_spec()->set_branching_factor(2);
    }
    const Answer answer = rig.Generate(request);
    EXPECT_TRUE(answer.status.ok()) << answer.status.error_message();
    const std::lock_guard lock(mutex);
    return seen;
  };
  EXPECT_EQ(ask(std::nullopt).method, SpeculationMethod::kServerDefault);
  EXPECT_EQ(ask(pb::SPECULATION_METHOD_NONE).method, SpeculationMethod::kNone);
  const SpeculationParams ngram = ask(pb::SPECULATION_METHOD_NGRAM);
  EXPECT_EQ(ngram.method, SpeculationMethod::kNgram);
  EXPECT_EQ(ngram.num_tokens, 5);
  EXPECT_EQ(ngram.branching_factor, 2);
  EXPECT_EQ(ask(pb::SPECULATION_METHOD_SUFFIX).method, SpeculationMethod::kSuffix);
  // `enable` alone; and what is not exact is only had by asking for it.
  EXPECT_FALSE(ngram.rejection_sampling);
  pb::GenerateRequest request = Rig::TextRequest("abc", 1);
  request.mutable_spec()->set_rejection_sampling(true);
  EXPECT_TRUE(rig.Generate(request).status.ok());
  EXPECT_TRUE(seen.rejection_sampling);
  request.mutable_spec()->clear_rejection_sampling();
  request.mutable_spec()->set_enable(false);
  EXPECT_TRUE(rig.Generate(request).status.ok());
  EXPECT_EQ(seen.method, SpeculationMethod::kNone);
  request.mutable_spec()->set_method(pb::SPECULATION_METHOD_NGRAM);
  const grpc::Status both = rig.Generate(request).status;
  EXPECT_EQ(both.error_code(), StatusCode::INVALID_ARGUMENT);
  EXPECT_NE(both.error_message().find("spec.enable=false"), std::string::npos);
}

// One refusal: how to make the request, and what the message must say.
struct Refusal {
  std::function<void(pb::GenerateRequest&)> change;
  std::vector<std::string> parts;
};

void ExpectRefusals(Rig& rig, const std::vector<Refusal>& cases) {
  for (const Refusal& c : cases) {
    pb::GenerateRequest request = Rig::TextRequest("abc", 4);
    c.change(request);
    for (const bool unary : {false, true}) {
      const grpc::Status status =
          unary ? rig.GenerateUnary(request).first : rig.Generate(request).status;
      EXPECT_EQ(status.error_code(), StatusCode::INVALID_ARGUMENT)
          << c.parts[0] << ": " << status.error_message();
      for (const std::string& part : c.parts) {
        EXPECT_NE(status.error_message().find(part), std::string::npos)
            << part << " is not in: " << status.error_message();
      }
    }
  }
  rig.ExpectIdle();
  rig.Probe();
}

TEST(DecodingRefusalsTest, RangesOfBeamsBestOfAndGuesses) {
  Rig rig;
  const auto beam = [](auto set) {
    return [set](pb::GenerateRequest& r) {
      r.mutable_beam()->set_beam_width(4);
      set(*r.mutable_beam());
    };
  };
  const auto ranked = [](int32_t n, int32_t best_of, float temperature = 1) {
    return [=](pb::GenerateRequest& r) {
      r.mutable_sampling()->set_n(n);
      r.mutable_sampling()->set_best_of(best_of);
      r.mutable_sampling()->set_temperature(temperature);
    };
  };
  const auto spec = [](auto set) {
    return [set](pb::GenerateRequest& r) { set(*r.mutable_spec()); };
  };
  using B = pb::BeamParams;
  using S = pb::SpeculativeParams;
  ExpectRefusals(
      rig, {
               {beam([](B& b) { b.set_beam_width(65); }), {"beam.beam_width=65", "64"}},
               {beam([](B& b) { b.set_beam_width(-1); }), {"beam.beam_width=-1"}},
               {beam([](B& b) { b.clear_beam_width(); }), {"beam.beam_width is not set"}},
               {beam([](B& b) {
                  b.set_beam_width(0);
                  b.set_num_return_sequences(2);
                }),
                {"beam.num_return_sequences=2", "beam_width is 0"}},
               {beam([](B& b) { b.set_num_return_sequences(5); }),
                {"beam.num_return_sequences=5", "beam_width=4"}},
               {beam([](B& b) { b.set_num_groups(3); }), {"beam.num_groups=3", "beam_width=4"}},
               {beam([](B& b) { b.set_length_penalty(101); }),
                {"beam.length_penalty=101", "[-100, 100]"}},
               {beam([](B& b) { b.set_diversity_rate(0.5f); }),
                {"beam.diversity_rate=0.5", "num_groups"}},
               {beam([](B& b) { b.set_early_stopping(static_cast<pb::EarlyStopping>(9)); }),
                {"beam.early_stopping=9"}},
               {ranked(1, 0), {"sampling.best_of=0", "128"}},
               {ranked(1, 129), {"sampling.best_of=129", "128"}},
               {ranked(3, 2), {"sampling.best_of=2", "n=3"}},
               {ranked(1, 2, 0), {"sampling.best_of=2", "temperature"}},
               // More than the server runs at once, in words of what was asked for.
               {ranked(1, 17), {"n=17", "max_num_seqs", "best_of=17"}},
               {spec([](S& s) { s.set_method(static_cast<pb::SpeculationMethod>(8)); }),
                {"spec.method=8"}},
               {spec([](S& s) { s.set_method(pb::SPECULATION_METHOD_DRAFT); }),
                {"spec.method=draft", "no", "ngram"}},
               {spec([](S& s) { s.set_num_tokens(65); }), {"spec.num_tokens=65", "64"}},
               {spec([](S& s) { s.set_branching_factor(0); }), {"spec.branching_factor=0", "16"}},
               {spec([](S& s) {
                  s.set_method(pb::SPECULATION_METHOD_NONE);
                  s.set_num_tokens(3);
                }),
                {"spec.num_tokens=3", "none"}},
               {[](pb::GenerateRequest& r) { r.mutable_response()->set_prompt_logprobs(21); },
                {"response.prompt_logprobs=21", "20"}},
               {[](pb::GenerateRequest& r) { r.mutable_response()->set_prompt_logprobs(-2); },
                {"response.prompt_logprobs=-2"}},
               {[](pb::GenerateRequest& r) { r.mutable_sampling()->add_logprob_token_ids(801); },
                {"sampling.logprob_token_ids[0]=801", "800"}},
               {[](pb::GenerateRequest& r) {
                  for (int i = 0; i < 129; ++i) r.mutable_sampling()->add_logprob_token_ids(1);
                },
                {"sampling.logprob_token_ids", "129", "128"}},
               {[](pb::GenerateRequest& r) { r.mutable_scheduling()->set_priority(1001); },
                {"scheduling.priority=1001", "[-1000, 1000]"}},
               {[](pb::GenerateRequest& r) { r.mutable_scheduling()->set_tenant("a\nb"); },
                {"scheduling.tenant", "0x0a"}},
               {[](pb::GenerateRequest& r) { r.set_lora_name("mine"); },
                {"lora_name=mine", "no adapters are served"}},
           });
}

TEST(DecodingRefusalsTest, WhatCantBeHadTogether) {
  Rig rig;
  const auto beams_with = [](auto set) {
    return [set](pb::GenerateRequest& r) {
      r.mutable_beam()->set_beam_width(4);
      set(r);
    };
  };
  using R = pb::GenerateRequest;
  ExpectRefusals(
      rig,
      {
          {beams_with([](R& r) { r.mutable_sampling()->set_n(2); }),
           {"sampling.n=2", "num_return_sequences"}},
          {beams_with([](R& r) { r.mutable_sampling()->set_best_of(2); }),
           {"sampling.best_of=2", "beam_width=4"}},
          {beams_with([](R& r) { r.mutable_sampling()->set_temperature(0.7f); }),
           {"sampling.temperature=0.7", "beam_width=4"}},
          {beams_with([](R& r) { r.mutable_sampling()->set_top_k(5); }), {"sampling.top_k=5"}},
          {beams_with([](R& r) { r.mutable_stopping()->add_stop("x"); }),
           {"stopping.stop", "beam_width=4", "stop_token_ids"}},
          {beams_with([](R& r) { r.mutable_response()->set_num_logprobs(3); }),
           {"response.num_logprobs=3"}},
          {beams_with([](R& r) { r.mutable_sampling()->add_logprob_token_ids(3); }),
           {"sampling.logprob_token_ids"}},
          {beams_with([](R& r) { r.mutable_spec()->set_method(pb::SPECULATION_METHOD_NGRAM); }),
           {"spec.method=ngram", "beam_width=4"}},
          {beams_with([](R& r) {
             r.mutable_guided()->set_regex("a+");
             r.mutable_stopping()->set_ignore_eos(true);
           }),
           {"guided", "beam_width=4", "ignore_eos"}},
          // Candidates are kept until the last has ended.
          {[](R& r) {
             r.mutable_sampling()->set_best_of(64);
             r.mutable_response()->set_num_logprobs(20);
             for (int i = 0; i < 128; ++i) r.mutable_sampling()->add_logprob_token_ids(1);
             for (int i = 0; i < 120; ++i) r.mutable_token_ids()->add_ids(1);
             r.mutable_stopping()->clear_max_tokens();
           },
           {"the answer may take", "max_message_bytes"}},
      });
}

TEST(DecodingRefusalsTest, BeamsTakeTheDefaultsAndZeroTemperature) {
  RigOptions options;
  options.eos_token_ids = {800};
  Rig rig(options);
  pb::GenerateRequest request = Rig::TextRequest("abc", 3);
  request.mutable_beam()->set_beam_width(2);
  for (const std::optional<float> temperature : {std::optional<float>(), {0.0f}, {1.0f}}) {
    if (temperature) request.mutable_sampling()->set_temperature(*temperature);
    const Answer answer = rig.Generate(request);
    EXPECT_TRUE(answer.status.ok()) << answer.status.error_message();
    EXPECT_EQ(answer.token_ids.at(0).size(), 3u);
  }
  // A width of 0 is no beam search.
  request.mutable_beam()->set_beam_width(0);
  request.mutable_sampling()->set_temperature(0.5f);
  EXPECT_TRUE(rig.Generate(request).status.ok());
}

}  // namespace
}  // namespace quire::server_test
