#include "paged_cache/page_file_store.h"

#include <algorithm>
#include <utility>

#include "base/thread_name.h"

namespace quire {
namespace {

void CheckFits(const PageEntry& entry, const PageFileLayout& layout) {
  CHECK(entry.key == PageKey(entry.parent, entry.tokens), "key of other tokens");
  CHECK(entry.depth >= 0, "depth={}", entry.depth);
  CHECK(entry.depth > 0 ? entry.root.empty() : entry.parent == RootPageKey(entry.root),
        "root of {} bytes at depth {}", entry.root.size(), entry.depth);
  CHECK(entry.tokens.size() == static_cast<size_t>(layout.block_size), "{} tokens",
        entry.tokens.size());
  CHECK(entry.groups.size() == layout.group_bytes.size(), "{} groups", entry.groups.size());
  for (size_t g = 0; g < entry.groups.size(); ++g) {
    const size_t bytes = entry.groups[g].size();
    CHECK(bytes == 0 || bytes == layout.group_bytes[g], "group {} has {} bytes", g, bytes);
  }
}

bool IsSubset(uint64_t mask, uint64_t of) { return (mask & ~of) == 0; }

}  // namespace

absl::StatusOr<std::unique_ptr<PageFileStore>> PageFileStore::Open(PageFileStoreOptions options) {
  RETURN_IF_ERROR(options.layout.Validate());
  if (options.max_bytes == 0) return InvalidArgument("max_bytes=0 must be positive");
  if (options.queue_bytes == 0) return InvalidArgument("queue_bytes=0 must be positive");
  ASSIGN_OR_RETURN(PageDirectory directory, PageDirectory::Open(options.directory));
  std::unique_ptr<PageFileStore> store(new PageFileStore(std::move(options), std::move(directory)));
  store->Scan();
  store->writer_ = std::thread([s = store.get()] {
    SetThreadName("quire-files");
    s->WriterLoop();
  });
  return store;
}

PageFileStore::PageFileStore(PageFileStoreOptions options, PageDirectory directory)
    : options_(std::move(options)), directory_(std::move(directory)) {}

PageFileStore::~PageFileStore() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  queue_changed_.notify_all();
  if (writer_.joinable()) writer_.join();
}

void PageFileStore::Scan() {
  const std::lock_guard lock(mutex_);
  PageDirectory::Found found = directory_.Scan();
  stats_.faults[static_cast<size_t>(PageFault::kIo)] += found.num_misplaced;
  std::sort(found.pages.begin(), found.pages.end(), [](const auto& a, const auto& b) {
    return std::tie(a.mtime_ns, a.key) < std::tie(b.mtime_ns, b.key);
  });
  for (const PageDirectory::File& file : found.pages) {
    const auto read = directory_.ReadHeader(file.key, options_.layout);
    if (const PageFault* fault = std::get_if<PageFault>(&read)) {
      CountFault(*fault);
      directory_.Remove(file.key);
      continue;
    }
    const auto& header = std::get<PageHeader>(read);
    SetFile(Insert(file.key, header.parent, header.depth), file.bytes, header.group_mask);
  }
  MakeRoom(0);
}

bool PageFileStore::Contains(const Sha256Digest& key) const {
  const std::lock_guard lock(mutex_);
  return index_.contains(key);
}

void PageFileStore::set_on_erase(std::function<void(const Sha256Digest&)> on_erase) {
  const std::lock_guard lock(mutex_);
  on_erase_ = std::move(on_erase);
}

bool PageFileStore::Put(PageEntry entry) {
  CheckFits(entry, options_.layout);
  auto pending = std::make_shared<PageEntry>(std::move(entry));
  const uint64_t bytes = PageFileBytes(*pending, options_.layout);
  const Sha256Digest key = pending->key;
  {
    const std::lock_guard lock(mutex_);
    ++stats_.puts;
    const auto it = index_.find(key);
    if (it != index_.end()) {
      const Item& item = it->second;
      const uint64_t has = item.file_groups | (item.pending ? GroupMask(*item.pending) : 0);
      if (IsSubset(GroupMask(*pending), has)) {
        Touch(key, it->second);
        return true;
      }
    }
    if (bytes > options_.max_bytes || pending->root.size() > kMaxRootBytes) {
      ++stats_.dropped_no_room;
      return false;
    }
    if (bytes > options_.queue_bytes - stats_.queued_bytes) {
      ++stats_.dropped_queue_full;
      return false;
    }
    Item& item = it != index_.end() ? it->second : Insert(key, pending->parent, pending->depth);
    Touch(key, item);
    if (item.pending) MergeGroups(*pending, *item.pending);
    item.pending = std::move(pending);
    item.write_id = ++clock_;
    queue_.push_back({.key = key, .write_id = item.write_id, .bytes = bytes});
    stats_.queued_bytes += bytes;
  }
  queue_changed_.notify_all();
  return true;
}

