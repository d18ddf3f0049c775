// tests/scheduler_harness.h -- a model too simple to be wrong, a client that checks the protocol,
// and a clock that only moves when told: what the tests of scheduler/ share.
//
// The fake model's next token is a hash of everything that a real one's may depend on: prompt,
// output, where one ends and the other begins, seed and branch. So what a branch must say is
// computed by Expected() without any scheduler. The fake executor keeps, for each slot of each
// page, whose token at which position was written there, copies pages as told, spoils pages that
// are free, and demands that each scheduled sequence finds exactly its own tokens through its page
// tables. Any error of caching, sharing, forking or preempting shows there, before it could change
// a token.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "scheduler/beam.h"
#include "scheduler/executor.h"
#include "scheduler/sequence.h"

namespace quire::sched_test {

inline constexpr int32_t kVocab = 211;

inline uint64_t Mix(uint64_t h, uint64_t x) {
  h ^= x + 0x9e3779b97f4a7c15ull;
  h *= 0xff51afd7ed558ccdull;
  return h ^ (h >> 29);
}

inline bool IsStop(const Request& r, TokenId token) {
  const auto in = [&](const std::vector<TokenId>& ids) {
    return std::find(ids.begin(), ids.end(), token) != ids.end();
  };
  return in(r.stop.eos_token_ids) || in(r.stop.stop_token_ids);
}

// The next token of `branch` after `tokens`, the first prompt_len of which are the prompt.
inline Sampled NextToken(const Request& r, std::span<const TokenId> tokens, size_t prompt_len,
                         int32_t branch) {
  uint64_t h = Mix(r.seed, static_cast<uint64_t>(branch));
  h = Mix(h, prompt_len);
  for (const TokenId token : tokens) h = Mix(h, static_cast<uint64_t>(token));
  Sampled sampled;
  sampled.token = static_cast<TokenId>(h % kVocab);
  const auto num_output = static_cast<int32_t>(tokens.size() - prompt_len);
  while (num_output < r.sampling.min_tokens && IsStop(r, sampled.token)) {
    sampled.token = (sampled.token + 1) % kVocab;
  }
  sampled.logprob = -static_cast<float>(h % 4096) / 256.0f;
  return sampled;
}

// What the fake model thinks of prompt token `position`.
inline Sampled PromptLogprobOf(const Request& r, int32_t position) {
  uint64_t h = 77;
  for (int32_t i = 0; i <= position; ++i) {
    h = Mix(h, static_cast<uint64_t>(r.prompt[static_cast<size_t>(i)]));
  }
  Sampled sampled;
  sampled.token = r.prompt[static_cast<size_t>(position)];
  sampled.logprob = -static_cast<float>(h % 4096) / 256.0f;
  return sampled;
}

// For beams: the k best tokens after `tokens`; logprobs all differ by chance.
inline std::vector<TokenLogprob> BestTokens(const Request& r, std::span<const TokenId> tokens,
                                            size_t k) {
  uint64_t h = Mix(r.seed, r.prompt.size());
  for (const TokenId token : tokens) h = Mix(h, static_cast<uint64_t>(token));
  std::vector<TokenLogprob> all;
  for (TokenId t = 0; t < kVocab; ++t) {
    const uint64_t x = Mix(h, static_cast<uint64_t>(t) + 1) % 100'000;
    all.push_back({t, -static_cast<float>(x) / 10'000.0f});
  }
  std::sort(all.begin(), all.end(), [](const TokenLogprob& a, const TokenLogprob& b) {
    return a.logprob != b.logprob ? a.logprob > b.logprob : a.token < b.token;
  });
  all.resize(std::min(k, all.size()));
  return all;
}

// What a beam search returns if nothing interferes: every beam computed from its tokens alone.
inline std::vector<Hypothesis> ExpectedBeams(const Request& r) {
  BeamSearch search(r.beam, r.stop);
  std::vector<std::vector<TokenId>> beams = {r.prompt};
  while (!search.done()) {
    std::vector<std::vector<TokenLogprob>> rows;
    for (const std::vector<TokenId>& tokens : beams) {
      rows.push_back(BestTokens(r, tokens, static_cast<size_t>(search.num_candidates())));
    }
    std::vector<std::vector<TokenId>> next;
    for (const NextBeam& beam : search.Advance(rows)) {
      next.push_back(beams[static_cast<size_t>(beam.parent)]);
      next.back().push_back(beam.token);
    }
    beams = std::move(next);
  }
  return search.Best();
}

// What `branch` says if nothing interferes.
inline std::vector<TokenId> Expected(const Request& r, int32_t branch) {
  std::vector<TokenId> tokens = r.prompt;
  for (int32_t i = 1; i <= r.stop.max_tokens; ++i) {
    tokens.push_back(NextToken(r, tokens, r.prompt.size(), branch).token);
    if (i > r.sampling.min_tokens && IsStop(r, tokens.back())) break;
  }
  return {tokens.begin() + static_cast<std::ptrdiff_t>(r.prompt.size()), tokens.end()};
}

class FakeExecutor final : public Executor {
 public:
  FakeExecutor(const BlockManager& blocks, int32_t max_num_batched_tokens, bool private_roots,
               int32_t max_rows = INT32_MAX)
      : blocks_(blocks),
        max_tokens_(max_num_batched_tokens),
        max_rows_(max_rows),
        private_roots_(private_roots) {
    for (const PagePool& pool : blocks.pools()) {
      storage_.emplace_back(static_cast<size_t>(pool.num_usable() + 1) *
                            static_cast<size_t>(pool.page_size()));
    }
    for (const PagePool& pool : blocks.host_pools()) {
      host_.emplace_back(static_cast<size_t>(pool.num_usable() + 1) *
                         static_cast<size_t>(pool.page_size()));
    }
  }

  absl::StatusOr<StepOutput> Run(const ScheduledBatch& batch) override {
    ++steps_;
    for (const PageCopy& copy : batch.copies) CopyPage(copy);
    if (!next_error_.ok()) return std::exchange(next_error_, absl::OkStatus());
    CheckShape(batch);
    SpoilFreePages();  // not earlier: the source of a copy may be free already
    // What is found must be complete, or be written in this step by somebody before.
    std::set<std::pair<int32_t, int64_t>> written;
    for (const ScheduledSeq& s : batch.seqs) {
      Read(s, s.first_pos);
      Write(s, written);
    }
    for (const ScheduledSeq& s : batch.seqs) Read(s, s.first_pos + s.num_tokens);
    StepOutput output;
    int32_t rows = 0;
    for (size_t i = 0; i < batch.seqs.size(); ++i) {
      const ScheduledSeq& s = batch.seqs[i];
      const Request& r = *s.seq->request;
      const std::span<const TokenId> tokens = s.seq->tokens;
      const auto index = static_cast<int32_t>(i);
      rows += s.num_prompt_logprobs + (s.num_samples > 0 ? 1 + s.num_drafts : 0);
      for (int32_t k = 0; k < s.num_prompt_logprobs; ++k) {
        const int32_t position = s.first_prompt_logprob + k + 1;
        output.prompt_rows.push_back({index, position, PromptLogprobOf(r, position)});
      }
      const auto known = static_cast<size_t>(s.seq->num_tokens());
      if (s.num_candidates > 0) {
        output.rows.push_back({index, s.seq->branch, 0, {}});
        output.rows.back().sampled.top =
            BestTokens(r, tokens.first(known), static_cast<size_t>(s.num_candidates));
        continue;
      }
      for (int32_t d = 0; d <= s.num_drafts && s.num_samples > 0; ++d) {
        for (int32_t k = 0; k < s.num_samples; ++k) {
          const int32_t branch = s.seq->branch + k;
          output.rows.push_back({index, branch, d,
                                 NextToken(r, tokens.first(known + static_cast<size_t>(d)),
                                           r.prompt.size(), branch)});
        }
      }
    }
    if (rows > max_rows_) Wrong(fmt::format("{} rows of logits, limit {}", rows, max_rows_));
    return output;
  }

  void FailNext(absl::Status error) { next_error_ = std::move(error); }
  int64_t steps() const { return steps_; }
  int64_t saves() const { return saves_; }  // pages to the host tier, and back
  int64_t loads() const { return loads_; }
  const std::string& first_error() const { return first_error_; }

 private:
  struct Slot {
    TokenId token = -1;
    int32_t pos = -1;
    int32_t group = -1;
    uint64_t root = 0;
    friend bool operator==(const Slot&, const Slot&) = default;
  };

  void Wrong(const std::string& what) {
    if (!first_error_.empty()) return;
    first_error_ = what;
    ADD_FAILURE() << "step " << steps_ << ": " << what;
  }

  // What two sequences must have in common to share pages, besides tokens.
  uint64_t Root(const Request& r) const {
    const uint64_t salt = std::hash<std::string>()(r.cache_salt);
    return Mix(salt, private_roots_ || r.bypass_prefix_cache ? r.id + 1 : 0);
  }

  Slot Content(const ScheduledSeq& s, int32_t pos, size_t group) const {
    return {s.seq->tokens[static_cast<size_t>(pos)], pos, static_cast<int32_t>(group),
            Root(*s.seq->request)};
  }

  void CheckShape(const ScheduledBatch& batch) {
    int32_t num_tokens = 0;
    std::set<const Sequence*> seen;
    for (const ScheduledSeq& s : batch.seqs) {
      num_tokens += s.num_tokens;
      const int32_t end = s.first_pos + s.num_tokens;
      const auto all = static_cast<int32_t>(s.seq->tokens.size());
      const bool reaches_end = end == all;
      if (s.num_drafts != s.seq->num_drafts || s.num_drafts >= s.num_tokens) {
        Wrong(fmt::format("{} guesses of {} tokens, {} known", s.num_drafts, s.num_tokens,
                          s.seq->num_tokens()));
      }
      if (s.num_tokens < 1 || end > all || s.first_pos != s.seq->num_computed_tokens) {
        Wrong(fmt::format("schedules [{}, {}) of {} tokens, {} computed", s.first_pos, end,
                          s.seq->num_tokens(), s.seq->num_computed_tokens));
      }
      if (reaches_end != (s.num_samples > 0)) {
        Wrong(
            fmt::format("{} samples at {} of {} tokens", s.num_samples, end, s.seq->num_tokens()));
      }
      if (!seen.insert(s.seq).second) Wrong("a sequence is scheduled twice");
    }
    if (batch.seqs.empty() || num_tokens != batch.num_tokens || num_tokens > max_tokens_) {
      Wrong(fmt::format("batch of {} tokens, said {}, budget {}", num_tokens, batch.num_tokens,
                        max_tokens_));
    }
  }

  // Pages that are neither in use nor findable: reading one must show.
  void SpoilFreePages() {
    for (size_t p = 0; p < storage_.size(); ++p) {
      const PagePool& pool = blocks_.pools()[p];
      for (PageId page = 1; page <= pool.num_usable(); ++page) {
        if (pool.refs(page) > 0 || pool.IsSealed(page)) continue;
        for (int32_t i = 0; i < pool.page_size(); ++i) At(p, page, i) = Slot{};
      }
    }
  }

  Slot& At(size_t pool, PageId page, int32_t offset) {
    return storage_[pool][static_cast<size_t>(page) * static_cast<size_t>(blocks_.block_size()) +
                          static_cast<size_t>(offset)];
  }

  void CopyPage(const PageCopy& copy) {
    const auto p = static_cast<size_t>(copy.pool);
    if (copy.src == kNullPage || copy.dst == kNullPage ||
        (copy.op == PageOp::kCopy && copy.src == copy.dst)) {
      Wrong(fmt::format("copies page {} to {}", copy.src, copy.dst));
    }
    const auto size = static_cast<size_t>(blocks_.block_size());
    const Slot* from = &(copy.op == PageOp::kLoad ? host_ : storage_)[p][size * copy.src];
    std::copy(from, from + size,
              &(copy.op == PageOp::kSave ? host_ : storage_)[p][size * copy.dst]);
    saves_ += copy.op == PageOp::kSave;
    loads_ += copy.op == PageOp::kLoad;
  }

  void Write(const ScheduledSeq& s, std::set<std::pair<int32_t, int64_t>>& written) {
    const std::vector<GroupLayout>& groups = blocks_.layout().groups;
    for (size_t g = 0; g < groups.size(); ++g) {
      std::vector<int64_t> slots(static_cast<size_t>(s.num_tokens));
      blocks_.FillWriteSlots(s.seq->tables, static_cast<int32_t>(g), s.first_pos, slots);
      for (int32_t i = 0; i < s.num_tokens; ++i) {
        const int64_t slot = slots[static_cast<size_t>(i)];
        if (!written.emplace(groups[g].pool, slot).second) {
          Wrong(fmt::format("I6: slot {} is written twice", slot));
        }
        storage_[static_cast<size_t>(groups[g].pool)][static_cast<size_t>(slot)] =
            Content(s, s.first_pos + i, g);
      }
    }
  }

  // Tokens [0, end), but what windows no longer see, must be where the read row says.
  void Read(const ScheduledSeq& s, int32_t end) {
    const std::vector<GroupLayout>& groups = blocks_.layout().groups;
    const int32_t size = blocks_.block_size();
    for (size_t g = 0; g < groups.size(); ++g) {
      std::vector<PageId> row((s.seq->tokens.size() + static_cast<size_t>(size) - 1) /
                              static_cast<size_t>(size));
      blocks_.FillReadRow(s.seq->tables, static_cast<int32_t>(g), row);
      for (int32_t pos = FirstLivePage(groups[g].group, s.first_pos) * size; pos < end; ++pos) {
        const PageId page = row[static_cast<size_t>(pos / size)];
        const Slot& found = At(static_cast<size_t>(groups[g].pool), page, pos % size);
        if (page == kNullPage || !(found == Content(s, pos, g))) {
          Wrong(
              fmt::format("request {} branch {} group {} position {}: page {} holds token {} of "
                          "position {}, want token {}",
                          s.seq->request->id, s.seq->branch, g, pos, page, found.token, found.pos,
                          s.seq->tokens[static_cast<size_t>(pos)]));
          return;
        }
      }
    }
  }

  const BlockManager& blocks_;
  const int32_t max_tokens_;
  const int32_t max_rows_;
  const bool private_roots_;
  std::vector<std::vector<Slot>> storage_;  // per pool: [num_usable + 1, block_size]
  std::vector<std::vector<Slot>> host_;     // the same of the host tier's slots
  int64_t saves_ = 0;
  int64_t loads_ = 0;
  absl::Status next_error_;
  std::string first_error_;
  int64_t steps_ = 0;
};

}  // namespace quire::sched_test
