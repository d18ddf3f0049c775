// The index of a PageFileStore under its lock, and the thread that writes.
#include <algorithm>
#include <utility>

#include "paged_cache/page_file_store.h"

namespace quire {

PageFileStore::Item& PageFileStore::Insert(const Sha256Digest& key, const Sha256Digest& parent,
                                           int32_t depth) {
  if (++num_children_[parent] == 1) {
    if (const auto it = index_.find(parent); it != index_.end()) leaves_.erase(it->second.tick);
  }
  Item& item = index_[key];
  item.parent = parent;
  item.depth = depth;
  item.tick = ++clock_;
  if (!num_children_.contains(key)) leaves_.emplace(item.tick, key);
  return item;
}

void PageFileStore::Erase(const Sha256Digest& key) {
  const auto it = index_.find(key);
  CHECK(it != index_.end(), "no such entry");
  if (on_erase_ != nullptr) on_erase_(key);
  const Sha256Digest parent = it->second.parent;
  const uint64_t tick = it->second.tick;
  leaves_.erase(tick);
  index_.erase(it);
  const auto children = num_children_.find(parent);
  if (--children->second > 0) return;
  num_children_.erase(children);
  // A parent is as recent as the child that was its last: it served that child's prefix.
  if (const auto up = index_.find(parent); up != index_.end()) {
    up->second.tick = std::max(up->second.tick, tick);
    leaves_.emplace(up->second.tick, parent);
  }
}

void PageFileStore::Touch(const Sha256Digest& key, Item& item) {
  const bool was_leaf = leaves_.erase(item.tick) > 0;
  item.tick = ++clock_;
  if (was_leaf) leaves_.emplace(item.tick, key);
}

// The item's file is now one of `bytes` with `groups`; 0 bytes: none.
void PageFileStore::SetFile(Item& item, uint64_t bytes, uint64_t groups) {
  stats_.bytes += bytes - item.file_bytes;
  item.file_bytes = bytes;
  item.file_groups = groups;
  item.file_id = ++clock_;
}

void PageFileStore::DropFile(const Sha256Digest& key) {
  Item& item = index_.find(key)->second;
  if (item.file_bytes == 0) return;
  directory_.Remove(key);
  SetFile(item, 0, 0);
}

// What the file `file_id` of `key` held is not to be trusted.
void PageFileStore::DropFault(const Sha256Digest& key, uint64_t file_id, PageFault fault) {
  const auto it = index_.find(key);
  // Evicted or written anew meanwhile: not the file that was found bad.
  if (it == index_.end() || it->second.file_id != file_id) return;
  CountFault(fault);
  if (it->second.pending != nullptr) {  // the writer will replace the file
    it->second.file_groups = 0;
    return;
  }
  DropFile(key);
  Erase(key);
}

// Evicts stored leaves until `bytes` more fit. Leaves that are on their way to a file are left
// alone. False if not enough may go.
bool PageFileStore::MakeRoom(uint64_t bytes) {
  auto it = leaves_.begin();
  while (stats_.bytes > options_.max_bytes - bytes) {
    while (it != leaves_.end() && index_.find(it->second)->second.pending != nullptr) ++it;
    if (it == leaves_.end()) return false;
    const Sha256Digest key = it->second;
    DropFile(key);
    Erase(key);
    ++stats_.evicted;
    it = leaves_.begin();  // its parent may have become the oldest leaf
  }
  return true;
}

void PageFileStore::WriterLoop() {
  std::unique_lock lock(mutex_);
  while (true) {
    queue_changed_.wait(lock, [this] { return stop_ || !queue_.empty(); });
    if (queue_.empty()) return;
    const Job job = queue_.front();
    queue_.pop_front();
    is_writing_ = true;
    lock.unlock();
    Write(job);
    lock.lock();
    is_writing_ = false;
    stats_.queued_bytes -= job.bytes;
    if (queue_.empty()) queue_changed_.notify_all();
  }
}

void PageFileStore::Write(const Job& job) {
  {
    const std::lock_guard lock(mutex_);
    const auto it = index_.find(job.key);
    // Removed meanwhile, or a later job of this key will write more.
    if (it == index_.end() || it->second.write_id != job.write_id) return;
  }
  const std::optional<PageEntry> entry = Load(job.key);
  if (!entry.has_value()) return;
  const uint64_t bytes = PageFileBytes(*entry, options_.layout);
  {
    const std::lock_guard lock(mutex_);
    const auto it = index_.find(job.key);
    if (it == index_.end() || it->second.write_id != job.write_id) return;
    if (bytes > options_.max_bytes || !MakeRoom(bytes)) {
      ++stats_.dropped_no_room;
      it->second.pending.reset();
      if (it->second.file_bytes == 0) Erase(job.key);
      return;
    }
  }
  if (options_.before_write) options_.before_write();
  FinishWrite(job, *entry, directory_.Write(*entry, options_.layout, options_.sync_writes));
}

void PageFileStore::FinishWrite(const Job& job, const PageEntry& entry,
                                const absl::Status& status) {
  const std::lock_guard lock(mutex_);
  const auto it = index_.find(job.key);
  if (it == index_.end()) {  // removed while it was written
    if (status.ok()) directory_.Remove(job.key);
    return;
  }
  Item& item = it->second;
  const bool is_newest = item.write_id == job.write_id;
  if (is_newest) item.pending.reset();
  if (status.ok()) {
    ++stats_.written;
    SetFile(item, PageFileBytes(entry, options_.layout), GroupMask(entry));
    return;
  }
  ++stats_.write_errors;
  stats_.last_write_error = Message(status);
  if (is_newest && item.file_bytes == 0) Erase(job.key);
}

}  // namespace quire
