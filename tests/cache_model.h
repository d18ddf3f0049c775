// tests/cache_model.h -- a world of sequences over a BlockManager, with a model too simple to be
// wrong.
//
// What a page holds is modelled by numbers: one per token, entry or state, the interned (root,
// token 0, ..., token i) that was written there. Page operations and writes of each step are
// executed on these numbers. Then every live sequence must read exactly its own prefix at every
// position its groups still see, no matter what was shared, copied, evicted, saved, loaded or
// forgotten on the way.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <list>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "paged_cache/block_manager.h"

namespace quire {

// Number of a root or of a prefix one token longer than prefix `parent`; equal iff all is equal.
inline int64_t PrefixNumber(int64_t parent, const std::string& root, TokenId token) {
  static std::map<std::tuple<int64_t, std::string, TokenId>, int64_t> numbers;
  return numbers.emplace(std::tuple(parent, root, token), static_cast<int64_t>(numbers.size()) + 1)
      .first->second;
}

struct ModelSeq {
  std::string root;
  std::vector<TokenId> tokens;
  std::vector<int64_t> numbers;  // [tokens]
  int32_t computed = 0;
  int32_t most_computed = 0;  // highest value of `computed` that was ever committed
  std::vector<PrefixHash> chain;
  SequenceTables tables;
  int family = 0;        // sequences forked from one
  bool flushed = false;  // held sealed pages during a flush
  SequenceSpec spec;
  std::optional<SwappedTables> swapped = std::nullopt;  // waits without pages
  bool fresh = false;                                   // came during this step
  bool encoded = false;                                 // its encoder has run
};

struct ModelOptions {
  std::vector<GroupLayout> groups = {{.group = {CacheKind::kFull, 2, 0}}};
  std::vector<int32_t> num_pages = {6};  // per pool, usable
  std::vector<int32_t> num_host;         // per pool; empty: no host tier
  BlockManagerOptions manager;
  bool salts = false;  // a root's name is its cache salt, too
};

// Tables of two groups of equal pages, and so on: all with pages of two tokens.
inline GroupLayout ModelGroup(CacheKind kind, int32_t window = 0, int32_t pool = 0) {
  return {.group = {kind, 2, window}, .pool = pool, .num_layers = 1};
}
inline GroupLayout EntryGroup(CacheKind kind, int32_t tokens_per_entry, int32_t pool = 0) {
  return {.group = {.kind = kind,
                    .page_size = GroupPageSize(2, tokens_per_entry),
                    .tokens_per_entry = tokens_per_entry},
          .pool = pool,
          .num_layers = 1};
}
inline GroupLayout StateGroup(int32_t snapshot_interval, int32_t pool) {
  return {
      .group = {.kind = CacheKind::kState, .page_size = 2, .snapshot_interval = snapshot_interval},
      .pool = pool,
      .num_layers = 1};
}

class CacheModel {
 public:
  static constexpr int32_t kSize = 2;   // tokens per block
  static constexpr int32_t kCells = 4;  // numbers per page, at most

  explicit CacheModel(const ModelOptions& options) : options_(options) {
    layout_.block_size = kSize;
    layout_.groups = options.groups;
    for (const int32_t n : options.num_pages) {
      layout_.pools.push_back({64});
      pools_.emplace_back(n, kSize);
      memory_.emplace_back(static_cast<size_t>((n + 1) * kCells), -1);
    }
    for (const int32_t n : options.num_host) {
      host_pools_.emplace_back(n, kSize);
      host_memory_.emplace_back(static_cast<size_t>((n + 1) * kCells), -1);
    }
    manager_.emplace(layout_, pools_, options.manager, host_pools_);
    for (const GroupLayout& g : layout_.groups) {
      has_state_ |= g.group.kind == CacheKind::kState;
      all_full_ &= g.group.kind == CacheKind::kFull;
    }
  }

  BlockManager& manager() { return *manager_; }
  std::vector<PagePool>& pools() { return pools_; }
  std::list<ModelSeq>& live() { return live_; }
  int64_t hit_tokens() const { return hit_tokens_; }

  // Without: operations only, to come cheaply to a state that has been checked before.
  void set_checks(bool on) { checks_ = on; }

  RootId InternRoot(const std::string& root, bool keep) {
    return manager_->InternRoot(root, keep, options_.salts ? root : std::string());
  }

  void Append(ModelSeq& s, TokenId token) {
    s.numbers.push_back(PrefixNumber(s.numbers.empty() ? 0 : s.numbers.back(), s.root, token));
    s.tokens.push_back(token);
  }

