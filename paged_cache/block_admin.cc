// What operators do to the cache and see of it: pins, size, pages, audit.
#include <algorithm>

#include "absl/container/flat_hash_set.h"
#include "paged_cache/block_manager.h"

namespace quire {

void BlockManager::SetTime(int64_t now_ms) {
  now_ms_ = std::max(now_ms_, now_ms);
  for (PagePool& pool : pools_) pool.SetTime(now_ms_);
  for (PagePool& pool : host_pools_) pool.SetTime(now_ms_);
  const size_t before = pins_.size();
  std::erase_if(pins_, [&](const auto& pin) { return pin.second.info.expires_ms <= now_ms_; });
  if (pins_.size() != before) CountPins();
}

void BlockManager::Flush(std::string_view key_prefix) {
  // Nothing is left: one word instead of many. (Files keep what they have.)
  const bool all = events_ != nullptr && key_prefix.empty() && file_blocks_ == nullptr;
  if (all) index_.set_events(nullptr);
  index_.Flush(key_prefix);
  if (all) {
    events_->Cleared();
    index_.set_events(events_.get());
  }
  const size_t before = pins_.size();
  std::erase_if(
      pins_, [&](const auto& pin) { return index_.is_detached(pin.second.tables.cursor.node()); });
  if (pins_.size() != before) CountPins();
}

// ---- pins ----

void BlockManager::CountPins() {
  for (size_t p = 0; p < pools_.size(); ++p) {
    absl::flat_hash_set<PageId> pages;
    for (const auto& [id, pin] : pins_) {
      for (size_t g = 0; g < pin.tables.groups.size(); ++g) {
        if (pool_index(g) != p) continue;
        for (const PageId page : pin.tables.groups[g].ids()) {
          if (page != kNullPage) pages.insert(page);
        }
      }
    }
    pinned_pages_[p] = static_cast<int32_t>(pages.size());
  }
}

absl::StatusOr<PinInfo> BlockManager::Pin(RootId root, std::span<const TokenId> tokens,
                                          int64_t ttl_ms, const PageNeed& least) {
  std::vector<PrefixHash> chain;
  ExtendChain(root, tokens, chain);
  PrefixHit hit = Match(root, tokens, chain, chain.size(), {});
  if (hit.num_tokens == 0) {
    return Error(absl::StatusCode::kNotFound,
                 "none of the {} tokens is cached; run a request with this prefix first",
                 tokens.size());
  }
  const PinInfo info{.id = next_pin_++,
                     .root = root,
                     .num_tokens = hit.num_tokens,
                     .expires_ms = ttl_ms > 0 ? now_ms_ + ttl_ms : kNoExpiry};
  pins_.emplace(info.id, PinnedPrefix{info, std::move(hit.tables)});
  CountPins();
  for (size_t p = 0; p < pools_.size(); ++p) {
    const int32_t usable = pools_[p].num_usable();
    const auto most = static_cast<int32_t>(options_.max_pinned_share * usable);
    const int32_t wanted = pinned_pages_[p];
    const int32_t left = usable - wanted;
    if (wanted <= most && left >= least[p]) continue;
    Unpin(info.id);
    if (wanted > most) {
      return Error(absl::StatusCode::kResourceExhausted,
                   "pins would hold {} blocks, limit is {} (max_pinned_share={} of {}); unpin "
                   "something or raise max_pinned_share",
                   wanted, most, options_.max_pinned_share, usable);
    }
    return Error(absl::StatusCode::kResourceExhausted,
                 "pins would leave {} blocks, an admitted request may need {}; retry when it has "
                 "ended",
                 left, least[p]);
  }
  return info;
}

bool BlockManager::Unpin(PinId pin) {
  if (pins_.erase(pin) == 0) return false;
  CountPins();
  return true;
}

std::vector<PinInfo> BlockManager::pins() const {
  std::vector<PinInfo> all;
  for (const auto& [id, pin] : pins_) all.push_back(pin.info);
  return all;
}

// ---- size ----

absl::Status BlockManager::Resize(size_t pool, int32_t num_usable, int32_t least,
                                  std::vector<PageId>& retired) {
  CHECK(index_.num_pending() == 0, "Resize during a step");
  const int32_t needed = std::max(1, least) + pinned_pages_[pool];
  if (num_usable < needed) {
    return InvalidArgument(
        "num_blocks={} must be at least {} now: {} for the largest admitted request, {} pinned",
        num_usable, needed, std::max(1, least), pinned_pages_[pool]);
  }
  pools_[pool].Resize(num_usable, retired);
  return absl::OkStatus();
}

// ---- what is there ----

BlockInfo BlockManager::InspectPage(size_t index, PageId page) const {
  const PagePool& pool = pools_[index];
  const auto num_groups = static_cast<int64_t>(layout_.groups.size());
  BlockInfo info{.pool = static_cast<int32_t>(index),
                 .page = page,
                 .refs = pool.refs(page),
                 .sealed = pool.IsSealed(page),
                 .last_access_ms = pool.last_access_ms(page)};
  info.state = info.refs > 0 ? PageState::kActive
               : info.sealed ? PageState::kCached
                             : PageState::kBlank;
  if (info.sealed) {
    const auto node = static_cast<NodeId>(pool.tag(page) / num_groups);
    info.group = static_cast<int32_t>(pool.tag(page) % num_groups);
    info.end_token = index_.depth(node) * layout_.block_size;
    info.hash = index_.hash(node);
    info.parent_hash = index_.hash(index_.parent(node));
    info.root = index_.root(node);
    info.retention = pool.retention(page);
  }
  return info;
}

std::vector<BlockInfo> BlockManager::Inspect() const {
  std::vector<BlockInfo> all;
  for (size_t p = 0; p < pools_.size(); ++p) {
    const PagePool& pool = pools_[p];
    for (PageId page = 1; page < pool.num_ids(); ++page) {
      if (pool.IsRetired(page)) continue;
      all.push_back(InspectPage(p, page));
    }
  }
  return all;
}

// ---- audit ----

absl::Status BlockManager::AuditTables(const SequenceTables& t) const {
  const NodeId tip = t.cursor.node();
  const int32_t depth = index_.depth(tip);
  if (depth > t.num_sealed || (!t.chain_broken && depth != t.num_sealed)) {
    return Error(absl::StatusCode::kInternal, "I4: {} blocks sealed, prefix has {}", t.num_sealed,
                 depth);
  }
  for (size_t g = 0; g < t.groups.size(); ++g) {
    const CacheGroup& group = group_of(g);
    if (group.kind == CacheKind::kCrossAttention) continue;
    const PageTable& table = t.groups[g];
    const PagePool& pool = pools_[pool_index(g)];
    const int32_t per_page = group.page_size / layout_.block_size;
    NodeId node = tip;
    int32_t at = depth;  // of `node`
    bool gap = false;
    for (int32_t i = table.num_pages() - 1; i >= 0; --i) {
      const PageId page = table[i];
      const int32_t end = (i + 1) * per_page;
      if (page == kNullPage) {
        gap = true;
      } else {
        if (gap && group.kind != CacheKind::kState) {
          return Error(absl::StatusCode::kInternal, "I7: group {} has page {} before a gap", g, i);
        }
        for (; at > end; --at) node = index_.parent(node);
        // Beyond its prefix a sequence may hold a sealed page after Truncate, until it writes
        // there.
        if (at == end && pool.IsSealed(page) && index_.page(node, g) != page) {
          return Error(absl::StatusCode::kInternal,
                       "I4: page {} at {} of group {} is sealed for another prefix", page, i, g);
        }
      }
      if (gap && KeepsAll(group.kind)) {
        return Error(absl::StatusCode::kInternal, "I7: full group {} has no page {}", g, i);
      }
    }
  }
  return absl::OkStatus();
}

absl::Status BlockManager::Audit(std::span<const SequenceTables* const> live,
                                 std::span<const SwappedTables* const> swapped) const {
  std::vector<std::vector<const PageTable*>> tables(pools_.size());
  const auto add = [&](const SequenceTables& t) {
    for (size_t g = 0; g < t.groups.size(); ++g) tables[pool_index(g)].push_back(&t.groups[g]);
    return AuditTables(t);
  };
  for (const SequenceTables* t : live) {
    if (t->groups.empty()) continue;  // never admitted, or preempted
    RETURN_IF_ERROR(add(*t));
  }
  for (const auto& [id, pin] : pins_) RETURN_IF_ERROR(add(pin.tables));
  for (size_t p = 0; p < pools_.size(); ++p) RETURN_IF_ERROR(pools_[p].Audit(tables[p]));
  for (size_t p = 0; p < host_pools_.size(); ++p) {
    std::vector<const PageTable*> slots;
    for (const SwappedTables* t : swapped) {
      for (size_t g = 0; g < t->groups.size(); ++g) {
        if (pool_index(g) == p) slots.push_back(&t->groups[g]);
      }
    }
    RETURN_IF_ERROR(host_pools_[p].Audit(slots));
  }
  return index_.Audit();
}

}  // namespace quire
