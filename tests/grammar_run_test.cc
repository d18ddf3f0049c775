// tests/grammar_run_test.cc -- grammars through the real scheduler and executor: alone, with n,
// beams, guesses and jump-forward, preempted; T02's invariant for beams.
//
// The judge of a text is a few lines that read it, of a logprob the model itself, teacher
// forced: no grammar and no beam search is needed for either.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <string_view>

#include "sampling/grammar.h"
#include "scheduler/ngram_proposer.h"
#include "tests/support/engine_run.h"

namespace quire {
namespace {

// A model with a vocabulary of 256 one-byte tokens would do; the tiny ones have made-up ids, so
// each id gets a text: letters, digits, pieces of JSON.
GrammarVocabulary Vocabulary(int32_t vocab_size, TokenId eos) {
  GrammarVocabulary v;
  v.vocab_size = vocab_size;
  v.stop_ids = {eos};
  const std::vector<std::string> pieces = {"{\"",   "\":",  "\"}",    "name", "age", ", \"", "true",
                                           "false", "null", "\", \"", "  ",   "na",  "me\""};
  for (TokenId id = 0; id < vocab_size; ++id) {
    if (id < 3) {
      v.token_bytes.emplace_back();
    } else if (id - 3 < 95) {
      v.token_bytes.push_back(std::string(1, static_cast<char>(' ' + id - 3)));
    } else if (static_cast<size_t>(id - 98) < pieces.size()) {
      v.token_bytes.push_back(pieces[static_cast<size_t>(id - 98)]);
    } else {
      v.token_bytes.emplace_back();
    }
  }
  return v;
}

constexpr TokenId kEos = 2;
const std::string kModels = std::string(QUIRE_TEST_REFERENCE) + "/models/";

class GrammarRun : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    auto opened = ModelHarness::Open(model(), {});
    ASSERT_TRUE(opened.ok()) << opened.status();
    vocabulary_ = Vocabulary((*opened)->config().vocab_size, kEos);
    auto made = GrammarCompiler::Make(vocabulary_);
    ASSERT_TRUE(made.ok()) << made.status();
    compiler_ = std::move(*made);
  }
  std::string model() const { return kModels + GetParam(); }

  std::shared_ptr<Request> Make(RequestId id, const GrammarSpec& spec, int32_t max_tokens) {
    auto compiled = compiler_->Compile(spec);
    CHECK(compiled.ok(), "{}", Message(compiled.status()));
    auto r = std::make_shared<Request>();
    r->id = id;
    for (int i = 0; i < 7 + static_cast<int>(id); ++i) r->prompt.push_back(5 + i * 3 % 100);
    r->grammar = *compiled;
    r->stop.max_tokens = max_tokens;
    r->stop.eos_token_ids = {kEos};
    r->sampling.num_logprobs = 1;
    r->sampling.temperature = 0.9f;
    r->seed = id;
    return r;
  }
  std::string TextOf(const std::vector<TokenId>& tokens) const {
    std::string text;
    for (const TokenId t : tokens) text += vocabulary_.token_bytes[static_cast<size_t>(t)];
    return text;
  }
  Outcome Run(const std::vector<Requests>& rounds, EngineSetup setup = {}) const {
    if (setup.harness.pool_blocks.empty()) setup.harness.num_blocks = 1200;
    return RunRounds(model(), setup, rounds);
  }

  GrammarVocabulary vocabulary_;
  std::unique_ptr<GrammarCompiler> compiler_;
};

const GrammarSpec kRegex{.kind = GrammarSpec::Kind::kRegex, .text = "(ab|cd)[0-9]{9,16}-x*y"};
// The same by hand.
bool Matches(std::string_view text) {
  if (!text.starts_with("ab") && !text.starts_with("cd")) return false;
  text.remove_prefix(2);
  const size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
  if (digits < 9 || digits > 16) return false;
  text.remove_prefix(digits);
  if (!text.starts_with("-")) return false;
  text.remove_prefix(1);
  text.remove_prefix(std::min(text.find_first_not_of('x'), text.size()));
  return text == "y";
}
const GrammarSpec kChoice{.kind = GrammarSpec::Kind::kChoice, .choices = {"yes", "no", "maybe so"}};

