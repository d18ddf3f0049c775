// paged_cache/page_pool.h -- who holds which page.
//
// PagePool keeps the books for all cache pages of one size in bytes; PageStorage owns the bytes and
// PrefixIndex knows what is in the sealed ones. A page is `page_size` consecutive token slots of
// one sequence, for every layer of one cache group. Slot s of page p is `p * page_size + s`; that
// number is what write tables hold. Page 0 is the null page: never taken and not counted in
// num_usable.
//
// Each other page is in exactly one state:
//
//   blank  --Take-->    active  --last Release, unsealed-->  blank
//                       active  --last Release, sealed---->  cached
//   cached --Retain-->  active
//   cached --Take, no blank page left: the lowest class (retention.h), there the least recently
//            released first; dropped, so blank--> active
//   blank  --Resize to fewer--> retired --Resize to more--> blank
//
// Shrinking retires blank pages, then evicts cached ones; pages in use beyond the new size are
// retired as they come back, so what holds pages is never broken.
//
// "Sealed" = full, immutable and found through the PrefixIndex. Content is dropped (Unseal) when a
// page is evicted, flushed, written again by its only owner, or orphaned by the loss of a page
// before it. Each drop begins a new generation: (page, generation) names one content for ever.
//
// Thread: engine thread only; no locks, no atomics.
//
// Invariants, checked by Audit():
//   I1  blank + cached + active == num_usable + pages still to be retired; each state's list holds
//       just its pages.
//   I2  refs(p) == number of times p occurs in all live PageTables.
//
// Source: PagedAttention, Kwon et al. 2023 (arXiv:2309.06180), sections 4.2-4.4.
#pragma once

#include <algorithm>
#include <array>
#include <compare>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "base/huge_pages.h"
#include "base/status.h"
#include "base/types.h"
#include "paged_cache/retention.h"

namespace quire {

class PagePool;
class PageTable;

enum class DropReason : uint8_t {
  kEvicted,    // Take needed the page
  kFlushed,    // FlushCached, or the manager's Flush while the page was in use
  kOrphaned,   // a page before it in the chain was dropped
  kRewritten,  // its only owner writes into it again
  kPrivate,    // of a root that must not outlive its sequences
  kShrunk,     // the pool became smaller
  kFailed,     // the step that should have written it failed
  kMerged,     // an equal page took its place
};
inline constexpr int kNumDropReasons = 8;

// Told just before the content of a sealed page goes; must make the page unfindable and Unseal it.
class DropListener {
 public:
  virtual void OnDrop(PagePool& pool, PageId page, DropReason reason) = 0;

 protected:
  ~DropListener() = default;
};

inline constexpr int kNumTimeBuckets = 32;

// Counters since start.
struct PoolStats {
  int64_t taken = 0;                      // pages handed out
  int64_t sealed = 0;                     // pages that became findable
  int64_t revived = 0;                    // cached pages that a hit made active again
  int64_t dropped[kNumDropReasons] = {};  // by DropReason
  int64_t expired = 0;                    // retentions that ran out
  // Of evicted pages, by time in ms: bucket i counts [2^(i-1), 2^i), bucket 0 less than 1 ms.
  int64_t lifetime_ms[kNumTimeBuckets] = {};  // from Take to the eviction
  int64_t idle_ms[kNumTimeBuckets] = {};      // from the last Release to the eviction
};

struct PagePoolOptions {
  // Hand out pages from the highest id down: puts offsets past 2^31 to the test without filling
  // GiBs.
  bool take_from_top = false;
  // Keep a list of pages that became blank, for PageStorage::PoisonFreed (debugging).
  bool record_freed = false;
};

class PagePool {
 public:
  // num_usable_pages: 1 or more, the null page not included. page_size: tokens.
  PagePool(int32_t num_usable_pages, int32_t page_size, PagePoolOptions options = {});
  // Only before anything points at the pool (tables, a BlockManager).
  PagePool(PagePool&&) noexcept = default;
  PagePool(const PagePool&) = delete;
  PagePool& operator=(const PagePool&) = delete;

  int32_t page_size() const { return page_size_; }
  // The null page and pages beyond the pool's size are not counted.
  int32_t num_usable() const { return num_usable_; }
  int32_t num_blank() const { return static_cast<int32_t>(blank_.size()); }
  int32_t num_cached() const { return num_cached_; }
  int32_t num_active() const { return num_usable_ + num_to_retire_ - num_blank() - num_cached_; }
  // Pages that Take() can hand out now: blank ones plus evictable cached ones.
  int32_t num_available() const { return std::max(0, num_blank() + num_cached_ - num_to_retire_); }
  // In use beyond the pool's new size; they are retired when they come back.
  int32_t num_to_retire() const { return num_to_retire_; }
  // Page ids are below it; it only grows.
  int32_t num_ids() const { return static_cast<int32_t>(pages_.size()); }
  // The highest id that Take ever gave out; 0: none. New ids are given out in ascending order,
  // unless take_from_top.
  PageId highest_taken() const { return highest_taken_; }
  // References of all tables: what the active pages would be without sharing.
  int64_t num_refs() const { return num_refs_; }
  // Pages with more than one of them.
  int32_t num_shared() const { return num_shared_; }
  const PoolStats& stats() const { return stats_; }