  // A sequence with what the cache has of its prompt.
  ModelSeq& Start(const std::string& root, bool keep, const std::vector<TokenId>& tokens,
                  const SequenceSpec& spec = {}) {
    ModelSeq s{.root = root, .family = next_family_++, .spec = spec};
    s.fresh = !planned_.empty();
    for (const TokenId token : tokens) Append(s, token);
    ExtendChain(s.tokens, kSize, s.chain);
    const int32_t promised = Promised(s);
    PrefixHit hit = manager_->MatchPrefix(InternRoot(root, keep), s.tokens, s.chain, spec);
    EXPECT_EQ(hit.num_tokens % kSize, 0);
    EXPECT_GE(hit.num_tokens, promised) << "a live sequence has these pages";
    hit_tokens_ += hit.num_tokens;
    s.tables = std::move(hit.tables);
    s.computed = hit.num_tokens + manager_->ExtendPartially(s.tables, s.tokens);
    EXPECT_LE(s.computed, std::max(0, static_cast<int32_t>(tokens.size()) - 1)) << "I8";
    s.most_computed = s.computed;
    common_[s.family] = INT32_MAX;
    TakeOps();
    if (planned_.empty()) {
      RunOps();
      CheckReads(s, s.computed);
    }
    return live_.emplace_back(std::move(s));
  }

  // One step of the engine, in the order in which the engine does it.
  // Plan: room to compute tokens [computed, end) of s; false: no room, and nothing has changed.
  // With `announce` all these tokens are final.
  bool Plan(ModelSeq& s, int32_t end, bool announce = false) {
    const auto before = checks_ ? Ids(s) : std::vector<std::vector<PageId>>();
    const size_t num_copies = copies_.size();
    const bool fits = !checks_ || Need(s, end);
    const bool grown = manager_->Grow(s.tables, s.computed, end, copies_);
    EXPECT_TRUE(!checks_ || grown == fits);
    if (!grown) {
      if (!checks_) return false;
      EXPECT_EQ(Ids(s), before);
      EXPECT_EQ(copies_.size(), num_copies);
      return false;
    }
    if (announce) manager_->Announce(s.tables, s.tokens, end, s.chain);
    announced_ |= announce;
    planned_.push_back({&s, end});
    CheckHeld();
    return true;
  }

  bool is_planned(const ModelSeq& s) const {
    return std::any_of(planned_.begin(), planned_.end(),
                       [&](const auto& p) { return p.first == &s; });
  }
  bool announced() const { return announced_; }

  void Cancel(ModelSeq& s) {
    std::erase_if(planned_, [&](const auto& p) { return p.first == &s; });
    live_.remove_if([&](const ModelSeq& x) { return &x == &s; });
  }

  // The step fails: its sequences end.
  void Fail() {
    RunOps();
    manager_->Abandon();
    for (const auto& [s, end] : std::exchange(planned_, {})) Cancel(*s);
    live_.remove_if([](const ModelSeq& s) { return s.fresh; });
    announced_ = false;
  }

  // Runs operations and writes of all planned sequences, then commits; of the last sequence's
  // tokens only `accepted` are kept, the others were drafts.
  void Run(int32_t rejected = 0) {
    RunOps();
    std::vector<std::set<int64_t>> written(pools_.size());
    for (const auto& [s, end] : planned_) Write(*s, end, written);
    for (const auto& [s, end] : planned_) CheckReads(*s, end);
    manager_->Publish();
    for (size_t i = 0; i < planned_.size(); ++i) {
      ModelSeq& s = *planned_[i].first;
      const int32_t drafts = i + 1 == planned_.size() && !has_state_ ? rejected : 0;
      const int32_t end = std::max(s.computed, planned_[i].second - drafts);
      if (end < planned_[i].second) {
        Cut(s, end);
        manager_->Truncate(s.tables, end);
      }
      s.computed = end;
      s.most_computed = std::max(s.most_computed, end);
      manager_->Commit(s.tables, s.tokens, end, s.chain);
    }
    planned_.clear();
    announced_ = false;
    for (ModelSeq& s : live_) s.fresh = false;
  }

