// Tables from step to step. What a prefix hit brings is in prefix_match.cc, pins, size and audit in
// block_admin.cc.
#include "paged_cache/block_manager.h"

#include <algorithm>

namespace quire {

BlockManager::BlockManager(const CacheLayout& layout, std::span<PagePool> pools,
                           const BlockManagerOptions& options, std::span<PagePool> host_pools)
    : layout_(layout),
      pools_(pools),
      host_pools_(host_pools),
      options_(options),
      has_state_(
          std::any_of(layout.groups.begin(), layout.groups.end(),
                      [](const GroupLayout& g) { return g.group.kind == CacheKind::kState; })),
      hasher_(options.hash_algorithm, options.hash_seed, /*cache_salt=*/{}),
      index_(layout, pools, host_pools, options.hash_bits, ops_),
      pinned_pages_(pools.size()),
      fresh_(pools.size()),
      need_(pools.size()) {
  CHECK(pools_.size() == layout_.pools.size(), "{} pools for {} in the layout", pools_.size(),
        layout_.pools.size());
  for (const GroupLayout& g : layout_.groups) {
    CHECK(g.group.page_size % layout_.block_size == 0 &&
              g.group.page_size % g.group.tokens_per_entry == 0 &&
              g.group.snapshot_interval % g.group.page_size == 0,
          "page_size={} block_size={} tokens_per_entry={} snapshot_interval={}", g.group.page_size,
          layout_.block_size, g.group.tokens_per_entry, g.group.snapshot_interval);
  }
}

RootId BlockManager::InternRoot(std::string_view key, bool keep, std::string_view cache_salt) {
  return index_.InternRoot(key, keep, cache_salt);
}

PrefixHasher BlockManager::HasherOf(RootId root) const {
  const std::string_view salt = index_.cache_salt(root);
  if (options_.hash_algorithm == PrefixHashAlgorithm::kXxh3 || salt.empty()) return hasher_;
  return PrefixHasher(options_.hash_algorithm, options_.hash_seed, salt);
}

void BlockManager::ExtendChain(RootId root, std::span<const TokenId> tokens,
                               std::vector<PrefixHash>& chain) const {
  const size_t known = chain.size() * static_cast<size_t>(layout_.block_size);
  if (known + static_cast<size_t>(layout_.block_size) > tokens.size()) return;
  HasherOf(root).Extend(tokens, layout_.block_size, chain);
}

SequenceTables BlockManager::NewTables(RootId root, const SequenceSpec& spec) {
  SequenceTables t;
  t.root = root;
  for (size_t g = 0; g < layout_.groups.size(); ++g) t.groups.emplace_back(pools_[pool_index(g)]);
  // One block short of the prompt's end if need be: the same prompt must be able to start there.
  t.prompt_mark = std::max(0, spec.prompt_tokens - 1) / layout_.block_size * layout_.block_size;
  t.encoder_tokens = spec.encoder_tokens;
  t.retention = spec.retention;
  t.cursor = PrefixCursor(index_, index_.RootNode(root));
  return t;
}

// visit(page index, change) for all that a step which computes tokens [first_write, num_tokens)
// needs done to the table. The one place that says what is needed: to count it, and to do it.
template <typename Visit>
void BlockManager::ForEachChange(const SequenceTables& t, size_t group, int32_t first_write,
                                 int32_t num_tokens, Visit visit) const {
  const CacheGroup& g = group_of(group);
  const PageTable& table = t.groups[group];
  const PagePool& pool = pools_[pool_index(group)];
  if (g.kind == CacheKind::kCrossAttention) {
    const int32_t end = (t.encoder_tokens + g.page_size - 1) / g.page_size;
    for (int32_t i = table.num_pages(); i < end; ++i) visit(i, Change::kNew);
    return;
  }
  const int32_t end = NumPages(g, num_tokens);
  for (int32_t i = std::min(FirstWrittenPage(g, first_write), table.num_pages()); i < end; ++i) {
    const bool writes = i >= FirstWrittenPage(g, first_write) &&
                        WritesPage(g, i, first_write, num_tokens, t.prompt_mark);
    if (i >= table.num_pages()) {
      visit(i, writes ? Change::kNew : Change::kGap);
      continue;
    }
    if (!writes) continue;
    const PageId page = table[i];
    CHECK(page != kNullPage, "group {} writes page {}, which it has given back", group, i);
    if (pool.refs(page) > 1) {
      visit(i, Change::kPrivateCopy);
    } else if (pool.IsSealed(page)) {
      visit(i, Change::kUnseal);
    }
  }
}

bool BlockManager::Grow(SequenceTables& t, int32_t first_write, int32_t num_tokens,
                        std::vector<PageCopy>& copies) {
  CHECK(first_write >= t.num_sealed * layout_.block_size && first_write <= num_tokens,
        "first_write={} num_tokens={} num_sealed={}", first_write, num_tokens, t.num_sealed);
  std::fill(need_.begin(), need_.end(), 0);
  for (size_t g = 0; g < t.groups.size(); ++g) {
    int32_t& need = need_[pool_index(g)];
    ForEachChange(t, g, first_write, num_tokens, [&](int32_t, Change change) {
      need += change == Change::kNew || change == Change::kPrivateCopy;
    });
  }
  for (size_t p = 0; p < pools_.size(); ++p) {
    if (need_[p] > pools_[p].num_available()) return false;
  }
  for (size_t p = 0; p < pools_.size(); ++p) {
    fresh_[p].resize(static_cast<size_t>(need_[p]));
    CHECK(pools_[p].Take(fresh_[p]), "pool {} had {} pages", p, need_[p]);
    std::reverse(fresh_[p].begin(), fresh_[p].end());  // used from the back
  }
  // What was evicted for it is saved before its new owner's content comes.
  const size_t first_op = copies.size();
  copies.insert(copies.end(), ops_.begin(), ops_.end());
  ops_.clear();
  for (size_t g = 0; g < t.groups.size(); ++g) {
    const size_t p = pool_index(g);
    const CacheGroup& group = group_of(g);
    PageTable& table = t.groups[g];
    ForEachChange(t, g, first_write, num_tokens, [&](int32_t i, Change change) {
      if (change == Change::kGap) return table.Adopt(kNullPage);
      if (change == Change::kUnseal) {
        index_.OnDrop(pools_[p], table[i], DropReason::kRewritten);
        ++stats_.unsealed_writes;
        return;
      }
      const PageId page = fresh_[p].back();
      fresh_[p].pop_back();
      if (change == Change::kNew) return table.Adopt(page);
      // A page whose first token is written now has no content worth copying.
      if (group.kind == CacheKind::kState || i * group.page_size < first_write) {
        copies.push_back({static_cast<int32_t>(p), table[i], page});
        ++stats_.copies;
      }
      table.Replace(i, page);
    });
  }
  if (copies.size() > first_op) NoteTouched(std::span(copies).subspan(first_op));
  return true;
}

// ---- sealing ----

// Seals block t.num_sealed, which is full, or will be after this step.
void BlockManager::SealNext(SequenceTables& t, std::span<const TokenId> tokens,
                            int32_t num_computed, const PrefixHash& hash, bool pending) {
  const int32_t block = t.num_sealed++;
  if (t.chain_broken) return;
  const auto size = static_cast<size_t>(layout_.block_size);
  const NodeId parent = t.cursor.node();
  const NodeId node =
      index_.is_detached(parent)
          ? kNoNode
          : index_.FindOrAdd(parent, hash, tokens.subspan(static_cast<size_t>(block) * size, size));
  if (node == kNoNode) {
    t.chain_broken = true;
    if (!index_.is_detached(parent)) ++stats_.collisions;
    return;
  }
  t.cursor.MoveTo(node);
  const int32_t end = t.num_sealed * layout_.block_size;
  for (size_t g = 0; g < t.groups.size(); ++g) {
    const CacheGroup& group = group_of(g);
    if (group.kind == CacheKind::kCrossAttention || end % group.page_size != 0 ||
        !IsPageFinal(group, end, num_computed, t.prompt_mark)) {
      continue;
    }
    const int32_t i = end / group.page_size - 1;
    const PageId own = t.groups[g][i];
    if (own == kNullPage) continue;
    PageId known = index_.page(node, g);
    // While its own page is still to be written it can't take the known one. One that nobody uses
    // might be evicted until then, so it gives way.
    if (pending && known != kNullPage && known != own && pools_[pool_index(g)].refs(known) == 0) {
      known = kNullPage;
    }
    if (known == kNullPage) {
      index_.DropContent(node, g, DropReason::kMerged);
      index_.SealPage(node, g, own);
      Keep(t, g, block, own);
      if (pending) index_.SetPending(node);
    } else if (known != own) {
      if (pending) {
        t.merges = true;
        continue;
      }
      pools_[pool_index(g)].Retain(known);
      t.groups[g].Replace(i, known);
      Keep(t, g, block, known);
      ++stats_.dedupe_hits;
    }
  }
}

void BlockManager::Keep(const SequenceTables& t, size_t group, int32_t block, PageId page) {
  if (t.retention == nullptr || t.retention->empty()) return;
  const int32_t end = (block + 1) * layout_.block_size;
  pools_[pool_index(group)].Keep(
      page, RetentionOfPage(*t.retention, end - group_of(group).page_size, now_ms_));
}

void BlockManager::Announce(SequenceTables& t, std::span<const TokenId> tokens,
                            int32_t num_computed, std::vector<PrefixHash>& chain) {
  ExtendChain(t.root, tokens.first(static_cast<size_t>(num_computed)), chain);
  t.first_announced = t.num_sealed;
  while ((t.num_sealed + 1) * layout_.block_size <= num_computed) {
    SealNext(t, tokens, num_computed, chain[static_cast<size_t>(t.num_sealed)], /*pending=*/true);
  }
}

// Takes the known pages in the place of equal ones that were written beside them.
void BlockManager::MergeAnnounced(SequenceTables& t) {
  const bool merges = std::exchange(t.merges, false);
  const int32_t depth = index_.depth(t.cursor.node());
  if (index_.is_detached(t.cursor.node()) && depth > t.first_announced) {
    // The equal page that was to be taken was dropped in the meantime: seal the own ones after all.
    const NodeId node = index_.Ancestor(t.cursor.node(), t.first_announced);
    if (index_.is_detached(node)) return;
    t.cursor.MoveTo(node);
    t.num_sealed = t.first_announced;
    t.chain_broken = false;
    return;
  }
  if (!merges) return;
  NodeId node = t.cursor.node();
  for (int32_t block = depth - 1; block >= t.first_announced; --block) {
    const int32_t end = (block + 1) * layout_.block_size;
    for (size_t g = 0; g < t.groups.size(); ++g) {
      const CacheGroup& group = group_of(g);
      const PageId known = index_.page(node, g);
      if (known == kNullPage) continue;
      const int32_t i = end / group.page_size - 1;
      const PageId own = t.groups[g][i];
      if (own == kNullPage || own == known) continue;
      pools_[pool_index(g)].Retain(known);
      t.groups[g].Replace(i, known);
      Keep(t, g, block, known);
      ++stats_.dedupe_hits;
    }
    node = index_.parent(node);
  }
}

void BlockManager::Commit(SequenceTables& t, std::span<const TokenId> tokens, int32_t num_computed,
                          std::vector<PrefixHash>& chain) {
  CHECK(num_computed >= 0 && static_cast<size_t>(num_computed) <= tokens.size(),
        "num_computed={} of {} tokens", num_computed, tokens.size());
  CHECK(index_.num_pending() == 0, "Commit before Publish");
  ExtendChain(t.root, tokens.first(static_cast<size_t>(num_computed)), chain);
  MergeAnnounced(t);
  while ((t.num_sealed + 1) * layout_.block_size <= num_computed) {
    const auto i = static_cast<size_t>(t.num_sealed);
    const auto size = static_cast<size_t>(layout_.block_size);
    DCHECK(!index_.is_named(t.root) ||
               chain[i] == HasherOf(t.root).Next(i == 0 ? nullptr : &chain[i - 1],
                                                 tokens.subspan(i * size, size)),
           "chain entry {} is of other tokens", i);
    SealNext(t, tokens, num_computed, chain[i], /*pending=*/false);
  }
  t.first_announced = t.num_sealed;
  for (size_t g = 0; g < t.groups.size(); ++g) {
    const int32_t first = FirstKept(g, num_computed);
    t.groups[g].DropBefore(first);
    // Between the states that are kept lie those of pages that were passed on the way.
    if (group_of(g).kind != CacheKind::kState) continue;
    const int32_t current = NumPages(group_of(g), num_computed) - 1;
    for (int32_t i = first; i < current; ++i) {
      if (t.groups[g][i] != kNullPage &&
          !IsSnapshot(group_of(g), (i + 1) * group_of(g).page_size, t.prompt_mark)) {
        t.groups[g].Replace(i, kNullPage);
      }
    }
  }
}

// ---- forks and truncation ----

SequenceTables BlockManager::Fork(const SequenceTables& t) {
  SequenceTables child;
  child.root = t.root;
  for (const PageTable& table : t.groups) child.groups.push_back(table.Fork());
  child.num_sealed = t.num_sealed;
  child.first_announced = t.num_sealed;
  child.chain_broken = t.chain_broken;
  child.prompt_mark = t.prompt_mark;
  child.encoder_tokens = t.encoder_tokens;
  child.retention = t.retention;
  child.cursor = t.cursor.Fork();
  ++stats_.forks;
  return child;
}

int32_t BlockManager::ResumePoint(const SequenceTables& t, int32_t num_computed,
                                  int32_t num_tokens) const {
  if (!has_state_ || num_tokens >= num_computed) return std::min(num_tokens, num_computed);
  const auto resumes = [&](int32_t n) {
    for (size_t g = 0; g < t.groups.size(); ++g) {
      const CacheGroup& group = group_of(g);
      if (group.kind != CacheKind::kState) continue;
      const int32_t i = n / group.page_size - 1;
      if (n % group.page_size != 0 || !IsSnapshot(group, n, t.prompt_mark) ||
          i >= t.groups[g].num_pages() || t.groups[g][i] == kNullPage) {
        return false;
      }
    }
    return true;
  };
  int32_t n = num_tokens / layout_.block_size * layout_.block_size;
  while (n > 0 && !resumes(n)) n -= layout_.block_size;
  return n;
}

void BlockManager::Truncate(SequenceTables& t, int32_t num_tokens) {
  CHECK(num_tokens >= 0, "num_tokens={}", num_tokens);
  CHECK(index_.num_pending() == 0, "Truncate before Publish");
  for (size_t g = 0; g < t.groups.size(); ++g) {
    const CacheGroup& group = group_of(g);
    if (group.kind == CacheKind::kCrossAttention) continue;
    t.groups[g].Truncate(NumPages(group, num_tokens));
    const int32_t first = FirstLivePage(group, num_tokens);
    CHECK(num_tokens == 0 || first >= t.groups[g].num_pages() || t.groups[g][first] != kNullPage,
          "group {} has given back page {}, which {} tokens need", g, first, num_tokens);
  }
  const int32_t num_full = num_tokens / layout_.block_size;
  if (num_full >= t.num_sealed) return;
  t.num_sealed = num_full;
  t.first_announced = num_full;
  if (num_full > index_.depth(t.cursor.node())) return;
  t.cursor.MoveTo(index_.Ancestor(t.cursor.node(), num_full));
  t.chain_broken = false;
}

// ---- what kernels are told ----

void BlockManager::FillReadRow(const SequenceTables& t, int32_t group,
                               std::span<PageId> row) const {
  const std::span<const PageId> ids = t.groups[static_cast<size_t>(group)].ids();
  CHECK(ids.size() <= row.size(), "{} pages in a row of {}", ids.size(), row.size());
  std::fill(std::copy(ids.begin(), ids.end(), row.begin()), row.end(), kNullPage);
}

void BlockManager::FillWriteSlots(const SequenceTables& t, int32_t group, int32_t first_pos,
                                  std::span<int64_t> slots) const {
  const CacheGroup& g = group_of(static_cast<size_t>(group));
  const PageTable& table = t.groups[static_cast<size_t>(group)];
  const PagePool& pool = pools_[pool_index(static_cast<size_t>(group))];
  const int32_t num_tokens = first_pos + static_cast<int32_t>(slots.size());
  int32_t pos = first_pos;
  for (int64_t& slot : slots) {
    const int32_t i = pos / g.page_size;
    if (!WritesAt(g, pos, num_tokens, t.prompt_mark)) {
      slot = kNoSlot;
    } else {
      const PageId page = i < table.num_pages() ? table[i] : kNullPage;
      const int32_t block = (i + 1) * g.page_size / layout_.block_size - 1;
      const bool announced = block >= t.first_announced && block < t.num_sealed;
      CHECK(page != kNullPage && (announced || (pool.refs(page) == 1 && !pool.IsSealed(page))),
            "I5: position {} of group {} is in page {}", pos, group, page);
      slot = g.kind == CacheKind::kState
                 ? page
                 : int64_t{page} * EntriesPerPage(g) + pos % g.page_size / g.tokens_per_entry;
    }
    ++pos;
  }
}

void BlockManager::FillEncoderSlots(const SequenceTables& t, int32_t group,
                                    std::span<int64_t> slots) const {
  const CacheGroup& g = group_of(static_cast<size_t>(group));
  const PageTable& table = t.groups[static_cast<size_t>(group)];
  CHECK(g.kind == CacheKind::kCrossAttention && std::ssize(slots) <= t.encoder_tokens,
        "{} encoder positions of {}", slots.size(), t.encoder_tokens);
  for (int32_t pos = 0; pos < static_cast<int32_t>(slots.size()); ++pos) {
    slots[static_cast<size_t>(pos)] =
        int64_t{table[pos / g.page_size]} * g.page_size + pos % g.page_size;
  }
}

PageNeed BlockManager::WorstCasePages(int32_t prompt_tokens, int32_t max_new_tokens,
                                      int32_t num_branches, int32_t encoder_tokens) const {
  const int64_t total = int64_t{prompt_tokens} + max_new_tokens;
  CHECK(prompt_tokens >= 0 && max_new_tokens >= 0 && num_branches >= 1 && total < INT32_MAX &&
            encoder_tokens >= 0,
        "prompt_tokens={} max_new_tokens={} num_branches={}", prompt_tokens, max_new_tokens,
        num_branches);
  const auto most = static_cast<int32_t>(total);
  const int32_t step = options_.max_step_tokens > 0 ? options_.max_step_tokens : most;
  PageNeed need(pools_.size());
  for (size_t g = 0; g < layout_.groups.size(); ++g) {
    const CacheGroup& group = group_of(g);
    int64_t sum;
    if (group.kind == CacheKind::kCrossAttention) {
      sum = (int64_t{encoder_tokens} + group.page_size - 1) / group.page_size;
    } else {
      const int32_t each = MaxPages(group, most, step, options_.max_truncate_tokens);
      const int32_t shared = KeepsAll(group.kind) ? prompt_tokens / group.page_size : 0;
      sum = shared + int64_t{num_branches} * (each - shared);
    }
    int32_t& n = need[pool_index(g)];
    n = static_cast<int32_t>(std::min<int64_t>(INT32_MAX, n + sum));
  }
  return need;
}

}  // namespace quire