  // Takes out.size() pages with refs == 1, or none at all: false if fewer are available.
  [[nodiscard]] bool Take(std::span<PageId> out);

  void Retain(PageId page);
  void Release(PageId page);

  // Marks an active page as findable. `tag` is the index's own note; pages with keep = false become
  // blank instead of cached at their last Release. REQUIRES: active, unsealed.
  void Seal(PageId page, int64_t tag, bool keep);
  // The page is no longer findable; a cached one becomes blank. Called by the index.
  void Unseal(PageId page, DropReason reason);

  // A sealed page is kept at least so long and so dear; ends with its content.
  void Keep(PageId page, const Retention& retention);
  // Milliseconds of a clock that never goes back: ends retentions, dates pages.
  void SetTime(int64_t now_ms);

  // Drops every cached page. Pages in use are not touched.
  void FlushCached();

  // From now on the pool has so many usable pages; `retired` gets the ids whose memory can be given
  // back. More pages than ever before get new ids.
  void Resize(int32_t num_usable, std::vector<PageId>& retired);

  bool IsSealed(PageId page) const { return at(page).sealed; }
  bool keeps(PageId page) const { return at(page).keep; }  // of a sealed one
  bool IsRetired(PageId page) const { return at(page).retired; }
  int32_t refs(PageId page) const { return at(page).refs; }
  int64_t tag(PageId page) const { return at(page).tag; }
  // Grows by one with each drop of the page's content.
  uint32_t generation(PageId page) const { return at(page).generation; }
  Retention retention(PageId page) const;
  // Of the last Take, Retain or Release.
  int64_t last_access_ms(PageId page) const { return at(page).last_access_ms; }
  int64_t taken_ms(PageId page) const { return at(page).taken_ms; }

  void set_listener(DropListener* listener) { listener_ = listener; }
  // With record_freed: pages that became blank since the last call.
  std::vector<PageId> DrainFreed();

  // Rows for page tables: their memory is used again, so that a fork allocates nothing.
  std::vector<PageId> TakeRow();
  void ReturnRow(std::vector<PageId>&& row);

  // Recomputes I1 and I2 from scratch; O(pages + table entries). `tables`: every live one.
  // ERRORS: kInternal, naming the invariant, the page and both values.
  absl::Status Audit(std::span<const PageTable* const> tables) const;

 private:
  struct Page {
    int64_t tag = 0;
    int32_t refs = 0;
    int32_t prev = -1;  // neighbours in the retired or a class's cached list
    int32_t next = -1;
    uint32_t generation = 0;
    uint32_t taken_ms = 0;  // wraps after 49 days of uptime: statistics only
    uint32_t last_access_ms = 0;
    uint8_t eviction_class = kDefaultRetentionPriority;
    bool sealed = false;
    bool keep = false;
    bool retired = false;
    bool expires = false;  // has an entry in expiry_of_
  };
  struct List {
    int32_t head = -1;
    int32_t tail = -1;
  };

  const Page& at(PageId page) const {
    DCHECK(page > kNullPage && page < static_cast<PageId>(pages_.size()), "page {}", page);
    return pages_[static_cast<size_t>(page)];
  }
  Page& at(PageId page) { return const_cast<Page&>(std::as_const(*this).at(page)); }

  void PushFront(List& list, PageId page);
  void PushBack(List& list, PageId page);
  void Unlink(List& list, PageId page);
  void BecomeCached(PageId page);
  void LeaveCached(PageId page);
  void BecomeBlank(PageId page);
  void Retire(PageId page);
  PageId Victim() const;
  void Drop(PageId page, DropReason reason);
  void SetClass(PageId page, int32_t eviction_class, bool first_to_go);
  void ForgetExpiry(PageId page);
  absl::Status AuditList(const List& list, int32_t count, bool sealed, bool retired) const;

  // Pages whose retention ends, in the order of their ends; those set first come last among equals,
  // so that leaves lapse into the default class behind their roots.
  struct Expiry {
    int64_t at_ms;
    int64_t order;
    PageId page;
    friend auto operator<=>(const Expiry&, const Expiry&) = default;
  };

  int32_t page_size_;
  PagePoolOptions options_;
  std::vector<Page, HugePageAllocator<Page>> pages_;  // entry 0 is unused
  std::vector<PageId> blank_;  // back = taken first: freed last, likely still in a cache
  List retired_;               // beyond the pool's size
  std::array<List, kNumEvictionClasses> cached_;                            // front = evicted first
  std::array<uint64_t, (kNumEvictionClasses + 63) / 64> cached_classes_{};  // bit: list not empty
  int32_t num_usable_ = 0;
  PageId highest_taken_ = kNullPage;
  int32_t num_cached_ = 0;
  int32_t num_retired_ = 0;
  int32_t num_to_retire_ = 0;
  int32_t num_shared_ = 0;
  int64_t num_refs_ = 0;
  int64_t now_ms_ = 0;
  absl::btree_set<Expiry> expiries_;
  absl::flat_hash_map<PageId, Expiry> expiry_of_;
  int64_t expiry_order_ = 0;
  DropListener* listener_ = nullptr;
  std::vector<PageId> freed_;
  std::vector<std::vector<PageId>> spare_rows_;
  PoolStats stats_;
};

}  // namespace quire