  // Preempted: saved to the host tier, or not at all.
  void SwapOut(ModelSeq& s) {
    s.swapped = manager_->SwapOut(s.tables, s.computed);
    if (!s.swapped) return;
    s.tables = SequenceTables{};
    TakeOps();
    RunOps();
  }
  void SwapIn(ModelSeq& s, bool keep) {
    std::optional<PrefixHit> hit =
        manager_->SwapIn(InternRoot(s.root, keep), s.tokens, s.chain, *s.swapped, s.spec);
    TakeOps();
    RunOps();
    if (!hit) return;
    swapped_in_ += hit->num_tokens == s.computed;
    s.encoded = s.encoded && hit->num_tokens == s.computed;  // else it has to run again
    s.computed = hit->num_tokens;
    s.tables = std::move(hit->tables);
    s.swapped.reset();
    // After a flush it does not find again what its branches still hold.
    common_[s.family] = std::min(common_[s.family], s.flushed ? 0 : s.computed);
    CheckReads(s, s.computed);
  }
  void TakeAndRunOps() {
    TakeOps();
    RunOps();
  }
  int64_t swapped_in() const { return swapped_in_; }

  void Resize(size_t pool, int32_t num_pages) {
    std::vector<PageId> retired;
    if (!manager_->Resize(pool, num_pages, 1, retired).ok()) return;
    memory_[pool].resize(static_cast<size_t>(pools_[pool].num_ids() * kCells), -1);
    TakeOps();
    RunOps();
    for (const PageId page : retired) {
      std::fill_n(memory_[pool].begin() + page * kCells, kCells, -1);
    }
  }

  ModelSeq& Fork(ModelSeq& s) {
    ModelSeq child{s.root,
                   s.tokens,
                   s.numbers,
                   s.computed,
                   s.most_computed,
                   s.chain,
                   manager_->Fork(s.tables),
                   s.family,
                   s.flushed,
                   s.spec,
                   std::nullopt,
                   false,
                   s.encoded};
    common_[s.family] = std::min(common_[s.family], s.computed);
    return live_.emplace_back(std::move(child));
  }

  // The shortest length s may be cut to.
  int32_t LowestCut(const ModelSeq& s) const {
    if (has_state_) return s.computed;  // to elsewhere by ResumePoint
    if (all_full_) return 0;
    return std::min(s.computed,
                    std::max(0, s.most_computed - options_.manager.max_truncate_tokens));
  }

  void Truncate(ModelSeq& s, int32_t num_tokens) {
    Cut(s, num_tokens);
    s.computed = std::min(s.computed, num_tokens);
    common_[s.family] = std::min(common_[s.family], num_tokens);
    manager_->Truncate(s.tables, num_tokens);
  }

  void Flush() {
    for (ModelSeq& s : live_) s.flushed |= s.tables.num_sealed > 0;
    manager_->Flush();
  }

  void Check() {
    std::vector<const SequenceTables*> tables;
    std::vector<const SwappedTables*> swapped;
    for (const ModelSeq& s : live_) {
      if (s.swapped) {
        swapped.push_back(&*s.swapped);
        continue;
      }
      tables.push_back(&s.tables);
      CheckReads(s, s.computed);
    }
    const absl::Status audit = manager_->Audit(tables, swapped);
    EXPECT_TRUE(audit.ok()) << audit;
    CheckHeld();
  }

 private:
  static size_t Cell(PageId page, int32_t offset) {
    return static_cast<size_t>(page * kCells + offset);
  }
  // Where a group keeps the number of position `pos`.
  static int32_t OffsetOf(const CacheGroup& g, int32_t pos) {
    return g.kind == CacheKind::kState ? 0 : pos % g.page_size / g.tokens_per_entry;
  }

  void TakeOps() {
    const std::vector<PageCopy> ops = manager_->TakeOps();
    copies_.insert(copies_.end(), ops.begin(), ops.end());
  }
  void RunOps() {
    for (const PageCopy& c : copies_) {
      auto& page = memory_[static_cast<size_t>(c.pool)];
      auto& from = c.op == PageOp::kLoad ? host_memory_[static_cast<size_t>(c.pool)] : page;
      auto& to = c.op == PageOp::kSave ? host_memory_[static_cast<size_t>(c.pool)] : page;
      for (int32_t i = 0; i < kCells; ++i) to[Cell(c.dst, i)] = from[Cell(c.src, i)];
    }
    copies_.clear();
  }
  static int32_t Pages(int32_t tokens) { return (tokens + kSize - 1) / kSize; }

  void Cut(ModelSeq& s, int32_t num_tokens) {
    const auto n = static_cast<size_t>(num_tokens);
    s.tokens.resize(std::min(s.tokens.size(), n));
    s.numbers.resize(s.tokens.size());
    s.chain.resize(std::min(s.chain.size(), s.tokens.size() / kSize));
  }

