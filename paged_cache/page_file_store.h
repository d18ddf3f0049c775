// paged_cache/page_file_store.h -- prefix pages in files: the cache tier that survives a restart.
//
// A bounded directory of entries (page_file_format.h), found by key. Put hands an entry to one
// background thread, which writes it; Get reads and checks a file, or serves what is not written
// yet. What fails a check is deleted, counted and never served. A full disk or a directory that can
// no longer be written costs entries, never the process.
//
// Eviction: the least recently used leaf. An entry that is the parent of another stays until its
// children have gone, for it is of use to them and they are of none without it. Recency survives a
// restart as the files' times.
//
//             Put                    written
//     absent ----> queued (pending) ---------> stored ----> absent: evicted, removed or at fault
//                      ^                          |
//                      +--------------------------+  Put with groups that the file lacks
//
// Thread: all public functions may be called from any thread. One lock guards the index; files are
// read and written outside of it, and deleted under it.
#pragma once

#include <array>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "base/status.h"
#include "base/types.h"
#include "paged_cache/page_directory.h"
#include "paged_cache/page_file_format.h"
#include "paged_cache/sha256.h"

namespace quire {

struct PageFileStoreOptions {
  std::string directory;
  PageFileLayout layout;
  uint64_t max_bytes = 0;    // of all files; never exceeded, not even while one is written
  uint64_t queue_bytes = 0;  // of entries that are not written yet
  // Wait for the medium at each write. Without it a power cut may cost entries, but never serves a
  // wrong one.
  bool sync_writes = false;
  // Called by the writer before each file. For tests that need it to stand still.
  std::function<void()> before_write;
};

struct PageFileStats {
  uint64_t entries = 0;  // findable now, queued ones included
  uint64_t bytes = 0;    // of files
  uint64_t queued_bytes = 0;
  // Since Open.
  uint64_t puts = 0;
  uint64_t gets = 0;
  uint64_t hits = 0;
  uint64_t written = 0;
  uint64_t evicted = 0;
  uint64_t dropped_queue_full = 0;
  uint64_t dropped_no_room = 0;  // larger than the store, or than what may go for it
  uint64_t write_errors = 0;
  std::string last_write_error;
  std::array<uint64_t, kNumPageFaults> faults{};  // by PageFault: entries dropped for it

  uint64_t faults_of(PageFault fault) const { return faults[static_cast<size_t>(fault)]; }
};

class PageFileStore {
 public:
  // Reads the headers of all files that are there; drops what is not a page of this layout.
  // ERRORS: kInvalidArgument, naming the option; as PageDirectory::Open.
  static absl::StatusOr<std::unique_ptr<PageFileStore>> Open(PageFileStoreOptions options);
  // Writes what is queued, then closes.
  ~PageFileStore();
  PageFileStore(const PageFileStore&) = delete;
  PageFileStore& operator=(const PageFileStore&) = delete;

  bool Contains(const Sha256Digest& key) const;
  // Called with the lock held, on whatever thread, for each entry that can't be had any more. Must
  // not call the store.
  void set_on_erase(std::function<void(const Sha256Digest&)> on_erase);

  // Takes the entry if there is room in the queue and it can fit at all; true if the store has it
  // now. An entry that is there already becomes the most recently used; groups that it did not have
  // are added. Never waits for a file. Of a chain, put the children first: if it is longer than
  // the store, its beginning stays then.
  // REQUIRES: the entry fits the layout, its key is PageKey(parent, tokens), and at depth 0, and
  // only there, it has a root, whose key is the parent.
  bool Put(PageEntry entry);

  // The entry of `key`. Reads its file: milliseconds for a large page.
  // REQUIRES: key = PageKey(parent, tokens).
  std::optional<PageEntry> Get(const Sha256Digest& key, const Sha256Digest& parent,
                               std::span<const TokenId> tokens);

  // Visits entries until `visit` says false: each after its parent, and the prefixes that were used
  // most recently first. Entries without all their parents are left out. What comes or goes
  // meanwhile may be left out, too. `visit` may call the store.
  void ForEach(const std::function<bool(PageEntry)>& visit);

  bool Remove(const Sha256Digest& key);  // false if it was not there
  void Clear();
  // Waits until all that was put before is written or dropped.
  void Flush();

  PageFileStats stats() const;

 private:
  // An entry is in the index while it is queued, stored or both.
  struct Item {
    Sha256Digest parent;
    int32_t depth = 0;
    uint64_t tick = 0;                         // of its last use; no two items have the same
    uint64_t file_bytes = 0;                   // 0: no file
    uint64_t file_groups = 0;                  // 0: nothing of use in it
    uint64_t file_id = 0;                      // another one after each write
    uint64_t write_id = 0;                     // of the newest Put
    std::shared_ptr<const PageEntry> pending;  // not written yet; the writer reads it unlocked
  };
  struct Job {
    Sha256Digest key;
    uint64_t write_id = 0;
    uint64_t bytes = 0;
  };
  using Index = absl::flat_hash_map<Sha256Digest, Item>;

  PageFileStore(PageFileStoreOptions options, PageDirectory directory);
  void Scan();

  // All below: REQUIRES: mutex_ is held, unless they say otherwise.
  Item& Insert(const Sha256Digest& key, const Sha256Digest& parent, int32_t depth);
  void Erase(const Sha256Digest& key);
  void Touch(const Sha256Digest& key, Item& item);
  void SetFile(Item& item, uint64_t bytes, uint64_t groups);
  void DropFile(const Sha256Digest& key);
  bool MakeRoom(uint64_t bytes);
  void CountFault(PageFault fault) { ++stats_.faults[static_cast<size_t>(fault)]; }
  void DropFault(const Sha256Digest& key, uint64_t file_id, PageFault fault);

  // Not under the lock.
  std::optional<PageEntry> Load(const Sha256Digest& key);
  void Write(const Job& job);
  void FinishWrite(const Job& job, const PageEntry& entry, const absl::Status& status);
  void WriterLoop();

  // Constant after construction.
  const PageFileStoreOptions options_;
  const PageDirectory directory_;

  mutable std::mutex mutex_;  // guards all below
  std::condition_variable queue_changed_;
  Index index_;
  // Items with this parent key, whether or not the parent is here.
  absl::flat_hash_map<Sha256Digest, int64_t> num_children_;
  std::map<uint64_t, Sha256Digest> leaves_;  // items without children, by tick
  uint64_t clock_ = 0;                       // ticks, file and write ids
  std::deque<Job> queue_;
  bool is_writing_ = false;
  std::function<void(const Sha256Digest&)> on_erase_;
  bool stop_ = false;
  PageFileStats stats_;  // entries and bytes are kept up to date

  std::thread writer_;
};

}  // namespace quire
