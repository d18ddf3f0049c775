// tests/draft_proposer_test.cc -- a draft model's guesses against the goldens of the same
// checkpoint, which transformers computed: in step, behind, after truncation, in a pool that is too
// small for all, and with windows.
#include "models/draft_proposer.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "tests/support/golden_file.h"
#include "tests/support/model_harness.h"

namespace quire {
namespace {

using Ids = std::vector<TokenId>;

std::string Checkpoint(const std::string& name) { return QUIRE_TEST_REFERENCE "/models/" + name; }

struct Golden {
  explicit Golden(const std::string& name) {
    const Json json = ReadGoldenJson(Checkpoint(name) + "/golden.json");
    const auto ids = [](const Json& list) {
      Ids out;
      for (size_t i = 0; i < list.size(); ++i) {
        out.push_back(static_cast<TokenId>(*list.at(i).as_int()));
      }
      return out;
    };
    const Json list = json["prompts"];
    for (size_t i = 0; i < list.size(); ++i) {
      prompts.push_back(ids(list.at(i)["input_ids"]));
      greedy.push_back(ids(list.at(i)["greedy"]));
    }
  }
  Ids Part(size_t prompt, size_t from, size_t count) const {
    const Ids& g = greedy[prompt];
    const size_t end = std::min(g.size(), from + count);
    return {g.begin() + static_cast<std::ptrdiff_t>(from),
            g.begin() + static_cast<std::ptrdiff_t>(end)};
  }
  std::vector<Ids> prompts, greedy;
};

ModelConfig ConfigOf(const std::string& name) {
  return OpenCheckpoint(Checkpoint(name)).value().config;
}

struct Spec {
  float temperature = 0;
  uint64_t seed = 0;
  int32_t branch = 0;
  std::string salt;
  bool bypass = false;
  std::vector<TokenId> stop;
};

std::unique_ptr<Sequence> NewSequence(SequenceId id, const Ids& prompt, const Spec& spec = {}) {
  auto request = std::make_shared<Request>();
  request->id = id;
  request->prompt = prompt;
  request->sampling.temperature = spec.temperature;
  request->sampling.num_logprobs = 3;  // of no use to guesses
  request->seed = spec.seed;
  request->cache_salt = spec.salt;
  request->bypass_prefix_cache = spec.bypass;
  request->stop.max_tokens = 400;
  request->stop.stop_token_ids = spec.stop;
  auto seq = std::make_unique<Sequence>();
  seq->id = id;
  seq->branch = spec.branch;
  seq->request = std::move(request);
  seq->tokens = prompt;
  return seq;
}

class DraftModel : public testing::Test {
 protected:
  void Load(const std::string& name, DraftModelOptions options = {}) {
    options.model = Checkpoint(name);
    if (options.num_blocks == 0) options.num_blocks = 64;
    auto loaded = DraftModelProposer::Load(options, ConfigOf(name), threads_);
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    proposer_ = *std::move(loaded);
  }
  // One call for all; the first chain of each.
  std::vector<Ids> Ask(const std::vector<const Sequence*>& seqs, int32_t max_tokens) {
    std::vector<DraftRequest> requests;
    for (const Sequence* seq : seqs) requests.push_back({.seq = seq, .max_tokens = max_tokens});
    proposer_->Propose(requests);
    EXPECT_TRUE(proposer_->Audit().ok()) << proposer_->Audit();
    std::vector<Ids> chains;
    for (const DraftRequest& r : requests) {
      EXPECT_LE(r.chains.size(), 1u);
      chains.push_back(r.chains.empty() ? Ids{} : r.chains[0].tokens);
    }
    return chains;
  }
  Ids Ask(const Sequence& seq, int32_t max_tokens) {
    return Ask(std::vector<const Sequence*>{&seq}, max_tokens)[0];
  }