  std::vector<std::vector<PageId>> Ids(const ModelSeq& s) const {
    std::vector<std::vector<PageId>> ids;
    for (const PageTable& t : s.tables.groups) ids.emplace_back(t.ids().begin(), t.ids().end());
    return ids;
  }

  // Whether [computed, end) fits: pages to add, and pages to be written that others hold.
  bool Need(const ModelSeq& s, int32_t end) const {
    std::vector<int32_t> need(pools_.size());
    for (size_t g = 0; g < layout_.groups.size(); ++g) {
      const CacheGroup& group = layout_.groups[g].group;
      const auto pool = static_cast<size_t>(layout_.groups[g].pool);
      const PageTable& table = s.tables.groups[g];
      std::set<int32_t> touched;
      if (group.kind == CacheKind::kCrossAttention) {
        need[pool] += (s.spec.encoder_tokens + kSize - 1) / kSize - table.num_pages();
        continue;
      }
      for (int32_t pos = s.computed; pos < end; ++pos) {
        if (WritesAt(group, pos, end, s.tables.prompt_mark)) touched.insert(pos / group.page_size);
      }
      for (const int32_t i : touched) {
        need[pool] += i >= table.num_pages() || pools_[pool].refs(table[i]) > 1;
      }
    }
    for (size_t p = 0; p < pools_.size(); ++p) {
      if (need[p] > pools_[p].num_available()) return false;
    }
    return true;
  }

  // Tokens that a hit must have, because a live sequence has sealed them.
  int32_t Promised(const ModelSeq& s) const {
    if (!all_full_ || options_.manager.hash_bits < 128) return 0;
    if (pools_[0].num_to_retire() > 0) return 0;
    int32_t best = 0;
    for (const ModelSeq& x : live_) {
      if (x.flushed || x.swapped || x.root != s.root) continue;
      int32_t n = 0;
      while (n < x.tables.num_sealed * kSize && n < static_cast<int32_t>(s.tokens.size()) - 1 &&
             x.tokens[static_cast<size_t>(n)] == s.tokens[static_cast<size_t>(n)]) {
        ++n;
      }
      best = std::max(best, n / kSize * kSize);
    }
    return best;
  }

  void Write(ModelSeq& s, int32_t end, std::vector<std::set<int64_t>>& written) {
    for (size_t g = 0; g < layout_.groups.size(); ++g) {
      const CacheGroup& group = layout_.groups[g].group;
      auto& memory = memory_[static_cast<size_t>(layout_.groups[g].pool)];
      if (end == s.computed) continue;
      if (group.kind == CacheKind::kState && s.computed > 0) CheckState(s, g, s.computed);
      const int32_t entries = group.kind == CacheKind::kState ? 1 : EntriesPerPage(group);
      const auto write = [&](int64_t slot, int64_t number) {
        const auto cell =
            Cell(static_cast<PageId>(slot / entries), static_cast<int32_t>(slot % entries));
        const bool fresh = written[static_cast<size_t>(layout_.groups[g].pool)]
                               .insert(static_cast<int64_t>(cell))
                               .second;
        EXPECT_TRUE(fresh) << "I6: slot " << slot << " is written twice";
        memory[cell] = number;
      };
      if (group.kind == CacheKind::kCrossAttention) {
        if (std::exchange(s.encoded, true)) continue;
        std::vector<int64_t> slots(static_cast<size_t>(s.spec.encoder_tokens));
        manager_->FillEncoderSlots(s.tables, static_cast<int32_t>(g), slots);
        for (size_t i = 0; i < slots.size(); ++i) write(slots[i], EncoderNumber(s, i));
        continue;
      }
      std::vector<int64_t> slots(static_cast<size_t>(end - s.computed));
      manager_->FillWriteSlots(s.tables, static_cast<int32_t>(g), s.computed, slots);
      for (size_t i = 0; i < slots.size(); ++i) {
        if (slots[i] == BlockManager::kNoSlot) continue;
        write(slots[i], s.numbers[static_cast<size_t>(s.computed) + i]);
      }
    }
  }
  static int64_t EncoderNumber(const ModelSeq& s, size_t i) {
    return -1000 * (s.family + 1) - static_cast<int64_t>(i);
  }

  void CheckState(const ModelSeq& s, size_t g, int32_t computed) const {
    const PageId page = s.tables.groups[g][(computed - 1) / kSize];
    EXPECT_NE(page, kNullPage);
    EXPECT_EQ(memory_[static_cast<size_t>(layout_.groups[g].pool)][Cell(page, 0)],
              s.numbers[static_cast<size_t>(computed) - 1])
        << "state of " << computed << " tokens in group " << g;
  }