std::optional<PageEntry> PageFileStore::Get(const Sha256Digest& key, const Sha256Digest& parent,
                                            std::span<const TokenId> tokens) {
  DCHECK(key == PageKey(parent, tokens), "key of other tokens");
  {
    const std::lock_guard lock(mutex_);
    ++stats_.gets;
  }
  std::optional<PageEntry> entry = Load(key);
  if (!entry.has_value()) return std::nullopt;
  // Equal keys of different prefixes would be a collision of SHA-256.
  if (entry->parent != parent || !std::ranges::equal(entry->tokens, tokens)) return std::nullopt;
  {
    const std::lock_guard lock(mutex_);
    ++stats_.hits;
    if (const auto it = index_.find(key); it != index_.end()) Touch(key, it->second);
  }
  directory_.Touch(key);
  return entry;
}

// What is queued, joined with what is in the file.
std::optional<PageEntry> PageFileStore::Load(const Sha256Digest& key) {
  std::shared_ptr<const PageEntry> pending;
  uint64_t file_id = 0;
  bool read_file = false;
  {
    const std::lock_guard lock(mutex_);
    const auto it = index_.find(key);
    if (it == index_.end()) return std::nullopt;
    const Item& item = it->second;
    pending = item.pending;
    file_id = item.file_id;
    read_file = item.file_bytes > 0 &&
                (pending == nullptr || !IsSubset(item.file_groups, GroupMask(*pending)));
  }
  std::optional<PageEntry> entry;
  if (pending != nullptr) entry = *pending;
  if (!read_file) return entry;
  PageDirectory::ReadResult read = directory_.Read(key, options_.layout);
  if (const PageFault* fault = std::get_if<PageFault>(&read)) {
    const std::lock_guard lock(mutex_);
    DropFault(key, file_id, *fault);
  } else if (auto* found = std::get_if<PageEntry>(&read)) {
    if (!entry.has_value()) return std::move(*found);
    MergeGroups(*entry, std::move(*found));
  }
  return entry;
}

void PageFileStore::ForEach(const std::function<bool(PageEntry)>& visit) {
  enum class State : uint8_t { kNew, kVisited, kSkipped };
  struct Node {
    Sha256Digest parent;
    int32_t depth = 0;
    State state = State::kNew;
  };
  absl::flat_hash_map<Sha256Digest, Node> nodes;
  std::vector<std::pair<uint64_t, Sha256Digest>> by_tick;
  {
    const std::lock_guard lock(mutex_);
    nodes.reserve(index_.size());
    by_tick.reserve(index_.size());
    for (const auto& [key, item] : index_) {
      nodes[key] = {.parent = item.parent, .depth = item.depth};
      by_tick.emplace_back(item.tick, key);
    }
  }
  std::sort(by_tick.rbegin(), by_tick.rend());
  std::vector<Sha256Digest> path;  // from an entry up to where all is decided
  for (const auto& recent : by_tick) {
    path.clear();
    bool reaches_root = false;
    Sha256Digest at = recent.second;
    for (int32_t depth = nodes[at].depth;; --depth) {
      const auto it = nodes.find(at);
      // A header may lie about its depth: then it is in nobody's prefix.
      if (it == nodes.end() || it->second.depth != depth) break;
      reaches_root = it->second.state == State::kVisited;
      if (it->second.state != State::kNew) break;
      path.push_back(at);
      reaches_root = depth == 0;
      if (reaches_root) break;
      at = it->second.parent;
    }
    for (size_t i = path.size(); i > 0; --i) {
      Node& node = nodes[path[i - 1]];
      std::optional<PageEntry> entry;
      if (reaches_root) entry = Load(path[i - 1]);
      reaches_root = entry.has_value() && entry->depth == node.depth;
      node.state = reaches_root ? State::kVisited : State::kSkipped;
      if (reaches_root && !visit(*std::move(entry))) return;
    }
  }
}

bool PageFileStore::Remove(const Sha256Digest& key) {
  const std::lock_guard lock(mutex_);
  if (!index_.contains(key)) return false;
  DropFile(key);
  Erase(key);
  return true;
}

void PageFileStore::Clear() {
  const std::lock_guard lock(mutex_);
  while (!index_.empty()) {
    const Sha256Digest key = index_.begin()->first;
    DropFile(key);
    Erase(key);
  }
}

void PageFileStore::Flush() {
  std::unique_lock lock(mutex_);
  queue_changed_.wait(lock, [this] { return queue_.empty() && !is_writing_; });
}

PageFileStats PageFileStore::stats() const {
  const std::lock_guard lock(mutex_);
  PageFileStats stats = stats_;
  stats.entries = index_.size();
  return stats;
}

}  // namespace quire
