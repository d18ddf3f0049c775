#include "paged_cache/cache_files.h"

#include <algorithm>
#include <charconv>

#include "absl/container/flat_hash_map.h"
#include "paged_cache/block_manager.h"
#include "paged_cache/page_file_store.h"
#include "paged_cache/page_storage.h"

namespace quire {

std::string FileRootBytes(std::string_view root_key, std::string_view cache_salt) {
  return fmt::format("{}:{}{}:{}", root_key.size(), std::string(root_key), cache_salt.size(),
                     std::string(cache_salt));
}

std::optional<std::pair<std::string, std::string>> ParseFileRootBytes(std::string_view bytes) {
  const auto part = [&]() -> std::optional<std::string> {
    size_t size = 0;
    const auto [end, error] = std::from_chars(bytes.data(), bytes.data() + bytes.size(), size);
    const auto digits = static_cast<size_t>(end - bytes.data());
    if (error != std::errc() || digits >= bytes.size() || bytes[digits] != ':' ||
        size > bytes.size() - digits - 1) {
      return std::nullopt;
    }
    std::string text(bytes.substr(digits + 1, size));
    bytes.remove_prefix(digits + 1 + size);
    return text;
  };
  std::optional<std::string> key = part();
  if (!key) return std::nullopt;
  std::optional<std::string> salt = part();
  if (!salt || !bytes.empty()) return std::nullopt;
  return std::pair(*std::move(key), *std::move(salt));
}

PageFileLayout MakePageFileLayout(const CacheLayout& layout, std::string fingerprint) {
  PageFileLayout files{.fingerprint = std::move(fingerprint), .block_size = layout.block_size};
  for (const GroupLayout& group : layout.groups) {
    files.group_bytes.push_back(layout.pools[static_cast<size_t>(group.pool)].page_bytes);
  }
  return files;
}

// ---- as a tier ----

void BlockManager::AttachFiles(PageFileStore& files, PageStorage& storage) {
  CHECK(index_.num_roots() == 0 && files_ == nullptr, "AttachFiles comes too late");
  files_ = &files;
  storage_ = &storage;
  index_.KeepFileKeys();
  index_.set_on_host_evict(
      [this](NodeId node, size_t group, PageId slot) { SaveToFiles(node, group, slot); });
}

void BlockManager::NoteTouched(std::span<const PageCopy> ops) {
  if (files_ == nullptr) return;
  for (const PageCopy& op : ops) {
    if (op.op == PageOp::kCopy || op.op == PageOp::kSave) touched_.emplace(op.pool, op.src);
    if (op.op != PageOp::kSave) touched_.emplace(op.pool, op.dst);
  }
}

// Whether an operation that has not run yet may read or write the page.
bool BlockManager::IsTouched(int32_t pool, PageId page) const {
  return touched_.contains({pool, page}) ||
         std::any_of(ops_.begin(), ops_.end(), [&](const PageCopy& op) {
           return op.pool == pool &&
                  ((op.src == page && (op.op == PageOp::kCopy || op.op == PageOp::kSave)) ||
                   (op.dst == page && op.op != PageOp::kSave));
         });
}

void BlockManager::SaveToFiles(NodeId node, size_t group, PageId slot) {
  const auto pool = static_cast<int32_t>(pool_index(group));
  // Evicted in the step that saves it: a tier so small keeps nothing for long anyway.
  if (index_.is_unsaved(host_pools_[pool_index(group)], slot) || index_.is_detached(node)) {
    ++stats_.file_not_saved;
    return;
  }
  const NodeId parent = index_.parent(node);
  PageEntry entry{.key = index_.file_key(node),
                  .parent = index_.file_key(parent),
                  .depth = index_.depth(node) - 1};
  if (entry.depth == 0) {
    entry.root =
        FileRootBytes(index_.root_key(index_.root(node)), index_.cache_salt(index_.root(node)));
  }
  const std::span<const TokenId> tokens = index_.tokens_of(node);
  entry.tokens.assign(tokens.begin(), tokens.end());
  entry.groups.resize(layout_.groups.size());
  const std::byte* bytes = storage_->host_page(pool, slot);
  entry.groups[group].assign(bytes, bytes + storage_->page_bytes(pool));
  const bool put = files_->Put(std::move(entry));
  ++(put ? stats_.file_saved : stats_.file_not_saved);
  if (put) TellFile(node);
}

PrefixHash BlockManager::NextHash(NodeId parent, std::span<const TokenId> tokens) const {
  const PrefixHash above = index_.hash(parent);
  return HasherOf(index_.root(parent)).Next(index_.depth(parent) == 0 ? nullptr : &above, tokens);
}

// Extends path_ by what files have of the prefix, as far as there is room without evicting what is
// on the path itself.
void BlockManager::LoadFromFiles(std::span<const TokenId> tokens, std::span<const PrefixHash> chain,
                                 size_t most_blocks) {
  const auto size = static_cast<size_t>(layout_.block_size);
  if (path_.size() > most_blocks || !index_.root_keeps(index_.root(path_[0]))) return;
  std::vector<std::pair<size_t, PageId>> held;  // (pool, page): not to be evicted meanwhile
  std::vector<std::pair<size_t, PageId>> held_slots;
  const auto hold = [&](NodeId node) {
    for (size_t g = 0; g < layout_.groups.size(); ++g) {
      const size_t p = pool_index(g);
      if (const PageId page = index_.page(node, g); page != kNullPage) {
        pools_[p].Retain(page);
        held.emplace_back(p, page);
      } else if (const PageId slot = index_.slot(node, g); slot != kNullPage) {
        host_pools_[p].Retain(slot);
        held_slots.emplace_back(p, slot);
      }
    }
  };
  bool holding = false;
  while (path_.size() <= most_blocks) {
    const size_t i = path_.size() - 1;
    const NodeId parent = path_.back();
    const std::span<const TokenId> block = tokens.subspan(i * size, size);
    const Sha256Digest key = PageKey(index_.file_key(parent), block);
    if (index_.is_pending(parent) || !files_->Contains(key)) break;
    std::optional<PageEntry> entry = files_->Get(key, index_.file_key(parent), block);
    if (!entry) break;
    std::fill(need_.begin(), need_.end(), 0);
    bool complete = true;
    for (size_t g = 0; g < layout_.groups.size(); ++g) {
      const bool has = !entry->groups[g].empty();
      const bool ends = (i + 1) * size % static_cast<size_t>(group_of(g).page_size) == 0;
      need_[pool_index(g)] += has;
      complete = complete && (has || !ends || !KeepsAll(group_of(g).kind));
    }
    for (size_t p = 0; p < pools_.size(); ++p) {
      complete = complete && need_[p] <= pools_[p].num_available();
    }
    if (!complete) break;
    if (!std::exchange(holding, true)) {
      for (const NodeId node : path_) hold(node);
    }
    for (size_t p = 0; p < pools_.size(); ++p)
      complete = complete && need_[p] <= pools_[p].num_available();
    if (!complete) break;
    // Taken before the node is there: what is evicted for them may not take it along.
    std::vector<PageId> pages(layout_.groups.size(), kNullPage);
    for (size_t g = 0; g < pages.size(); ++g) {
      if (entry->groups[g].empty()) continue;
      CHECK(pools_[pool_index(g)].Take({&pages[g], 1}), "group {} had a page", g);
    }
    const NodeId node =
        index_.is_detached(parent) ? kNoNode : index_.FindOrAdd(parent, chain[i], block);
    for (size_t g = 0; g < pages.size(); ++g) {
      if (pages[g] == kNullPage) continue;
      held.emplace_back(pool_index(g), pages[g]);
      if (node == kNoNode || index_.has_content(node, g)) continue;
      // At once if the page is free of this step's operations, else in their order: it may be the
      // source of one that saves what was evicted for it.
      const auto p = static_cast<int32_t>(pool_index(g));
      if (IsTouched(p, pages[g])) {
        ops_.push_back({p, static_cast<int32_t>(fills_.size()), pages[g], PageOp::kFill});
        fills_.push_back(std::move(entry->groups[g]));
      } else {
        std::copy(entry->groups[g].begin(), entry->groups[g].end(), storage_->page(p, pages[g]));
      }
      index_.SealPage(node, g, pages[g]);
      ++stats_.file_loaded;
    }
    if (node == kNoNode) break;  // a collision
    TellFile(node);
    path_.push_back(node);
  }
  for (auto it = held.rbegin(); it != held.rend(); ++it) pools_[it->first].Release(it->second);
  for (auto it = held_slots.rbegin(); it != held_slots.rend(); ++it) {
    host_pools_[it->first].Release(it->second);
  }
}

// ---- all at once ----

CacheTransfer BlockManager::Save(PageFileStore& files, PageStorage& storage) {
  CHECK(index_.num_pending() == 0, "Save during a step");
  storage.Copy(TakeOps(), fills_);
  Publish();
  CacheTransfer done;
  std::vector<NodeId> nodes;
  index_.ForEach([&](NodeId node) {
    if (index_.root_keeps(index_.root(node))) nodes.push_back(node);
  });
  // Keys from the roots down; entries from the leaves up, so that a store that is too small keeps
  // the beginnings.
  absl::flat_hash_map<NodeId, Sha256Digest> keys;
  for (const NodeId node : nodes) {
    const NodeId parent = index_.parent(node);
    if (index_.depth(parent) == 0 && !keys.contains(parent)) {
      const RootId root = index_.root(node);
      keys[parent] = RootPageKey(FileRootBytes(index_.root_key(root), index_.cache_salt(root)));
    }
    const Sha256Digest above = keys.at(parent);
    keys[node] = PageKey(above, index_.tokens_of(node));
  }
  for (auto it = nodes.rbegin(); it != nodes.rend(); ++it) {
    const NodeId node = *it;
    PageEntry entry{.key = keys.at(node),
                    .parent = keys.at(index_.parent(node)),
                    .depth = index_.depth(node) - 1};
    if (entry.depth == 0) {
      const RootId root = index_.root(node);
      entry.root = FileRootBytes(index_.root_key(root), index_.cache_salt(root));
    }
    const std::span<const TokenId> tokens = index_.tokens_of(node);
    entry.tokens.assign(tokens.begin(), tokens.end());
    entry.groups.resize(layout_.groups.size());
    int64_t bytes = 0;
    for (size_t g = 0; g < entry.groups.size(); ++g) {
      const auto pool = static_cast<int32_t>(pool_index(g));
      const PageId page = index_.page(node, g);
      const PageId slot = index_.slot(node, g);
      if (page == kNullPage && slot == kNullPage) continue;
      const std::byte* from =
          page != kNullPage ? storage.page(pool, page) : storage.host_page(pool, slot);
      entry.groups[g].assign(from, from + storage.page_bytes(pool));
      bytes += static_cast<int64_t>(entry.groups[g].size());
    }
    bool put = files.Put(entry);
    if (!put) {  // the queue is bounded, and there is time
      files.Flush();
      put = files.Put(std::move(entry));
    }
    if (!put) {
      ++done.dropped;
      continue;
    }
    ++done.entries;
    done.tokens += layout_.block_size;
    done.bytes += bytes;
  }
  files.Flush();
  return done;
}

CacheTransfer BlockManager::Load(PageFileStore& files, PageStorage& storage) {
  CHECK(index_.num_pending() == 0, "Load during a step");
  storage.Copy(TakeOps(), fills_);
  Publish();
  CacheTransfer done;
  absl::flat_hash_map<Sha256Digest, NodeId> nodes;  // by file key
  // Held until all is there, so that no node goes and leaves are older than their roots in the end.
  std::vector<std::pair<size_t, PageId>> held;  // (pool, page)
  std::vector<PrefixCursor> cursors;
  files.ForEach([&](PageEntry entry) {
    NodeId parent = kNoNode;
    if (entry.depth == 0) {
      const auto root = ParseFileRootBytes(entry.root);
      if (root) {
        parent = index_.RootNode(index_.InternRoot(root->first, /*keep=*/true, root->second));
      }
    } else if (const auto it = nodes.find(entry.parent); it != nodes.end()) {
      parent = it->second;
    }
    std::fill(need_.begin(), need_.end(), 0);
    bool complete = parent != kNoNode && !index_.is_detached(parent);
    const int32_t end = (entry.depth + 1) * layout_.block_size;
    for (size_t g = 0; g < layout_.groups.size(); ++g) {
      const bool has = !entry.groups[g].empty();
      need_[pool_index(g)] += has;
      complete =
          complete && (has || end % group_of(g).page_size != 0 || !KeepsAll(group_of(g).kind));
    }
    for (size_t p = 0; p < pools_.size(); ++p) {
      complete = complete && need_[p] <= pools_[p].num_blank();
    }
    const NodeId node =
        complete ? index_.FindOrAdd(parent, NextHash(parent, entry.tokens), entry.tokens) : kNoNode;
    if (node == kNoNode) {
      ++done.dropped;
      return true;
    }
    bool is_new = false;
    for (size_t g = 0; g < layout_.groups.size(); ++g) {
      if (entry.groups[g].empty() || index_.has_content(node, g)) continue;
      PagePool& pool = pools_[pool_index(g)];
      PageId page = kNullPage;
      CHECK(pool.Take({&page, 1}), "group {} had a blank page", g);
      const auto p = static_cast<int32_t>(pool_index(g));
      std::copy(entry.groups[g].begin(), entry.groups[g].end(), storage.page(p, page));
      index_.SealPage(node, g, page);
      held.emplace_back(pool_index(g), page);
      done.bytes += static_cast<int64_t>(entry.groups[g].size());
      is_new = true;
    }
    nodes.emplace(entry.key, node);
    cursors.emplace_back(index_, node);
    ++(is_new ? done.entries : done.known);
    if (is_new) done.tokens += layout_.block_size;
    return true;
  });
  for (auto it = held.rbegin(); it != held.rend(); ++it) pools_[it->first].Release(it->second);
  return done;
}

}  // namespace quire