  // All that a query at position s.computed sees of tokens [0, end).
  void CheckReads(const ModelSeq& s, int32_t end) const {
    if (!checks_) return;
    for (size_t g = 0; g < layout_.groups.size(); ++g) {
      const CacheGroup& group = layout_.groups[g].group;
      const auto& memory = memory_[static_cast<size_t>(layout_.groups[g].pool)];
      std::vector<PageId> row(static_cast<size_t>(std::max(Pages(end), 1)) + 40, -7);
      manager_->FillReadRow(s.tables, static_cast<int32_t>(g), row);
      if (group.kind == CacheKind::kCrossAttention) {
        for (int32_t i = 0; s.encoded && i < s.spec.encoder_tokens; ++i) {
          ASSERT_EQ(memory[Cell(row[static_cast<size_t>(i / kSize)], i % kSize)],
                    EncoderNumber(s, static_cast<size_t>(i)));
        }
        continue;
      }
      int32_t first = 0;  // by the definition of each mask
      if (group.kind == CacheKind::kSlidingWindow)
        first = std::max(0, s.computed - group.window + 1);
      if (group.kind == CacheKind::kChunkedLocal) first = s.computed - s.computed % group.window;
      if (group.kind == CacheKind::kState) {
        if (end > 0) CheckState(s, g, end);
        continue;
      }
      for (int32_t pos = first; pos < end; ++pos) {
        if ((pos + 1) % group.tokens_per_entry != 0) continue;
        const PageId page = row[static_cast<size_t>(pos / group.page_size)];
        ASSERT_NE(page, kNullPage) << "position " << pos << " of group " << g << " is gone";
        ASSERT_EQ(memory[Cell(page, OffsetOf(group, pos))], s.numbers[static_cast<size_t>(pos)])
            << "position " << pos << " of group " << g << " in page " << page;
      }
      EXPECT_EQ(row.back(), kNullPage);
    }
  }

  // Contract C5: what a request holds never exceeds what admission counted for it.
  void CheckHeld() const {
    if (!checks_) return;
    struct Held {
      std::vector<std::set<PageId>> pages;
      int32_t longest = 0;
      int32_t branches = 0;
      int32_t encoder_tokens = 0;
    };
    std::map<int, Held> families;
    for (const ModelSeq& s : live_) {
      Held& h = families[s.family];
      h.pages.resize(pools_.size());
      ++h.branches;
      h.encoder_tokens = s.spec.encoder_tokens;
      if (s.swapped) continue;
      for (size_t g = 0; g < layout_.groups.size(); ++g) {
        const std::span<const PageId> ids = s.tables.groups[g].ids();
        auto& pages = h.pages[static_cast<size_t>(layout_.groups[g].pool)];
        for (const PageId id : ids) {
          if (id != kNullPage) pages.insert(id);
        }
        if (layout_.groups[g].group.kind == CacheKind::kCrossAttention) continue;
        h.longest = std::max(h.longest,
                             static_cast<int32_t>(ids.size()) * layout_.groups[g].group.page_size);
      }
    }
    for (const auto& [family, h] : families) {
      const int32_t prompt = std::min(common_.at(family), h.longest);
      const PageNeed worst =
          manager_->WorstCasePages(prompt, h.longest - prompt, h.branches, h.encoder_tokens);
      for (size_t p = 0; p < pools_.size(); ++p) {
        EXPECT_LE(static_cast<int32_t>(h.pages[p].size()), worst[p])
            << "C5: pool " << p << " branches " << h.branches << " shared " << prompt;
      }
    }
  }

  ModelOptions options_;
  CacheLayout layout_;
  std::vector<PagePool> pools_;
  std::vector<PagePool> host_pools_;
  std::vector<std::vector<int64_t>> memory_;       // [pool][page * kCells + offset]
  std::vector<std::vector<int64_t>> host_memory_;  // the same of slots
  std::optional<BlockManager> manager_;
  std::list<ModelSeq> live_;  // destroyed first
  std::vector<PageCopy> copies_;
  std::vector<std::pair<ModelSeq*, int32_t>> planned_;
  std::map<int, int32_t> common_;  // per family: tokens that all its branches have had in common
  int next_family_ = 0;
  int64_t swapped_in_ = 0;
  bool announced_ = false;  // somebody in this step
  int64_t hit_tokens_ = 0;
  bool has_state_ = false;
  bool all_full_ = true;
  bool checks_ = true;
};

}  // namespace quire