TEST_P(GrammarRun, OutputsMatchAndDoNotDependOnCompany) {
  Requests requests;
  for (RequestId id = 1; id <= 12; ++id) {
    auto r = Make(id, id % 2 == 0 ? kRegex : kChoice, 22);
    r->sampling.n = id % 4 == 0 ? 3 : 1;
    if (id % 3 == 0) r->sampling.temperature = 0;
    if (id == 5) r->sampling.min_tokens = 12;  // "yes" is shorter: the grammar's end counts
    requests.push_back(r);
  }
  Outputs solo;
  for (const auto& r : requests) solo.merge(Run({{r}}).outputs);
  for (const auto& [key, out] : solo) {
    const std::string text = TextOf(out.tokens);
    if (out.finish == FinishReason::kLength) continue;
    EXPECT_EQ(out.finish, FinishReason::kStop);
    if (key.first % 2 == 0) {
      EXPECT_TRUE(Matches(text)) << text;
    } else {
      EXPECT_TRUE(text == "yes" || text == "no" || text == "maybe so") << text;
    }
  }
  EXPECT_GT(std::count_if(solo.begin(), solo.end(),
                          [](const auto& o) { return o.second.finish == FinishReason::kStop; }),
            6);
  EXPECT_EQ(Run({requests}).outputs, solo);
  EngineSetup tight{.max_num_seqs = 16, .budget = 32, .prefix_caching = true};
  tight.harness.block_size = 8;
  tight.harness.pool_blocks = TightPools(model(), tight, requests);
  Requests crowd;
  for (RequestId round = 0; round < 4; ++round) {
    for (const auto& r : requests) {
      auto copy = std::make_shared<Request>(*r);
      copy->id += 1000 * round;
      crowd.push_back(copy);
    }
  }
  const Outcome preempted = Run({crowd}, tight);
  ASSERT_EQ(preempted.outputs.size(), 4 * solo.size());
  for (const auto& [key, out] : preempted.outputs) {
    EXPECT_EQ(out, solo.at({key.first % 1000, key.second}));
  }
  EXPECT_GE(preempted.stats.preemptions, 3);
  NgramProposer ngram(MatchOptions{.min_match = 1});
  EngineSetup guesses{.max_num_seqs = 24,
                      .speculation = SpeculationMethod::kNgram,
                      .proposer = &ngram,
                      .num_speculative_tokens = 6};
  std::vector<Requests> rounds;
  for (const auto& r : requests) rounds.push_back({r});
  const Outcome guessed = Run(rounds, guesses);
  EXPECT_EQ(guessed.outputs, solo);
  EXPECT_GT(guessed.stats.draft_tokens, 0);
}

// What is forced is guessed, and comes out in fewer steps, with the same bits.
TEST_P(GrammarRun, JumpForwardChangesNoBit) {
  GrammarSpec spec{.kind = GrammarSpec::Kind::kRegex,
                   .text = "start of the answer: [0-9]{2} end of the answer!"};
  const auto request = Make(1, spec, 120);
  const Outcome plain = Run({{request}});
  EngineSetup jump;
  jump.token_text.encode = [&](std::string_view text) {
    std::vector<TokenId> ids;
    for (const char c : text) ids.push_back(3 + c - ' ');
    return ids;
  };
  jump.token_text.bytes = [&](TokenId id) -> std::string_view {
    return vocabulary_.token_bytes[static_cast<size_t>(id)];
  };
  const Outcome jumped = Run({{request}}, jump);
  EXPECT_EQ(jumped.outputs, plain.outputs);
  EXPECT_GT(jumped.stats.forced_draft_tokens, 10);
  EXPECT_GT(jumped.stats.accepted_draft_tokens, 5);
  EXPECT_LT(jumped.stats.steps, plain.stats.steps);
  EXPECT_EQ(TextOf(plain.outputs.at({1, 0}).tokens).substr(0, 21), "start of the answer: ");
}

// T02: each returned beam's logprobs are those of its own tokens, teacher forced: penalties, masks
// and caches went along with the beam. And it is what the grammar allows.
TEST_P(GrammarRun, T02_BeamsKeepWhatIsTheirs) {
  for (const bool grammar : {false, true}) {
    auto r = Make(1, kRegex, 24);
    if (!grammar) r->grammar = nullptr;
    r->sampling.temperature = 0;
    r->sampling.frequency_penalty = grammar ? 0.0f : 0.8f;
    r->beam = {.beam_width = 4, .num_return_sequences = 4};
    const Outcome run = Run({{r}});
    ASSERT_EQ(run.outputs.size(), 4u);
    EXPECT_GT(run.stats.beam_forks, 3);
    for (const auto& [key, out] : run.outputs) {
      // The same request, which may only say this.
      double sum = 0;
      for (size_t i = 0; i < out.tokens.size(); ++i) {
        auto forced = std::make_shared<Request>(*r);
        forced->id = 100;
        forced->beam = {.beam_width = 1, .num_return_sequences = 1};
        forced->grammar = nullptr;
        forced->sampling.frequency_penalty = 0;
        forced->sampling.allowed_token_ids = {out.tokens[i]};
        forced->prompt.insert(forced->prompt.end(), out.tokens.begin(),
                              out.tokens.begin() + static_cast<std::ptrdiff_t>(i));
        forced->stop.max_tokens = 1;
        const Outcome one = Run({{forced}});
        float want = std::bit_cast<float>(one.outputs.at({100, 0}).logprob_bits[0]);
        if (!grammar) {
          want -= 0.8f * static_cast<float>(std::count(out.tokens.begin(),
                                                       out.tokens.begin() + static_cast<long>(i),
                                                       out.tokens[i]));
        }
        EXPECT_NEAR(std::bit_cast<float>(out.logprob_bits[i]), want, 1e-4);
        sum += want;
      }
      EXPECT_NEAR(run.scores.at(key), sum / static_cast<double>(out.tokens.size()), 1e-3);
      if (grammar && out.finish == FinishReason::kStop) {
        EXPECT_TRUE(Matches(TextOf(out.tokens))) << TextOf(out.tokens);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, GrammarRun, testing::Values("llama", "mistral", "gemma3"));

}  // namespace
}  // namespace quire
