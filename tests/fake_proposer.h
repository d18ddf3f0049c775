// tests/fake_proposer.h -- guesses of known quality: what the fake model is going to say, now and
// then spoiled.
#pragma once

#include <algorithm>
#include <random>
#include <span>
#include <string_view>
#include <vector>

#include "scheduler/speculative.h"
#include "tests/fake_executor.h"

namespace quire::sched_test {

class FakeProposer final : public Proposer {
 public:
  FakeProposer(uint32_t seed, int32_t percent_right) : rng_(seed), percent_right_(percent_right) {}

  std::string_view name() const override { return "fake"; }

  void Propose(std::span<DraftRequest> requests) override {
    for (DraftRequest& r : requests) {
      EXPECT_EQ(r.seq->num_drafts, 0);
      EXPECT_GE(r.max_tokens, 1);
      EXPECT_GE(r.max_chains, 1);
      r.chains.clear();
      const size_t right = rng_() % static_cast<size_t>(r.max_chains);  // which chain may be
      for (size_t c = 0; c < static_cast<size_t>(r.max_chains); ++c) {
        DraftChain chain{Guess(r, c == right)};
        const bool known = std::any_of(r.chains.begin(), r.chains.end(), [&](const DraftChain& x) {
          return x.tokens[0] == chain.tokens[0];
        });
        if (!known) r.chains.push_back(std::move(chain));
      }
      ++proposals_;
    }
  }
  void OnEnd(SequenceId) override { ++ends_; }

  int64_t proposals() const { return proposals_; }
  int64_t ends() const { return ends_; }

 private:
  std::vector<TokenId> Guess(const DraftRequest& r, bool right) {
    std::vector<TokenId> tokens = r.seq->tokens;
    const size_t known = tokens.size();
    const auto length = 1 + rng_() % static_cast<uint32_t>(r.max_tokens);
    for (uint32_t i = 0; i < length; ++i) {
      const Request& request = *r.seq->request;
      TokenId next = NextToken(request, tokens, request.prompt.size(), r.seq->branch).token;
      if (!right || static_cast<int32_t>(rng_() % 100) >= percent_right_) {
        next = static_cast<TokenId>((next + 1 + rng_() % 3) % kVocab);
      }
      tokens.push_back(next);
    }
    return {tokens.begin() + static_cast<std::ptrdiff_t>(known), tokens.end()};
  }

  std::mt19937 rng_;
  const int32_t percent_right_;
  int64_t proposals_ = 0;
  int64_t ends_ = 0;
};

}  // namespace quire::sched_test
