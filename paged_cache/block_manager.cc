#include "paged_cache/block_manager.h"

#include <algorithm>

namespace quire {

BlockManager::BlockManager(const CacheLayout& layout, std::span<PagePool> pools,
                           const BlockManagerOptions& options)
    : layout_(layout), pools_(pools), options_(options), index_(layout, pools, options.hash_bits) {
  CHECK(pools_.size() == layout_.pools.size(), "{} pools for {} in the layout", pools_.size(),
        layout_.pools.size());
  for (const PagePool& pool : pools_) {
    CHECK(pool.page_size() == layout_.block_size, "page_size={} block_size={}", pool.page_size(),
          layout_.block_size);
  }
}

RootId BlockManager::InternRoot(std::string_view key, bool keep) {
  return index_.InternRoot(key, keep);
}

SequenceTables BlockManager::NewTables(RootId root) {
  SequenceTables t;
  t.root = root;
  t.groups.reserve(layout_.groups.size());
  for (size_t g = 0; g < layout_.groups.size(); ++g) t.groups.emplace_back(pools_[pool_index(g)]);
  t.cursor = PrefixCursor(index_, index_.RootNode(root));
  return t;
}

PrefixHit BlockManager::MatchPrefix(RootId root, std::span<const TokenId> tokens,
                                    std::span<const PrefixHash> chain) {
  const auto size = static_cast<size_t>(layout_.block_size);
  const size_t most = tokens.empty() ? 0 : std::min(chain.size(), (tokens.size() - 1) / size);
  std::vector<NodeId> path = {index_.RootNode(root)};
  while (path.size() <= most) {
    const size_t i = path.size() - 1;
    const NodeId node = index_.Find(path.back(), chain[i], tokens.subspan(i * size, size));
    if (node == kNoNode) break;
    path.push_back(node);
  }
  // streak[g][n]: pages of group g before page n that are there without a gap.
  std::vector<std::vector<int32_t>> streak(layout_.groups.size());
  for (size_t g = 0; g < streak.size(); ++g) {
    streak[g].resize(path.size());
    for (size_t n = 1; n < path.size(); ++n) {
      streak[g][n] = index_.page(path[n], g) == kNullPage ? 0 : streak[g][n - 1] + 1;
    }
  }
  auto num_pages = static_cast<int32_t>(path.size()) - 1;
  const auto servable = [&](int32_t n) {
    for (size_t g = 0; g < streak.size(); ++g) {
      const int32_t first = FirstKeptPage(g, n * layout_.block_size);
      if (streak[g][static_cast<size_t>(n)] < n - first) return false;
    }
    return true;
  };
  while (!servable(num_pages)) --num_pages;  // 0 pages can always be served

  PrefixHit hit{.num_tokens = num_pages * layout_.block_size, .tables = NewTables(root)};
  hit.tables.num_sealed = num_pages;
  hit.tables.cursor.MoveTo(path[static_cast<size_t>(num_pages)]);
  for (size_t g = 0; g < streak.size(); ++g) {
    const int32_t first = FirstKeptPage(g, hit.num_tokens);
    for (int32_t i = 0; i < num_pages; ++i) {
      const PageId page = i < first ? kNullPage : index_.page(path[static_cast<size_t>(i) + 1], g);
      if (page != kNullPage) pools_[pool_index(g)].Retain(page);
      hit.tables.groups[g].Adopt(page);
    }
  }
  ++stats_.lookups;
  stats_.lookup_tokens += static_cast<int64_t>(tokens.size());
  stats_.hit_tokens += hit.num_tokens;
  return hit;
}

// The first page that a sequence of num_computed tokens holds: what the next token reads, and what
// it would read after the longest Truncate. A state cannot be taken back, so no older one is kept.
int32_t BlockManager::FirstKeptPage(size_t group, int32_t num_computed) const {
  const CacheGroup& g = group_of(group);
  const int32_t rollback = g.kind == CacheKind::kState ? 0 : options_.max_truncate_tokens;
  return FirstLivePage(g, std::max(0, num_computed - rollback));
}

BlockManager::GroupPlan BlockManager::PlanGroup(const SequenceTables& t, size_t group,
                                                int32_t first_write, int32_t num_tokens) const {
  const CacheGroup& g = group_of(group);
  const PageTable& table = t.groups[group];
  const PagePool& pool = pools_[pool_index(group)];
  const int32_t end = (num_tokens + g.page_size - 1) / g.page_size;
  const int32_t first = FirstWrittenPage(g, first_write, num_tokens);
  GroupPlan plan;
  plan.first_new = std::max(table.num_pages(), first);
  plan.num_new = std::max(0, end - plan.first_new);
  for (int32_t i = first; i < std::min(end, table.num_pages()); ++i) {
    const PageId page = table[i];
    CHECK(page != kNullPage, "group {} writes page {}, which it has given back", group, i);
    if (pool.refs(page) > 1) {
      plan.private_copies.push_back(i);
    } else if (pool.IsSealed(page)) {
      plan.unseal.push_back(i);
    }
  }
  return plan;
}

bool BlockManager::Grow(SequenceTables& t, int32_t first_write, int32_t num_tokens,
                        std::vector<PageCopy>& copies) {
  CHECK(first_write >= t.num_sealed * layout_.block_size && first_write <= num_tokens,
        "first_write={} num_tokens={} num_sealed={}", first_write, num_tokens, t.num_sealed);
  std::vector<GroupPlan> plans;
  PageNeed need(pools_.size());
  for (size_t g = 0; g < t.groups.size(); ++g) {
    plans.push_back(PlanGroup(t, g, first_write, num_tokens));
    need[pool_index(g)] += plans[g].num_new + static_cast<int32_t>(plans[g].private_copies.size());
  }
  for (size_t p = 0; p < pools_.size(); ++p) {
    if (need[p] > pools_[p].num_available()) return false;
  }
  std::vector<std::vector<PageId>> fresh(pools_.size());
  for (size_t p = 0; p < pools_.size(); ++p) {
    std::optional<std::vector<PageId>> pages = pools_[p].Take(need[p]);
    CHECK(pages.has_value(), "pool {} had {} pages", p, need[p]);
    fresh[p] = *std::move(pages);
    std::reverse(fresh[p].begin(), fresh[p].end());  // used from the back
  }
  for (size_t g = 0; g < t.groups.size(); ++g) {
    const size_t p = pool_index(g);
    PageTable& table = t.groups[g];
    const auto next = [&] {
      const PageId page = fresh[p].back();
      fresh[p].pop_back();
      return page;
    };
    for (const int32_t i : plans[g].unseal) {
      if (!pools_[p].IsSealed(table[i])) continue;  // orphaned by another group of this loop
      index_.OnDrop(pools_[p], table[i], DropReason::kRewritten);
      ++stats_.unsealed_writes;
    }
    for (const int32_t i : plans[g].private_copies) {
      const PageId page = next();
      // A page whose first token is written now has no content worth copying.
      if (group_of(g).kind == CacheKind::kState || i * layout_.block_size < first_write) {
        copies.push_back({static_cast<int32_t>(p), table[i], page});
        ++stats_.copies;
      }
      table.Replace(i, page);
    }
    while (table.num_pages() < plans[g].first_new) table.Adopt(kNullPage);
    for (int32_t i = 0; i < plans[g].num_new; ++i) table.Adopt(next());
  }
  return true;
}

// Seals page t.num_sealed, which is full.
void BlockManager::SealNext(SequenceTables& t, std::span<const TokenId> tokens,
                            int32_t num_computed, const PrefixHash& hash) {
  const int32_t i = t.num_sealed++;
  if (t.chain_broken) return;
  const auto size = static_cast<size_t>(layout_.block_size);
  const NodeId parent = t.cursor.node();
  const NodeId node =
      index_.is_detached(parent)
          ? kNoNode
          : index_.FindOrAdd(parent, hash, tokens.subspan(static_cast<size_t>(i) * size, size));
  if (node == kNoNode) {
    t.chain_broken = true;
    if (!index_.is_detached(parent)) ++stats_.collisions;
    return;
  }
  t.cursor.MoveTo(node);
  for (size_t g = 0; g < t.groups.size(); ++g) {
    const PageId own = t.groups[g][i];
    if (own == kNullPage ||
        !IsPageFinal(group_of(g), t.num_sealed * layout_.block_size, num_computed)) {
      continue;
    }
    const PageId known = index_.page(node, g);
    if (known == kNullPage) {
      index_.SealPage(node, g, own);
    } else if (known != own) {
      pools_[pool_index(g)].Retain(known);
      t.groups[g].Replace(i, known);
      ++stats_.dedupe_hits;
    }
  }
}

void BlockManager::Commit(SequenceTables& t, std::span<const TokenId> tokens, int32_t num_computed,
                          std::vector<PrefixHash>& chain) {
  CHECK(num_computed >= 0 && static_cast<size_t>(num_computed) <= tokens.size(),
        "num_computed={} of {} tokens", num_computed, tokens.size());
  ExtendChain(tokens.first(static_cast<size_t>(num_computed)), layout_.block_size, chain);
  while ((t.num_sealed + 1) * layout_.block_size <= num_computed) {
    const auto i = static_cast<size_t>(t.num_sealed);
    const auto size = static_cast<size_t>(layout_.block_size);
    DCHECK(
        chain[i] == HashPage(i == 0 ? PrefixHash{} : chain[i - 1], tokens.subspan(i * size, size)),
        "chain entry {} is of other tokens", i);
    SealNext(t, tokens, num_computed, chain[i]);
  }
  for (size_t g = 0; g < t.groups.size(); ++g) {
    t.groups[g].DropBefore(FirstKeptPage(g, num_computed));
  }
}

SequenceTables BlockManager::Fork(const SequenceTables& t) {
  SequenceTables child;
  child.root = t.root;
  child.groups.reserve(t.groups.size());
  for (const PageTable& table : t.groups) child.groups.push_back(table.Fork());
  child.num_sealed = t.num_sealed;
  child.chain_broken = t.chain_broken;
  child.cursor = t.cursor.Fork();
  return child;
}

void BlockManager::Truncate(SequenceTables& t, int32_t num_tokens) {
  CHECK(num_tokens >= 0, "num_tokens={}", num_tokens);
  const int32_t num_pages = (num_tokens + layout_.block_size - 1) / layout_.block_size;
  for (size_t g = 0; g < t.groups.size(); ++g) {
    t.groups[g].Truncate(num_pages);
    const int32_t first = FirstLivePage(group_of(g), num_tokens);
    CHECK(first >= t.groups[g].num_pages() || t.groups[g][first] != kNullPage,
          "group {} has given back page {}, which {} tokens need", g, first, num_tokens);
  }
  const int32_t num_full = num_tokens / layout_.block_size;
  if (num_full >= t.num_sealed) return;
  t.num_sealed = num_full;
  if (num_full > index_.depth(t.cursor.node())) return;
  t.cursor.MoveTo(index_.Ancestor(t.cursor.node(), num_full));
  t.chain_broken = false;
}

void BlockManager::FillReadRow(const SequenceTables& t, int32_t group,
                               std::span<PageId> row) const {
  const std::span<const PageId> ids = t.groups[static_cast<size_t>(group)].ids();
  CHECK(ids.size() <= row.size(), "{} pages in a row of {}", ids.size(), row.size());
  std::fill(std::copy(ids.begin(), ids.end(), row.begin()), row.end(), kNullPage);
}

void BlockManager::FillWriteSlots(const SequenceTables& t, int32_t group, int32_t first_pos,
                                  std::span<int64_t> slots) const {
  const PageTable& table = t.groups[static_cast<size_t>(group)];
  const PagePool& pool = pools_[pool_index(static_cast<size_t>(group))];
  const int32_t size = layout_.block_size;
  int32_t pos = first_pos;
  for (int64_t& slot : slots) {
    const PageId page = pos / size < table.num_pages() ? table[pos / size] : kNullPage;
    CHECK(page != kNullPage && pool.refs(page) == 1 && !pool.IsSealed(page),
          "I5: position {} of group {} is in page {}", pos, group, page);
    slot = int64_t{page} * size + pos % size;
    ++pos;
  }
}

PageNeed BlockManager::WorstCasePages(int32_t prompt_tokens, int32_t max_new_tokens,
                                      int32_t num_branches) const {
  const int64_t total = int64_t{prompt_tokens} + max_new_tokens;
  CHECK(prompt_tokens >= 0 && max_new_tokens >= 0 && num_branches >= 1 && total < INT32_MAX,
        "prompt_tokens={} max_new_tokens={} num_branches={}", prompt_tokens, max_new_tokens,
        num_branches);
  const auto most = static_cast<int32_t>(total);
  const int32_t step = options_.max_step_tokens > 0 ? options_.max_step_tokens : most;
  PageNeed need(pools_.size());
  for (size_t g = 0; g < layout_.groups.size(); ++g) {
    const CacheGroup& group = group_of(g);
    const int32_t each = MaxPages(group, most, step, options_.max_truncate_tokens);
    const int32_t shared = group.kind == CacheKind::kFull ? prompt_tokens / layout_.block_size : 0;
    const int64_t sum = shared + int64_t{num_branches} * (each - shared);
    int32_t& n = need[pool_index(g)];
    n = static_cast<int32_t>(std::min<int64_t>(INT32_MAX, n + sum));
  }
  return need;
}

void BlockManager::Flush() { index_.Flush(); }

absl::Status BlockManager::AuditTables(const SequenceTables& t) const {
  const NodeId tip = t.cursor.node();
  const int32_t depth = index_.depth(tip);
  if (depth > t.num_sealed || (!t.chain_broken && depth != t.num_sealed)) {
    return Error(absl::StatusCode::kInternal, "I4: {} pages sealed, prefix has {}", t.num_sealed,
                 depth);
  }
  for (size_t g = 0; g < t.groups.size(); ++g) {
    const PageTable& table = t.groups[g];
    const PagePool& pool = pools_[pool_index(g)];
    NodeId node = tip;
    bool gap = false;
    for (int32_t i = table.num_pages() - 1; i >= 0; --i) {
      const PageId page = table[i];
      const bool in_prefix = i < depth;
      if (page == kNullPage) {
        gap = true;
      } else {
        if (gap && group_of(g).kind != CacheKind::kState) {
          return Error(absl::StatusCode::kInternal, "I7: group {} has page {} before a gap", g, i);
        }
        // Beyond its prefix a sequence may hold a sealed page after Truncate, until it writes
        // there.
        if (in_prefix && pool.IsSealed(page) && index_.page(node, g) != page) {
          return Error(absl::StatusCode::kInternal,
                       "I4: page {} at {} of group {} is sealed for another prefix", page, i, g);
        }
      }
      if (gap && group_of(g).kind == CacheKind::kFull) {
        return Error(absl::StatusCode::kInternal, "I7: full group {} has no page {}", g, i);
      }
      if (in_prefix) node = index_.Ancestor(node, i);
    }
  }
  return absl::OkStatus();
}

absl::Status BlockManager::Audit(std::span<const SequenceTables* const> live) const {
  std::vector<std::vector<const PageTable*>> tables(pools_.size());
  for (const SequenceTables* t : live) {
    if (t->groups.empty()) continue;  // never admitted, or preempted
    for (size_t g = 0; g < t->groups.size(); ++g) tables[pool_index(g)].push_back(&t->groups[g]);
    RETURN_IF_ERROR(AuditTables(*t));
  }
  for (size_t p = 0; p < pools_.size(); ++p) RETURN_IF_ERROR(pools_[p].Audit(tables[p]));
  return index_.Audit();
}

}  // namespace quire
