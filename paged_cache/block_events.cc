// What outsiders are told of the cache: see cache_events.h. PrefixIndex tells of the pool and the
// host tier; of files, that what was put there by this process, or found there, can be had.
#include <algorithm>
#include <deque>
#include <mutex>

#include "paged_cache/block_manager.h"
#include "paged_cache/page_file_store.h"

namespace quire {

// ---- pool and host tier ----

void PrefixIndex::Tell(NodeId node, size_t group, CacheTier tier, bool stored) {
  if (!HasEvents(layout_.groups[group].group, layout_.block_size)) return;
  const CacheEventLog::Block block = EventBlock(node, group);
  const Root& root = roots_.at(at(node).root);
  if (!root.keep) return;  // nobody else will find it
  if (stored) {
    events_->Stored(block, tier);
  } else {
    events_->Removed(block, tier);
  }
}

CacheEventLog::Block PrefixIndex::EventBlock(NodeId node, size_t group) const {
  return {.hash = hash(node),
          .parent = hash(at(node).parent),
          .has_parent = at(node).depth > 1,
          .group = static_cast<int32_t>(group),
          .salt = roots_.at(at(node).root).cache_salt,
          .tokens = tokens_of(node)};
}

void PrefixIndex::TellAll(CacheEventLog& log) const {
  for (size_t g = 0; g < num_groups_; ++g) {
    if (!HasEvents(layout_.groups[g].group, layout_.block_size)) continue;
    std::vector<NodeId> nodes;  // depth first: a chain is one event
    for (const auto& [id, root] : roots_) {
      if (root.keep) nodes.push_back(root.node);
    }
    while (!nodes.empty()) {
      const NodeId node = nodes.back();
      nodes.pop_back();
      for (NodeId c = at(node).first_child; c != kNoNode; c = at(c).next_sibling) {
        if (!at(c).detached) nodes.push_back(c);
      }
      if (at(node).parent == kNoNode || !has_content(node, g)) continue;
      log.Stored(EventBlock(node, g), content(node, g) > 0 ? CacheTier::kPool : CacheTier::kHost);
    }
  }
}

// ---- files ----

// Blocks that are in files, by file key. The store drops entries on threads of its own: it leaves
// word here, and the engine's thread reads it.
struct BlockManager::FileBlocks {
  struct Entry {
    PrefixHash hash;
    PrefixHash parent;
    bool has_parent = false;
    int32_t depth = 0;
    std::string salt;
    std::vector<TokenId> tokens;
    CacheEventLog::Block block(size_t group) const {
      return {hash, parent, has_parent, static_cast<int32_t>(group), salt, tokens};
    }
  };
  absl::flat_hash_map<Sha256Digest, Entry> entries;

  std::mutex mutex;  // guards erased
  std::deque<Sha256Digest> erased;
};

BlockManager::~BlockManager() {
  if (files_ != nullptr && file_blocks_ != nullptr) files_->set_on_erase(nullptr);
}

void BlockManager::EnableEvents() {
  CHECK(events_ == nullptr && index_.num_pending() == 0, "EnableEvents comes too late");
  size_t contents = 1024;
  for (const PagePool& pool : pools_) contents += static_cast<size_t>(pool.num_usable());
  for (const PagePool& pool : host_pools_) contents += static_cast<size_t>(pool.num_usable());
  constexpr size_t kMentions = 4;  // of each, in one step
  events_ = std::make_unique<CacheEventLog>(options_.hash_algorithm, layout_.block_size,
                                            kMentions * contents * layout_.groups.size());
  index_.set_events(events_.get());
  if (files_ != nullptr) {
    file_blocks_ = std::make_shared<FileBlocks>();
    files_->set_on_erase([blocks = file_blocks_.get()](const Sha256Digest& key) {
      const std::lock_guard lock(blocks->mutex);
      blocks->erased.push_back(key);
    });
  }
  events_->Restart();
  TellAll(*events_);
}

void BlockManager::TellAll(CacheEventLog& log) const {
  index_.TellAll(log);
  if (file_blocks_ == nullptr) return;
  std::vector<const FileBlocks::Entry*> entries;
  for (const auto& [key, entry] : file_blocks_->entries) entries.push_back(&entry);
  // Parents before children, as a newcomer must hear of them.
  std::sort(entries.begin(), entries.end(),
            [](const auto* a, const auto* b) { return a->depth < b->depth; });
  for (const FileBlocks::Entry* entry : entries) {
    for (size_t g = 0; g < layout_.groups.size(); ++g) {
      if (HasEvents(group_of(g), layout_.block_size)) {
        log.Stored(entry->block(g), CacheTier::kFiles);
      }
    }
  }
}

void BlockManager::TellFile(NodeId node) {
  if (file_blocks_ == nullptr) return;
  const auto [it, is_new] = file_blocks_->entries.try_emplace(index_.file_key(node));
  if (!is_new) return;
  const CacheEventLog::Block block = index_.EventBlock(node, 0);
  it->second = {block.hash,
                block.parent,
                block.has_parent,
                index_.depth(node),
                std::string(block.salt),
                {block.tokens.begin(), block.tokens.end()}};
  for (size_t g = 0; g < layout_.groups.size(); ++g) {
    if (HasEvents(group_of(g), layout_.block_size)) {
      events_->Stored(it->second.block(g), CacheTier::kFiles);
    }
  }
}

void BlockManager::TellErasedFiles() {
  if (file_blocks_ == nullptr) return;
  std::deque<Sha256Digest> erased;
  {
    const std::lock_guard lock(file_blocks_->mutex);
    std::swap(erased, file_blocks_->erased);
  }
  for (const Sha256Digest& key : erased) {
    const auto it = file_blocks_->entries.find(key);
    // Put again since then: still told as stored. If that goes, too, there will be word of it.
    if (it == file_blocks_->entries.end() || files_->Contains(key)) continue;
    for (size_t g = 0; g < layout_.groups.size(); ++g) {
      if (HasEvents(group_of(g), layout_.block_size)) {
        events_->Removed(it->second.block(g), CacheTier::kFiles);
      }
    }
    file_blocks_->entries.erase(it);
  }
}

// ---- all ----

CacheEvents BlockManager::TakeEvents() {
  if (events_ == nullptr) return {};
  TellErasedFiles();
  if (events_->needs_restart()) {
    events_->Restart();
    TellAll(*events_);
  }
  return events_->Take();
}

CacheEvents BlockManager::SnapshotEvents() const {
  CHECK(events_ != nullptr && index_.num_pending() == 0, "SnapshotEvents without events");
  CacheEventLog log(options_.hash_algorithm, layout_.block_size, SIZE_MAX);
  TellAll(log);
  return log.Take();
}

}  // namespace quire
