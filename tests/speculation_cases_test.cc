// tests/speculation_cases_test.cc -- HARD-CASES of kind (i) and D04: guesses through the real
// scheduler and executor on a tiny model.
#include <gtest/gtest.h>

#include <random>

#include "scheduler/ngram_proposer.h"
#include "tests/support/engine_run.h"

namespace quire {
namespace {

const std::string kLlama = std::string(QUIRE_TEST_REFERENCE) + "/models/llama";

std::shared_ptr<Request> Greedy(RequestId id, std::vector<TokenId> prompt, int32_t max_tokens) {
  auto r = std::make_shared<Request>();
  r->id = id;
  r->prompt = std::move(prompt);
  r->sampling.temperature = 0;
  r->sampling.num_logprobs = 2;
  r->stop.max_tokens = max_tokens;
  return r;
}

Outcome RunEach(const Requests& requests, Proposer* proposer, int32_t num_tokens,
                int32_t max_num_seqs = 24) {
  EngineSetup setup{.max_num_seqs = max_num_seqs,
                    .speculation = SpeculationMethod::kNgram,
                    .proposer = proposer,
                    .num_speculative_tokens = num_tokens};
  setup.harness.num_blocks = 1200;
  std::vector<Requests> rounds;
  for (const auto& r : requests) rounds.push_back({r});
  return RunRounds(kLlama, setup, rounds);
}

// Proposes what it is told, each time.
class Stubborn final : public Proposer {
 public:
  explicit Stubborn(std::vector<TokenId> tokens) : tokens_(std::move(tokens)) {}
  std::string_view name() const override { return "stubborn"; }
  void Propose(std::span<DraftRequest> requests) override {
    for (DraftRequest& r : requests) {
      const auto length = std::min(tokens_.size(), static_cast<size_t>(r.max_tokens));
      r.chains = {{{tokens_.begin(), tokens_.begin() + static_cast<std::ptrdiff_t>(length)}}};
    }
  }

 private:
  const std::vector<TokenId> tokens_;
};

// Also the first guess is compared with what the target says there.
TEST(SpeculationCases, I01_TheFirstGuessIsVerified) {
  std::mt19937 rng(1);
  Requests requests;
  requests.push_back(Greedy(1, {1, 1, 1}, 12));
  for (RequestId id = 2; id <= 200; ++id) {
    std::vector<TokenId> prompt;
    for (size_t k = 1 + rng() % 12; k > 0; --k) {
      prompt.push_back(static_cast<TokenId>(3 + rng() % 8));  // few words, so they repeat
    }
    requests.push_back(Greedy(id, std::move(prompt), 12));
  }
  const Outputs plain = RunEach(requests, nullptr, 0).outputs;
  for (int32_t length = 1; length <= 8; ++length) {
    NgramProposer ngram(MatchOptions{.min_match = 1});
    Stubborn ones(std::vector<TokenId>(static_cast<size_t>(length), 1));
    for (Proposer* const proposer : std::initializer_list<Proposer*>{&ngram, &ones}) {
      const Outcome run = RunEach(requests, proposer, length);
      EXPECT_EQ(run.outputs, plain) << proposer->name() << " length " << length;
      EXPECT_GT(run.stats.draft_tokens, 50);
      EXPECT_LT(run.stats.accepted_draft_tokens, run.stats.draft_tokens);
    }
  }
}

// Everything that depends on the output so far counts the guesses before a row, and no later ones.
TEST(SpeculationCases, I06_PenaltiesBansAndSeedsHoldInsideTheWindow) {
  const std::vector<TokenId> prompt = {5, 9, 5, 9, 5, 9};
  const std::vector<TokenId> said =
      RunEach({Greedy(1, prompt, 16)}, nullptr, 0).outputs.at({1, 0}).tokens;
  const TokenId eos = said[2];
  Requests requests;
  auto add = [&](auto change) {
    auto r = Greedy(requests.size() + 1, prompt, 16);
    change(*r);
    requests.push_back(r);
  };
  add([](Request& r) { r.sampling.frequency_penalty = 1.0f; });
  add([](Request& r) { r.sampling.repetition_penalty = 1.5f; });
  add([](Request& r) { r.sampling.presence_penalty = 2.0f; });
  add([](Request& r) { r.sampling.no_repeat_ngram_size = 2; });
  add([&](Request& r) {  // the end token is guessed at 3, and must not come before 10
    r.stop.eos_token_ids = {eos};
    r.sampling.min_tokens = 10;
  });
  add([&](Request& r) { r.sampling.logit_bias = {{eos, -100.0f}}; });
  add([&](Request& r) { r.sampling.bad_words = {{said[0], said[1]}}; });
  add([](Request& r) {
    r.sampling.temperature = 1.0f;
    r.sampling.frequency_penalty = 0.5f;
    r.seed = 3;
  });
  const Outputs plain = RunEach(requests, nullptr, 0).outputs;
  Stubborn as_said(said);
  Stubborn repeats(std::vector<TokenId>(4, said[0]));
  NgramProposer ngram(MatchOptions{.min_match = 1});
  for (Proposer* const proposer : std::initializer_list<Proposer*>{&as_said, &repeats, &ngram}) {
    const Outcome run = RunEach(requests, proposer, 8);
    EXPECT_EQ(run.outputs, plain) << proposer->name();
    EXPECT_GT(run.stats.draft_tokens, 5);
    const std::vector<TokenId>& biased = run.outputs.at({6, 0}).tokens;
    EXPECT_EQ(std::count(biased.begin(), biased.end(), eos), 0);
    EXPECT_GE(run.outputs.at({5, 0}).tokens.size(), 10u);
  }
}

// In the same steps: a prompt in chunks, a text that repeats itself, and one that doesn't.
TEST(SpeculationCases, D04_LogprobsStandWhereTheyBelong) {
  std::mt19937 rng(4);
  Requests requests;
  for (RequestId id = 1; id <= 12; ++id) {
    std::vector<TokenId> prompt;
    const size_t length = id % 3 == 0 ? 200 : 10;
    while (prompt.size() < length) {
      prompt.push_back(static_cast<TokenId>(3 + rng() % (id % 3 == 1 ? 2 : 190)));
    }
    auto r = Greedy(id, std::move(prompt), 20);
    if (id % 3 == 2) {
      r->sampling.temperature = 1.0f;
      r->seed = id;
    }
    requests.push_back(r);
  }
  const Outputs plain = RunEach(requests, nullptr, 0).outputs;
  NgramProposer ngram(MatchOptions{.min_match = 1});
  EngineSetup setup{.max_num_seqs = 24,
                    .budget = 40,
                    .speculation = SpeculationMethod::kNgram,
                    .proposer = &ngram,
                    .num_speculative_tokens = 4};
  setup.harness.num_blocks = 1200;
  const Outcome run = RunRounds(kLlama, setup, {requests});
  EXPECT_EQ(run.outputs, plain);
  EXPECT_GT(run.stats.draft_tokens, 10);
}

}  // namespace
}  // namespace quire
