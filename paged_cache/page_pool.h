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
//   cached --Take, no blank page left: least recently released first; dropped, so blank--> active
//
// "Sealed" = full, immutable and found through the PrefixIndex. Content is dropped (Unseal) when a
// page is evicted, flushed, written again by its only owner, or orphaned by the loss of a page
// before it. Each drop begins a new generation: (page, generation) names one content for ever.
//
// Thread: engine thread only; no locks, no atomics.
//
// Invariants, checked by Audit():
//   I1  blank + cached + active == num_usable, and each state's list holds just its pages.
//   I2  refs(p) == number of times p occurs in all live PageTables.
//
// Source: PagedAttention, Kwon et al. 2023 (arXiv:2309.06180), sections 4.2-4.4.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/status.h"
#include "base/types.h"

namespace quire {

class PagePool;
class PageTable;

enum class DropReason : uint8_t {
  kEvicted,    // Take needed the page
  kFlushed,    // FlushCached, or the manager's Flush while the page was in use
  kOrphaned,   // a page before it in the chain was dropped
  kRewritten,  // its only owner writes into it again
  kPrivate,    // of a root that must not outlive its sequences
};
inline constexpr int kNumDropReasons = 5;

// Told just before the content of a sealed page goes; must make the page unfindable and Unseal it.
class DropListener {
 public:
  virtual void OnDrop(PagePool& pool, PageId page, DropReason reason) = 0;

 protected:
  ~DropListener() = default;
};

// Counters since start.
struct PoolStats {
  int64_t taken = 0;                      // pages handed out
  int64_t sealed = 0;                     // pages that became findable
  int64_t revived = 0;                    // cached pages that a hit made active again
  int64_t dropped[kNumDropReasons] = {};  // by DropReason
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
  int32_t num_usable() const { return static_cast<int32_t>(pages_.size()) - 1; }
  int32_t num_blank() const { return num_blank_; }
  int32_t num_cached() const { return num_cached_; }
  int32_t num_active() const { return num_usable() - num_available(); }
  // Pages that Take() can hand out now: blank ones plus evictable cached ones.
  int32_t num_available() const { return num_blank_ + num_cached_; }
  const PoolStats& stats() const { return stats_; }

  // Takes `count` pages with refs == 1, or none at all: nullopt if fewer are available.
  std::optional<std::vector<PageId>> Take(int32_t count);

  void Retain(PageId page);
  void Release(PageId page);

  // Marks an active page as findable. `tag` is the index's own note; pages with keep = false become
  // blank instead of cached at their last Release. REQUIRES: active, unsealed.
  void Seal(PageId page, int64_t tag, bool keep);
  // The page is no longer findable; a cached one becomes blank. Called by the index.
  void Unseal(PageId page, DropReason reason);

  // Drops every cached page. Pages in use are not touched.
  void FlushCached();

  bool IsSealed(PageId page) const { return at(page).sealed; }
  int32_t refs(PageId page) const { return at(page).refs; }
  int64_t tag(PageId page) const { return at(page).tag; }
  // Grows by one with each drop of the page's content.
  uint32_t generation(PageId page) const { return at(page).generation; }

  void set_listener(DropListener* listener) { listener_ = listener; }
  // With record_freed: pages that became blank since the last call.
  std::vector<PageId> DrainFreed();

  // Recomputes I1 and I2 from scratch; O(num_usable + table entries). `tables`: every live one.
  // ERRORS: kInternal, naming the invariant, the page and both values.
  absl::Status Audit(std::span<const PageTable* const> tables) const;

 private:
  struct Page {
    int64_t tag = 0;
    int32_t refs = 0;
    int32_t prev = -1;  // neighbours in the blank or the cached list
    int32_t next = -1;
    uint32_t generation = 0;
    bool sealed = false;
    bool keep = false;
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
  void BecomeBlank(PageId page);
  void Drop(PageId page, DropReason reason);
  absl::Status AuditList(const List& list, int32_t count, bool sealed) const;

  int32_t page_size_;
  PagePoolOptions options_;
  std::vector<Page> pages_;  // [num_usable + 1]; entry 0 is unused
  List blank_;   // front = taken first: the most recently freed, likely still in a cache
  List cached_;  // front = evicted first: the least recently released
  int32_t num_blank_ = 0;
  int32_t num_cached_ = 0;
  DropListener* listener_ = nullptr;
  std::vector<PageId> freed_;
  PoolStats stats_;
};

}  // namespace quire
