// The daemon over gRPC with a scripted model: what is asked for and what comes back.
// HARD-CASES B04, E01, E03, E04, E05, E10, H13 by RPC. What is refused is in
// server_refusals_test.cc, faults (cancels, deadlines, slow readers, drain) in
// server_faults_test.cc.
#include <set>

#include "server/convert.h"
#include "tests/support/server_rig.h"

namespace quire::server_test {
namespace {

using grpc::StatusCode;

TEST(ServerTest, EverySamplingFieldHasATwinInTheProto) {
  EXPECT_EQ(SamplingFieldsWithoutTwin(), std::vector<std::string>{});
  // And the other way round: what is in the message is mapped, by name or by hand.
  const std::set<std::string> by_hand = {"seed",      "logit_bias", "allowed_token_ids",
                                         "bad_words", "best_of",    "logprob_token_ids"};
  std::set<std::string> visited;
  SamplingParams params;
  SamplingParams::VisitFields(
      params, [&](std::string_view name, auto&, auto, auto) { visited.emplace(name); });
  const auto* descriptor = pb::SamplingParams::descriptor();
  for (int i = 0; i < descriptor->field_count(); ++i) {
    const std::string& name = descriptor->field(i)->name();
    EXPECT_EQ(visited.count(name) + by_hand.count(name), 1u) << name;
  }
}

// Every field of the message arrives in the struct with the value that was sent.
TEST(ServerTest, SamplingFieldsArriveUnchanged) {
  Rig rig;
  ServedModel model;
  model.name = "m";
  model.vocab_size = 800;
  model.max_model_len = 100;
  pb::GenerateRequest r;
  r.mutable_token_ids()->add_ids(1);
  pb::SamplingParams& s = *r.mutable_sampling();
  s.set_temperature(0.25f);
  s.set_top_p(0.5f);
  s.set_top_k(7);
  s.set_min_p(0.125f);
  s.set_typical_p(0.75f);
  s.set_top_n_sigma(2.0f);
  s.set_repetition_penalty(1.5f);
  s.set_presence_penalty(-1.0f);
  s.set_frequency_penalty(0.5f);
  s.set_no_repeat_ngram_size(3);
  s.set_n(2);
  s.set_seed(0);
  (*s.mutable_logit_bias())[5] = -2.0f;
  s.add_allowed_token_ids(6);
  s.add_bad_words()->add_ids(8);
  r.mutable_stopping()->set_max_tokens(11);
  r.mutable_stopping()->set_min_tokens(4);
  r.mutable_stopping()->add_stop_token_ids(9);
  r.mutable_response()->set_num_logprobs(5);
  r.mutable_kv()->set_cache_salt("salt");
  r.mutable_kv()->set_bypass_prefix_cache(true);
  const auto g = FromProto(r, model, {.id = 3, .time = Clock::now()}, false);
  ASSERT_TRUE(g.ok()) << Message(g.status());
  const SamplingParams& p = g->request->sampling;
  EXPECT_EQ(p.temperature, 0.25f);
  EXPECT_EQ(p.top_p, 0.5f);
  EXPECT_EQ(p.top_k, 7);
  EXPECT_EQ(p.min_p, 0.125f);
  EXPECT_EQ(p.typical_p, 0.75f);
  EXPECT_EQ(p.top_n_sigma, 2.0f);
  EXPECT_EQ(p.repetition_penalty, 1.5f);
  EXPECT_EQ(p.presence_penalty, -1.0f);
  EXPECT_EQ(p.frequency_penalty, 0.5f);
  EXPECT_EQ(p.no_repeat_ngram_size, 3);
  EXPECT_EQ(p.n, 2);
  EXPECT_EQ(p.min_tokens, 4);
  EXPECT_EQ(p.num_logprobs, 5);
  EXPECT_EQ(p.seed, std::optional<uint64_t>(0));
  EXPECT_EQ(g->request->seed, 0u);
  EXPECT_EQ(p.logit_bias, (std::vector<std::pair<TokenId, float>>{{5, -2.0f}}));
  EXPECT_EQ(p.allowed_token_ids, (std::vector<TokenId>{6}));
  EXPECT_EQ(p.bad_words, (std::vector<std::vector<TokenId>>{{8}}));
  EXPECT_EQ(g->request->stop.max_tokens, 11);
  EXPECT_EQ(g->request->stop.stop_token_ids, (std::vector<TokenId>{9}));
  EXPECT_EQ(g->request->cache_salt, "salt");
  EXPECT_TRUE(g->request->bypass_prefix_cache);
  EXPECT_EQ(g->request->prompt, (std::vector<TokenId>{1}));
}

// E01, E10: what is streamed, joined, is the unary answer, and both are the decoded ids.
TEST(ServerTest, StreamedTextIsTheUnaryTextAndTheDecodedIds) {
  Rig rig;
  for (const std::string text :
       {"Hello world\n  code", "\xED\x95\x9C\xEA\xB5\xAD\xEC\x96\xB4 Hangul",
        "\xE0\xB8\x81\xE0\xB8\xB3\xE0\xB8\xA5\xE0\xB8\xB1\xE0\xB8\x87 Thai",
        "emoji \xF0\x9F\x98\x80 family "
        "\xF0\x9F\x91\xA8\xE2\x80\x8D\xF0\x9F\x91\xA9\xE2\x80\x8D\xF0\x9F\x91\xA7 flag "
        "\xF0\x9F\x87\xA9\xF0\x9F\x87\xAA",
        "a  b   c", "nul \0 inside"}) {
    const auto n = static_cast<int32_t>(rig.Encode(text).size());
    pb::GenerateRequest request = Rig::TextRequest(text, n);
    const Answer streamed = rig.Generate(request);
    ASSERT_TRUE(streamed.status.ok()) << streamed.status.error_message();
    const auto [status, unary] = rig.GenerateUnary(request);
    ASSERT_TRUE(status.ok()) << status.error_message();
    ASSERT_EQ(unary.outputs_size(), 1);
    EXPECT_EQ(streamed.texts.at(0), text);  // the model echoes its prompt
    EXPECT_EQ(unary.outputs(0).text(), text);
    EXPECT_EQ(streamed.texts.at(0).find("\xEF\xBF\xBD"), std::string::npos);
    const std::vector<TokenId> ids = rig.Encode(text);
    ASSERT_EQ(unary.outputs(0).token_ids_size(), n);
    for (int32_t i = 0; i < n; ++i) {
      EXPECT_EQ(unary.outputs(0).token_ids(i), static_cast<uint32_t>(ids[static_cast<size_t>(i)]));
    }
    EXPECT_EQ(streamed.token_ids.at(0).size(), static_cast<size_t>(n));
    EXPECT_EQ(streamed.finished.at(0).reason(), pb::FINISH_REASON_LENGTH);
    EXPECT_EQ(streamed.usage.completion_tokens(), static_cast<uint32_t>(n));
    EXPECT_EQ(streamed.usage.prompt_tokens(), static_cast<uint32_t>(n));
    EXPECT_EQ(unary.usage().completion_tokens(), static_cast<uint32_t>(n));
    EXPECT_EQ(streamed.num_accepted, 1);
    EXPECT_EQ(streamed.num_finished.at(0), 1);
  }
  rig.ExpectIdle();
}

// E05: an answer that ends within a character; one rule for stream and unary, valid UTF-8 always.
TEST(ServerTest, LengthLimitInsideACharacter) {
  Rig rig;
  const std::string emoji = "\xF0\x9F\xA6\x84\xF0\x9F\xA6\x84";
  const auto total = static_cast<int32_t>(rig.Encode(emoji).size());
  ASSERT_GT(total, 2) << "the emoji takes several tokens here";
  int32_t num_cut = 0;
  for (int32_t n = 1; n <= total; ++n) {
    pb::GenerateRequest request = Rig::TextRequest(emoji, n);
    request.mutable_response()->set_num_logprobs(0);
    const Answer streamed = rig.Generate(request);
    const auto [status, unary] = rig.GenerateUnary(request);
    ASSERT_TRUE(status.ok() && streamed.status.ok());
    const std::vector<TokenId> ids = rig.Encode(emoji);
    const std::vector<TokenId> first(ids.begin(), ids.begin() + n);
    const std::string expected = rig.tokenizer().Decode(first, true);
    EXPECT_EQ(streamed.texts.at(0), expected) << n;
    EXPECT_EQ(unary.outputs(0).text(), expected) << n;
    EXPECT_EQ(streamed.finished.at(0).reason(), pb::FINISH_REASON_LENGTH);
    EXPECT_EQ(streamed.logprobs.at(0).size(), static_cast<size_t>(n));
    num_cut += expected.find("\xEF\xBF\xBD") != std::string::npos;
  }
  EXPECT_GT(num_cut, 0);
}

// E03, E04 over the wire; usage and ids tell of nothing behind the match.
TEST(ServerTest, StopStrings) {
  Rig rig;
  const std::string text = "one\n\nUsed two\n\nUser: three";
  const auto n = static_cast<int32_t>(rig.Encode(text).size());
  pb::GenerateRequest request = Rig::TextRequest(text, n);
  request.mutable_stopping()->add_stop("\n\nUser:");
  request.mutable_response()->set_num_logprobs(0);
  const Answer answer = rig.Generate(request);
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  EXPECT_EQ(answer.texts.at(0), "one\n\nUsed two");
  EXPECT_EQ(answer.finished.at(0).reason(), pb::FINISH_REASON_STOP);
  EXPECT_EQ(answer.finished.at(0).stop_string(), "\n\nUser:");
  // The kept ids are the fewest whose text holds the match.
  std::vector<TokenId> kept(answer.token_ids.at(0).begin(), answer.token_ids.at(0).end());
  EXPECT_NE(rig.tokenizer().Decode(kept, true).find("\n\nUser:"), std::string::npos);
  kept.pop_back();
  EXPECT_EQ(rig.tokenizer().Decode(kept, true).find("\n\nUser:"), std::string::npos);
  EXPECT_EQ(answer.usage.completion_tokens(), answer.token_ids.at(0).size());
  EXPECT_EQ(answer.finished.at(0).completion_tokens(), answer.token_ids.at(0).size());
  EXPECT_EQ(answer.logprobs.at(0).size(), answer.token_ids.at(0).size());
  EXPECT_LT(answer.token_ids.at(0).size(), static_cast<size_t>(n));

  request.mutable_stopping()->set_include_stop_in_output(true);
  EXPECT_EQ(rig.Generate(request).texts.at(0), "one\n\nUsed two\n\nUser:");
  const auto [status, unary] = rig.GenerateUnary(request);
  ASSERT_TRUE(status.ok());
  EXPECT_EQ(unary.outputs(0).text(), "one\n\nUsed two\n\nUser:");

  pb::GenerateRequest never = Rig::TextRequest("abc def", 3);
  never.mutable_stopping()->add_stop(std::string(30, 'z'));
  const Answer held = rig.Generate(never);
  std::vector<TokenId> ids = rig.Encode("abc def");
  std::vector<TokenId> three;
  for (size_t i = 0; i < 3; ++i) three.push_back(ids[i % ids.size()]);
  EXPECT_EQ(held.texts.at(0), rig.tokenizer().Decode(three, true));
  EXPECT_EQ(held.finished.at(0).reason(), pb::FINISH_REASON_LENGTH);
  rig.ExpectIdle();
}

// B04: branches that end at different lengths: one end for each, usage is the sum.
TEST(ServerTest, BranchesEndAtDifferentLengths) {
  Rig rig;
  rig.executor.Say([](const Request&, int32_t branch, int32_t num_output) {
    return num_output == 2 + 3 * branch ? 99 : 100 + branch;
  });
  pb::GenerateRequest request = Rig::IdsRequest({1, 2, 3}, 20);
  request.mutable_sampling()->set_n(3);
  request.mutable_stopping()->add_stop_token_ids(99);
  for (int i = 0; i < 20; ++i) {
    const Answer answer = rig.Generate(request);
    ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
    ASSERT_EQ(answer.finished.size(), 3u);
    size_t sum = 0;
    for (uint32_t b = 0; b < 3; ++b) {
      EXPECT_EQ(answer.num_finished.at(b), 1);
      EXPECT_EQ(answer.finished.at(b).reason(), pb::FINISH_REASON_STOP);
      EXPECT_EQ(answer.finished.at(b).stop_token_id(), 99u);
      EXPECT_EQ(answer.token_ids.at(b).size(), 3 + 3 * b);
      EXPECT_EQ(answer.finished.at(b).completion_tokens(), 3 + 3 * b);
      sum += answer.token_ids.at(b).size();
    }
    EXPECT_EQ(answer.usage.completion_tokens(), sum);
    const auto [status, unary] = rig.GenerateUnary(request);
    ASSERT_TRUE(status.ok());
    ASSERT_EQ(unary.outputs_size(), 3);
    for (int b = 0; b < 3; ++b) {
      EXPECT_EQ(unary.outputs(b).output_index(), static_cast<uint32_t>(b));
      EXPECT_EQ(unary.outputs(b).token_ids_size(), 3 + 3 * b);
      EXPECT_EQ(unary.outputs(b).finished().reason(), pb::FINISH_REASON_STOP);
    }
    EXPECT_EQ(unary.usage().completion_tokens(), sum);
  }
  rig.ExpectIdle();
}

TEST(ServerTest, EndTokensEndTheAnswerUnlessIgnored) {
  RigOptions options;
  options.eos_token_ids = {50};
  Rig rig(options);
  rig.executor.Say([](const Request&, int32_t, int32_t i) { return i == 3 ? 50 : 60; });
  pb::GenerateRequest request = Rig::IdsRequest({1, 2}, 8);
  const Answer ended = rig.Generate(request);
  EXPECT_EQ(ended.token_ids.at(0).size(), 4u);
  EXPECT_EQ(ended.finished.at(0).reason(), pb::FINISH_REASON_STOP);
  EXPECT_EQ(ended.finished.at(0).stop_token_id(), 50u);
  EXPECT_EQ(ended.texts.at(0), rig.tokenizer().Decode(std::vector<TokenId>{60, 60, 60}, true));
  request.mutable_stopping()->set_include_stop_in_output(true);
  EXPECT_EQ(rig.Generate(request).texts.at(0),
            rig.tokenizer().Decode(std::vector<TokenId>{60, 60, 60, 50}, true));
  request.mutable_stopping()->set_ignore_eos(true);
  EXPECT_EQ(rig.Generate(request).token_ids.at(0).size(), 8u);
}

TEST(ServerTest, LogprobsComeWithTheirTokens) {
  Rig rig;
  pb::GenerateRequest request = Rig::IdsRequest({5, 6, 7}, 6);
  request.mutable_response()->set_num_logprobs(3);
  const Answer answer = rig.Generate(request);
  ASSERT_EQ(answer.logprobs.at(0).size(), 6u);
  for (size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(answer.logprobs.at(0)[i].token_id(), answer.token_ids.at(0)[i]);
    EXPECT_EQ(answer.logprobs.at(0)[i].logprob(), -0.5f);
    EXPECT_EQ(answer.logprobs.at(0)[i].top_size(), 3);
  }
  request.mutable_response()->clear_num_logprobs();
  request.mutable_response()->set_token_ids(false);
  Answer plain = rig.Generate(request);
  EXPECT_TRUE(plain.logprobs[0].empty());
  EXPECT_TRUE(plain.token_ids[0].empty());
  EXPECT_FALSE(plain.texts.at(0).empty());
}

TEST(ServerTest, SharedPrefixShowsInUsage) {
  Rig rig;
  const pb::GenerateRequest request = Rig::IdsRequest(std::vector<TokenId>(100, 7), 4);
  EXPECT_EQ(rig.Generate(request).usage.cached_tokens(), 0u);
  EXPECT_EQ(rig.Generate(request).usage.cached_tokens(), 96u);  // whole blocks of 8, one token left
  pb::GenerateRequest salted = request;
  salted.mutable_kv()->set_cache_salt("other");
  EXPECT_EQ(rig.Generate(salted).usage.cached_tokens(), 0u);
  pb::GenerateRequest bypass = request;
  bypass.mutable_kv()->set_bypass_prefix_cache(true);
  EXPECT_EQ(rig.Generate(bypass).usage.cached_tokens(), 0u);
  const pb::BlockStats stats = rig.Blocks();
  EXPECT_EQ(stats.cached_tokens(), 96u);
  EXPECT_GT(stats.cached_blocks(), 0u);
}

TEST(ServerTest, TokenizeAndDetokenize) {
  Rig rig;
  const std::string text = "Hello w\xC3\xB6rld <|endoftext|>!";
  grpc::ClientContext c1;
  pb::TokenizeRequest request;
  request.set_text(text);
  pb::TokenizeResponse tokens;
  ASSERT_TRUE(rig.stub().Tokenize(&c1, request, &tokens).ok());
  std::vector<TokenId> ids(tokens.token_ids().begin(), tokens.token_ids().end());
  EXPECT_EQ(ids, rig.Encode(text));
  pb::DetokenizeRequest back;
  *back.mutable_token_ids() = tokens.token_ids();
  back.set_skip_special_tokens(false);
  pb::DetokenizeResponse response;
  grpc::ClientContext c2;
  ASSERT_TRUE(rig.stub().Detokenize(&c2, back, &response).ok());
  EXPECT_EQ(response.text(), text);
  back.add_token_ids(801);
  grpc::ClientContext c3;
  const grpc::Status status = rig.stub().Detokenize(&c3, back, &response);
  EXPECT_EQ(status.error_code(), StatusCode::INVALID_ARGUMENT);
  EXPECT_NE(status.error_message().find("=801 is outside [0, 800]"), std::string::npos);
  grpc::ClientContext c4;
  EXPECT_EQ(rig.stub().Tokenize(&c4, {}, &tokens).error_code(), StatusCode::INVALID_ARGUMENT);
}

TEST(ServerTest, ServerInfoShowsBothKindsOfLimits) {
  Rig rig;
  const pb::ServerInfo info = rig.Info();
  EXPECT_EQ(info.max_model_len(), 512u);
  EXPECT_EQ(info.max_num_seqs(), 16u);
  EXPECT_EQ(info.max_num_batched_tokens(), 64u);
  EXPECT_EQ(info.served_model_name(), "scripted");
  EXPECT_FALSE(info.draining());
  EXPECT_GT(info.resident_bytes(), 1u << 20);
}

}  // namespace
}  // namespace quire::server_test