  ThreadPool threads_{1};
  std::unique_ptr<DraftModelProposer> proposer_;
};

TEST_F(DraftModel, GuessesAreItsGoldenTokens) {
  for (const std::string name : {"llama", "mistral", "gemma3"}) {
    SCOPED_TRACE(name);
    Load(name, {.num_blocks = 128, .max_num_seqs = 4});
    const Golden golden(name);
    int accepted = 0;
    for (size_t p = 0; p < golden.prompts.size(); ++p) {
      auto seq = NewSequence(p + 1, golden.prompts[p]);
      // What a step keeps: all guesses and one more, or some, or none and a token of its own.
      const size_t kept[] = {6, 3, 1, 5, 2};
      size_t done = 0;
      for (size_t i = 0; done < 24; ++i) {
        ASSERT_EQ(Ask(*seq, 5), golden.Part(p, done, 5)) << "prompt " << p << " at " << done;
        const Ids fresh = golden.Part(p, done, kept[i % 5]);
        seq->tokens.insert(seq->tokens.end(), fresh.begin(), fresh.end());
        done += fresh.size();
        accepted += static_cast<int>(fresh.size()) - 1;
      }
    }
    // What was guessed right is not computed again, but for the last guess, which has no row.
    EXPECT_GT(proposer_->stats().reused, accepted / 2);
    EXPECT_EQ(proposer_->stats().failures, 0);
    EXPECT_EQ(proposer_->num_sequences(), 4u);
    for (SequenceId id = 1; id <= 5; ++id) proposer_->OnEnd(id);
    EXPECT_EQ(proposer_->num_sequences(), 0u);
    for (const PagePool& pool : proposer_->blocks().pools()) EXPECT_EQ(pool.num_active(), 0);
  }
}

TEST_F(DraftModel, ManyAtOnceAreOneBatch) {
  Load("llama");
  const Golden golden("llama");
  std::vector<std::unique_ptr<Sequence>> seqs;
  std::vector<const Sequence*> all;
  for (size_t p = 0; p < golden.prompts.size(); ++p) {
    seqs.push_back(NewSequence(p + 1, golden.prompts[p]));
    all.push_back(seqs.back().get());
  }
  const std::vector<Ids> chains = Ask(all, 8);
  for (size_t p = 0; p < chains.size(); ++p) EXPECT_EQ(chains[p], golden.Part(p, 0, 8)) << p;
}

TEST_F(DraftModel, WrongTokensAreTakenBack) {
  for (const std::string name : {"llama", "gemma3"}) {
    SCOPED_TRACE(name);
    Load(name);
    const Golden golden(name);
    for (size_t p = 0; p < golden.prompts.size(); ++p) {
      auto seq = NewSequence(p + 1, golden.prompts[p]);
      EXPECT_EQ(Ask(*seq, 6), golden.Part(p, 0, 6));
      // It went another way, so guesses are others; then as if nothing had been.
      const TokenId wrong = golden.greedy[p][0] == 7 ? 8 : 7;
      seq->tokens.push_back(wrong);
      EXPECT_EQ(Ask(*seq, 6).size(), 6u);
      seq->tokens.resize(golden.prompts[p].size());
      EXPECT_EQ(Ask(*seq, 6), golden.Part(p, 0, 6));
      // Far back: the whole history was another.
      seq->tokens.assign(60, wrong);
      EXPECT_EQ(Ask(*seq, 6).size(), 6u);
      seq->tokens = golden.prompts[p];
      EXPECT_EQ(Ask(*seq, 6), golden.Part(p, 0, 6));
    }
  }
}

TEST_F(DraftModel, ALongPromptIsCaughtUpInChunks) {
  Load("llama", {.max_num_seqs = 4, .max_step_tokens = 20});
  const Golden golden("llama");
  auto longest = NewSequence(1, golden.prompts[3]);   // 70 tokens
  auto shortest = NewSequence(2, golden.prompts[1]);  // 7 tokens
  int calls = 0;
  std::vector<Ids> chains;
  do {
    const int32_t before = proposer_->NumBehind(*longest);
    chains = Ask({longest.get(), shortest.get()}, 4);
    EXPECT_EQ(chains[1], golden.Part(1, 0, 4)) << "call " << calls;  // does not wait
    EXPECT_LT(proposer_->NumBehind(*longest), before);
    ++calls;
  } while (chains[0].empty() && calls < 20);
  EXPECT_EQ(calls, 4);  // 20 - 7, then 20 - 1 three times, of 70
  EXPECT_EQ(chains[0], golden.Part(3, 0, 4));
  EXPECT_EQ(proposer_->NumBehind(*longest), 0);
}

TEST_F(DraftModel, AFullPoolDropsTheLeastRecentlyUsed) {
  // Room for two of the 33 token prompts with 8 guesses, not for all.
  Load("llama", {.num_blocks = 8, .max_num_seqs = 4});
  const Golden golden("llama");
  std::vector<std::unique_ptr<Sequence>> seqs;
  for (SequenceId id = 1; id <= 4; ++id) {
    // Each in a salt of its own, so that nothing is shared.
    seqs.push_back(NewSequence(id, golden.prompts[2], {.salt = std::to_string(id)}));
  }
  for (int round = 0; round < 3; ++round) {
    for (auto& seq : seqs) {
      const auto done = static_cast<size_t>(seq->num_output_tokens());
      EXPECT_EQ(Ask(*seq, 8), golden.Part(2, done, 8)) << round;
      seq->tokens.push_back(golden.greedy[2][done]);
    }
  }
  EXPECT_GT(proposer_->stats().evicted, 5);
  // All at once: those that fit are served, the others get nothing, and it stays so.
  int served = 0, empty = 0;
  for (int round = 0; round < 4; ++round) {
    const std::vector<Ids> chains =
        Ask({seqs[0].get(), seqs[1].get(), seqs[2].get(), seqs[3].get()}, 8);
    for (size_t i = 0; i < 4; ++i) {
      if (chains[i].empty()) {
        ++empty;
        continue;
      }
      const auto done = static_cast<size_t>(seqs[i]->num_output_tokens());
      EXPECT_EQ(chains[i], golden.Part(2, done, 8));
      ++served;
    }
  }
  EXPECT_GE(served, 4);
  EXPECT_GE(empty, 4);
  // A sequence longer than the pool: no guess, no end.
  Ids too_long(200, 5);
  auto seq = NewSequence(9, too_long);
  EXPECT_EQ(Ask(*seq, 8), Ids());
}

// The same checkpoint as target and draft: what the target samples with this seed is what the draft
// guesses, at any temperature.
TEST_F(DraftModel, SeededGuessesAreTheTargetsSamples) {
  Load("llama");
  const Golden golden("llama");
  auto harness = ModelHarness::Open(Checkpoint("llama"), {});
  ASSERT_TRUE(harness.ok()) << harness.status();
  std::map<Ids, int> outputs;
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    for (int32_t branch : {0, 2}) {
      const Spec spec{.temperature = 1.2f, .seed = seed, .branch = branch};
      const SequenceId id = seed * 10 + static_cast<SequenceId>(branch);
      auto target = NewSequence(id, golden.prompts[1], spec);
      target->tables = (*harness)->blocks().NewTables((*harness)->blocks().InternRoot("test"));
      (*harness)->Generate(*target, 12);
      const Ids want(target->tokens.begin() + target->num_prompt_tokens(), target->tokens.end());
      ++outputs[want];
      auto seq = NewSequence(id, golden.prompts[1], spec);
      EXPECT_EQ(Ask(*seq, 12), want);
      seq->tokens.insert(seq->tokens.end(), want.begin(), want.begin() + 5);
      EXPECT_EQ(Ask(*seq, 7), Ids(want.begin() + 5, want.end()));
    }
  }
  EXPECT_GT(outputs.size(), 10u);  // the seed matters
}

TEST_F(DraftModel, ChainsBesideTheFirstAreTheNextBestTokens) {
  Load("llama");
  const Golden golden("llama");
  const GoldenFile tensors(Checkpoint("llama") + "/golden.safetensors");
  auto seq = NewSequence(1, golden.prompts[2]);
  std::vector<float> logits = tensors.Floats("prompt2.last_logits");
  Ids ranked(logits.size());
  for (size_t i = 0; i < ranked.size(); ++i) ranked[i] = static_cast<TokenId>(i);
  std::sort(ranked.begin(), ranked.end(), [&](TokenId a, TokenId b) {
    return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
  });
  DraftRequest request{.seq = seq.get(), .max_tokens = 3, .max_chains = 4};
  proposer_->Propose({&request, 1});
  ASSERT_EQ(request.chains.size(), 4u);
  EXPECT_EQ(request.chains[0].tokens, golden.Part(2, 0, 3));
  for (size_t r = 1; r < 4; ++r) EXPECT_EQ(request.chains[r].tokens, Ids{ranked[r]});
}

TEST_F(DraftModel, NothingIsGuessedBehindAStopToken) {
  Load("llama");
  const Golden golden("llama");
  const Ids& greedy = golden.greedy[1];
  const TokenId stop = greedy[3];
  const auto first =
      static_cast<size_t>(std::find(greedy.begin(), greedy.end(), stop) - greedy.begin());
  auto seq = NewSequence(1, golden.prompts[1], {.stop = {stop}});
  EXPECT_EQ(Ask(*seq, 10), golden.Part(1, 0, first + 1));
}

TEST_F(DraftModel, PromptsAreSharedInsideASaltOnly) {
  Load("llama");
  const Golden golden("llama");
  const Ids& prompt = golden.prompts[3];  // 70 tokens: 4 blocks of 16
  const auto computed = [&](SequenceId id, const Spec& spec) {
    const int64_t before = proposer_->stats().computed;
    auto seq = NewSequence(id, prompt, spec);
    EXPECT_EQ(Ask(*seq, 1), golden.Part(3, 0, 1));
    return proposer_->stats().computed - before;
  };
  EXPECT_EQ(computed(1, {.salt = "a"}), 70);
  EXPECT_EQ(computed(2, {.salt = "a"}), 6);
  EXPECT_EQ(computed(3, {.salt = "b"}), 70);
  EXPECT_EQ(computed(4, {.salt = "a", .bypass = true}), 70);
  EXPECT_EQ(computed(5, {.salt = "a", .bypass = true}), 70);
  // Branches of a request, in one step.
  auto one = NewSequence(11, prompt, {.salt = "n"});
  auto two = NewSequence(12, prompt, {.branch = 1, .salt = "n"});
  const int64_t before = proposer_->stats().computed;
  const std::vector<Ids> chains = Ask({one.get(), two.get()}, 1);
  EXPECT_EQ(chains[0], golden.Part(3, 0, 1));
  EXPECT_EQ(chains[1], golden.Part(3, 0, 1));
  EXPECT_EQ(proposer_->stats().computed - before, 70 + 6);
}

// Whatever happens to sequences: a guess is a function of the tokens alone, so a proposer that has
// seen nothing before must say the same.
TEST_F(DraftModel, RandomWalks) {
  for (const std::string name : {"llama", "mistral"}) {
    SCOPED_TRACE(name);
    Load(name, {.block_size = 8,
                .num_blocks = name == "llama" ? 24 : 14,
                .max_num_seqs = 4,
                .max_step_tokens = 32,
                .max_draft_tokens = 6});
    std::unique_ptr<DraftModelProposer> owner = std::move(proposer_);
    DraftModelProposer* const walked = owner.get();
    Load(name, {.block_size = 8, .num_blocks = 64});
    std::mt19937 random(17);
    std::vector<std::unique_ptr<Sequence>> live;
    SequenceId next_id = 1;
    int compared = 0, cut = 0, ended = 0;
    for (int step = 0; step < 150; ++step) {
      while (live.size() < 5) {
        Ids prompt(1 + random() % 60);
        for (TokenId& t : prompt) t = static_cast<TokenId>(random() % 200);
        const bool warm = random() % 2 == 0;
        live.push_back(
            NewSequence(next_id, prompt, {.temperature = warm ? 0.8f : 0.0f, .seed = next_id}));
        ++next_id;
      }
      std::vector<DraftRequest> requests;
      for (auto& seq : live) {
        if (random() % 4 == 0) continue;
        requests.push_back(
            {.seq = seq.get(), .max_tokens = static_cast<int32_t>(random() % 8), .max_chains = 1});
      }
      walked->Propose(requests);
      ASSERT_TRUE(walked->Audit().ok()) << walked->Audit();
      for (DraftRequest& r : requests) {
        auto& seq =
            live[static_cast<size_t>(std::find_if(live.begin(), live.end(),
                                                  [&](const auto& s) { return s.get() == r.seq; }) -
                                     live.begin())];
        size_t kept = 0;
        if (!r.chains.empty()) {
          const Ids& chain = r.chains[0].tokens;
          ASSERT_LE(chain.size(), static_cast<size_t>(std::min(r.max_tokens, 6)));
          if (compared % 4 == 0) {  // the fresh one is slow
            auto copy = NewSequence(
                1, seq->request->prompt,
                {.temperature = seq->request->sampling.temperature, .seed = seq->request->seed});
            copy->tokens = seq->tokens;
            ASSERT_EQ(chain, Ask(*copy, static_cast<int32_t>(chain.size()))) << "step " << step;
            proposer_->OnEnd(1);
          }
          ++compared;
          kept = random() % (chain.size() + 1);
          seq->tokens.insert(seq->tokens.end(), chain.begin(),
                             chain.begin() + static_cast<std::ptrdiff_t>(kept));
        }
        seq->tokens.push_back(static_cast<TokenId>(random() % 200));
      }
      for (size_t i = 0; i < live.size(); ++i) {
        Sequence& seq = *live[i];
        if (random() % 12 == 0 && seq.num_output_tokens() > 2) {
          const auto prompt = static_cast<size_t>(seq.num_prompt_tokens());
          seq.tokens.resize(prompt + random() % (seq.tokens.size() - prompt));
          ++cut;
        }
        if (random() % 25 == 0 || seq.tokens.size() > 150) {
          walked->OnEnd(seq.id);
          live.erase(live.begin() + static_cast<std::ptrdiff_t>(i));
          ++ended;
          break;
        }
      }
    }
    EXPECT_GT(compared, 100);
    EXPECT_GT(cut, 10);
    EXPECT_GT(ended, 10);
    EXPECT_GT(walked->stats().evicted, 5);
    EXPECT_GT(walked->stats().reused, 20);
    for (auto& seq : live) walked->OnEnd(seq->id);
    EXPECT_EQ(walked->num_sequences(), 0u);
    for (const PagePool& pool : walked->blocks().pools()) EXPECT_EQ(pool.num_active(), 0);
  }
}

TEST_F(DraftModel, RefusedByField) {
  ModelConfig target = ConfigOf("llama");
  DraftModelOptions options{.model = Checkpoint("llama"), .num_blocks = 8};
  const auto refusal = [&](const ModelConfig& config, const DraftModelOptions& o) {
    const auto loaded = DraftModelProposer::Load(o, config, threads_);
    EXPECT_FALSE(loaded.ok());
    return std::string(loaded.status().message());
  };
  target.vocab_size = 201;
  EXPECT_NE(refusal(target, options).find("vocab_size=200, the target's is 201"),
            std::string::npos);
  target.vocab_size = 200;
  DraftModelOptions wrong = options;
  wrong.num_blocks = 0;
  EXPECT_NE(refusal(target, wrong).find("draft_num_blocks=0"), std::string::npos);
  wrong = options;
  wrong.max_step_tokens = 3;
  EXPECT_NE(refusal(target, wrong).find("max_step_tokens=3"), std::string::npos);
  wrong = options;
  wrong.max_draft_tokens = 0;
  EXPECT_NE(refusal(target, wrong).find("max_draft_tokens=0"), std::string::npos);
  wrong = options;
  wrong.model = Checkpoint("not-there");
  EXPECT_NE(refusal(target, wrong).find("not-there"), std::string::npos);
}

}  // namespace
}  // namespace quire
