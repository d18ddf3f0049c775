// What a sequence finds in the cache when it comes: prefix hits, and what was saved of itself.
#include <algorithm>

#include "paged_cache/block_manager.h"

namespace quire {

PrefixHit BlockManager::MatchPrefix(RootId root, std::span<const TokenId> tokens,
                                    std::span<const PrefixHash> chain, const SequenceSpec& spec) {
  const auto size = static_cast<size_t>(layout_.block_size);
  const size_t most = tokens.empty() ? 0 : (tokens.size() - 1) / size;
  PrefixHit hit = Match(root, tokens, chain, most, spec);
  ++stats_.lookups;
  stats_.lookup_tokens += static_cast<int64_t>(tokens.size());
  stats_.hit_tokens += hit.num_tokens;
  for (int32_t n = hit.num_tokens / layout_.block_size;
       n > 0 && index_.is_pending(path_[static_cast<size_t>(n)]); --n) {
    stats_.in_step_tokens += layout_.block_size;
  }
  return hit;
}

PrefixHit BlockManager::Match(RootId root, std::span<const TokenId> tokens,
                              std::span<const PrefixHash> chain, size_t most_blocks,
                              const SequenceSpec& spec) {
  index_.FindPath(index_.RootNode(root), chain, tokens, std::min(chain.size(), most_blocks), path_);
  if (files_ != nullptr) LoadFromFiles(tokens, chain, std::min(chain.size(), most_blocks));
  int32_t next_step = 0;
  if (has_state_ && index_.num_pending() > 0) {  // a state that is being computed is not there yet
    next_step = LongestServable(/*with_host=*/true);
    const auto pending = std::find_if(path_.begin(), path_.end(),
                                      [&](NodeId node) { return index_.is_pending(node); });
    path_.erase(pending, path_.end());
  }
  PrefixHit hit{.num_tokens = 0, .tables = NewTables(root, spec)};
  int32_t num_blocks = LongestServable(/*with_host=*/true);
  if (!Adopt(hit.tables, num_blocks)) {  // no room for what the host tier has of it
    num_blocks = LongestServable(/*with_host=*/false);
    CHECK(Adopt(hit.tables, num_blocks), "{} blocks need no page", num_blocks);
  }
  hit.num_tokens = num_blocks * layout_.block_size;
  hit.num_tokens_next_step = std::max(num_blocks, next_step) * layout_.block_size;
  hit.tables.num_sealed = hit.tables.first_announced = num_blocks;
  hit.tables.cursor.MoveTo(path_[static_cast<size_t>(num_blocks)]);
  return hit;
}

int32_t BlockManager::KnownTokens(RootId root, std::span<const TokenId> tokens,
                                  std::span<const PrefixHash> chain) {
  index_.FindPath(index_.RootNode(root), chain, tokens, chain.size(), path_);
  return (static_cast<int32_t>(path_.size()) - 1) * layout_.block_size;
}

// The most blocks of path_ that every group can serve.
int32_t BlockManager::LongestServable(bool with_host) {
  const size_t depth = path_.size();
  streaks_.assign(layout_.groups.size() * depth, 0);
  for (size_t g = 0; g < layout_.groups.size(); ++g) {
    if (group_of(g).kind == CacheKind::kCrossAttention) continue;
    const auto per_page = static_cast<size_t>(group_of(g).page_size / layout_.block_size);
    int32_t* streak = &streaks_[g * depth];
    for (size_t n = 1; n < depth; ++n) {
      streak[n] = streak[n - 1];
      if (n % per_page != 0) continue;
      const bool there =
          with_host ? index_.has_content(path_[n], g) : index_.page(path_[n], g) != kNullPage;
      streak[n] = there ? streak[n] + 1 : 0;
    }
  }
  const auto servable = [&](int32_t n) {
    const int32_t tokens = n * layout_.block_size;
    for (size_t g = 0; g < layout_.groups.size(); ++g) {
      const CacheGroup& group = group_of(g);
      if (group.kind == CacheKind::kCrossAttention) continue;
      // Of states only the last is needed to go on.
      const int32_t first =
          group.kind == CacheKind::kState ? FirstLivePage(group, tokens) : FirstKept(g, tokens);
      const int32_t needed = tokens / group.page_size - first;
      if (streaks_[g * depth + static_cast<size_t>(n)] < needed) return false;
    }
    return true;
  };
  auto num_blocks = static_cast<int32_t>(depth) - 1;
  while (!servable(num_blocks)) --num_blocks;  // 0 blocks can always be served
  return num_blocks;
}

// Fills the empty tables of `t` with the pages of path_'s first num_blocks blocks. Those in the
// host tier need pages: false if there are none, and nothing has changed.
bool BlockManager::Adopt(SequenceTables& t, int32_t num_blocks) {
  const int32_t num_tokens = num_blocks * layout_.block_size;
  const auto first_page = [&](size_t g) {
    return group_of(g).kind == CacheKind::kState ? FirstLivePage(group_of(g), num_tokens)
                                                 : FirstKept(g, num_tokens);
  };
  const auto node_of = [&](size_t g, int32_t i) {
    return path_[static_cast<size_t>((i + 1) * group_of(g).page_size / layout_.block_size)];
  };
  // First all that is there is retained, in both tiers; only then may something be evicted.
  std::fill(need_.begin(), need_.end(), 0);
  for (size_t g = 0; g < t.groups.size(); ++g) {
    if (group_of(g).kind == CacheKind::kCrossAttention) continue;
    const size_t p = pool_index(g);
    const int32_t end = num_tokens / group_of(g).page_size;
    const int32_t first = first_page(g);
    for (int32_t i = 0; i < end; ++i) {
      const NodeId node = node_of(g, i);
      const PageId page = i < first ? kNullPage : index_.page(node, g);
      if (page != kNullPage) {
        pools_[p].Retain(page);
        Keep(t, g, index_.depth(node) - 1, page);
      } else if (i >= first) {
        host_pools_[p].Retain(index_.slot(node, g));
        ++need_[p];
      }
      t.groups[g].Adopt(page);
    }
  }
  bool fits = true;
  int32_t loads = 0;
  for (size_t p = 0; p < pools_.size(); ++p) {
    fits = fits && need_[p] <= pools_[p].num_available();
    loads += need_[p];
  }
  if (loads == 0) return true;
  for (size_t p = 0; p < pools_.size() && fits; ++p) {
    fresh_[p].resize(static_cast<size_t>(need_[p]));
    CHECK(pools_[p].Take(fresh_[p]), "pool {} had {} pages", p, need_[p]);
  }
  for (size_t g = t.groups.size(); g-- > 0;) {
    const size_t p = pool_index(g);
    for (int32_t i = t.groups[g].num_pages() - 1; i >= first_page(g); --i) {
      if (t.groups[g][i] != kNullPage) continue;
      const NodeId node = node_of(g, i);
      const PageId slot = index_.slot(node, g);
      if (fits) {
        const PageId page = fresh_[p].back();
        fresh_[p].pop_back();
        ops_.push_back({static_cast<int32_t>(p), slot, page, PageOp::kLoad});
        index_.MoveToPage(node, g, page);
        Keep(t, g, index_.depth(node) - 1, page);
        t.groups[g].Fill(i, page);
        ++stats_.loaded;
      }
      host_pools_[p].Release(slot);
    }
    if (!fits) t.groups[g].Truncate(0);
  }
  return fits;
}

int32_t BlockManager::ExtendPartially(SequenceTables& t, std::span<const TokenId> tokens) {
  const int32_t size = layout_.block_size;
  const int32_t num_tokens = t.num_sealed * size;
  CHECK(t.first_announced == t.num_sealed, "ExtendPartially of a sequence in flight");
  if (has_state_ || t.chain_broken || num_tokens + 1 >= static_cast<int32_t>(tokens.size())) {
    return 0;
  }
  const auto left = tokens.subspan(static_cast<size_t>(num_tokens));
  const std::pair<NodeId, int32_t> found =
      index_.FindPartial(t.cursor.node(), left.first(left.size() - 1));
  const NodeId node = found.first;
  const int32_t same = found.second;
  if (node == kNoNode || same < options_.partial_hit_share * size) return 0;
  // Pages that end with this block; others have nothing new before its end.
  const auto copied = [&](size_t g) {
    return group_of(g).kind != CacheKind::kCrossAttention && group_of(g).page_size == size &&
           NumPages(group_of(g), num_tokens + same) > num_tokens / size;
  };
  std::fill(need_.begin(), need_.end(), 0);
  for (size_t g = 0; g < t.groups.size(); ++g) {
    if (!copied(g)) continue;
    if (index_.page(node, g) == kNullPage) return 0;
    ++need_[pool_index(g)];
  }
  // Sources in use would do, too, but they must not be what is evicted for the copy.
  for (size_t p = 0; p < pools_.size(); ++p) {
    if (2 * need_[p] > pools_[p].num_available()) return 0;
  }
  for (size_t g = 0; g < t.groups.size(); ++g) {
    if (copied(g)) pools_[pool_index(g)].Retain(index_.page(node, g));
  }
  for (size_t g = 0; g < t.groups.size(); ++g) {
    if (!copied(g)) continue;
    const size_t p = pool_index(g);
    const PageId source = index_.page(node, g);
    PageId page = kNullPage;
    CHECK(pools_[p].Take({&page, 1}), "pool {} had a page", p);
    ops_.push_back({static_cast<int32_t>(p), source, page});
    t.groups[g].Adopt(page);
    ++stats_.copies;
  }
  for (size_t g = t.groups.size(); g-- > 0;) {
    if (copied(g)) pools_[pool_index(g)].Release(index_.page(node, g));
  }
  stats_.partial_tokens += same;
  return same;
}

// ---- swap ----

std::optional<SwappedTables> BlockManager::SwapOut(const SequenceTables& t, int32_t num_computed) {
  if (host_pools_.empty() || t.groups.empty()) return std::nullopt;
  // A sealed page stays findable when its last owner goes, and moves to the host tier when it is
  // evicted; unless it is private.
  const auto saved = [&](size_t g, PageId page) {
    const PagePool& pool = pools_[pool_index(g)];
    return page != kNullPage && !(pool.IsSealed(page) && pool.keeps(page));
  };
  std::fill(need_.begin(), need_.end(), 0);
  for (size_t g = 0; g < t.groups.size(); ++g) {
    for (const PageId page : t.groups[g].ids()) need_[pool_index(g)] += saved(g, page);
  }
  for (size_t p = 0; p < pools_.size(); ++p) {
    if (need_[p] > host_pools_[p].num_available()) return std::nullopt;
  }
  SwappedTables swapped{.num_computed = num_computed};
  for (size_t g = 0; g < t.groups.size(); ++g) {
    const size_t p = pool_index(g);
    PageTable& slots = swapped.groups.emplace_back(host_pools_[p]);
    for (const PageId page : t.groups[g].ids()) {
      PageId slot = kNullPage;
      if (saved(g, page)) {
        CHECK(host_pools_[p].Take({&slot, 1}), "host pool {} had {} slots", p, need_[p]);
        ops_.push_back({static_cast<int32_t>(p), page, slot, PageOp::kSave});
        ++stats_.saved;
      }
      slots.Adopt(slot);
    }
  }
  ++stats_.swap_outs;
  return swapped;
}

std::optional<PrefixHit> BlockManager::SwapIn(RootId root, std::span<const TokenId> tokens,
                                              std::span<const PrefixHash> chain,
                                              const SwappedTables& swapped,
                                              const SequenceSpec& spec,
                                              std::span<const int32_t> spare) {
  const int32_t num_computed = swapped.num_computed;
  PrefixHit hit =
      Match(root, tokens, chain, static_cast<size_t>(num_computed / layout_.block_size), spec);
  // Each page that the hit does not bring must have been saved.
  std::fill(need_.begin(), need_.end(), 0);
  for (size_t g = 0; g < layout_.groups.size(); ++g) {
    const CacheGroup& group = group_of(g);
    const PageTable& slots = swapped.groups[g];
    const bool cross = group.kind == CacheKind::kCrossAttention;
    const int32_t first = cross ? 0 : FirstKept(g, num_computed);
    for (int32_t i = hit.tables.groups[g].num_pages(); i < slots.num_pages(); ++i) {
      if (slots[i] != kNullPage) {
        ++need_[pool_index(g)];
      } else if (i >= first && (group.kind != CacheKind::kState || i + 1 == slots.num_pages())) {
        return hit;  // evicted in the meantime: computed again
      }
    }
  }
  for (size_t p = 0; p < pools_.size(); ++p) {
    const int32_t left = pools_[p].num_available() - need_[p];
    if (left < (spare.empty() ? 0 : spare[p])) return std::nullopt;
  }
  for (size_t g = 0; g < layout_.groups.size(); ++g) {
    const size_t p = pool_index(g);
    const PageTable& slots = swapped.groups[g];
    for (int32_t i = hit.tables.groups[g].num_pages(); i < slots.num_pages(); ++i) {
      PageId page = kNullPage;
      if (slots[i] != kNullPage) {
        CHECK(pools_[p].Take({&page, 1}), "pool {} had {} pages", p, need_[p]);
        ops_.push_back({static_cast<int32_t>(p), slots[i], page, PageOp::kLoad});
        ++stats_.loaded;
      }
      hit.tables.groups[g].Adopt(page);
    }
    // The hit may begin earlier than what was still kept.
    if (group_of(g).kind != CacheKind::kCrossAttention) {
      hit.tables.groups[g].DropBefore(FirstKept(g, num_computed));
    }
  }
  hit.num_tokens = num_computed;
  ++stats_.swap_ins;
  return hit;
}

}  // namespace quire
