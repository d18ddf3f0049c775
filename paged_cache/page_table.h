// paged_cache/page_table.h -- the pages of one sequence in one cache group.
#pragma once

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "paged_cache/page_pool.h"

namespace quire {

// In token order; owns one reference to each page. Entries that the group no longer keeps are
// kNullPage. Move-only: a copy costs references, so it is spelled Fork(). The ids are dense, so a
// row of the kernels' read table is a memcpy of ids().
class PageTable {
 public:
  explicit PageTable(PagePool& pool) : pool_(&pool), ids_(pool.TakeRow()) {}
  PageTable(PageTable&& other) noexcept
      : pool_(other.pool_),
        ids_(std::exchange(other.ids_, {})),
        num_dropped_(std::exchange(other.num_dropped_, 0)) {}
  PageTable& operator=(PageTable&& other) noexcept {
    if (this != &other) {
      Truncate(0);
      pool_->ReturnRow(std::move(ids_));
      pool_ = other.pool_;
      ids_ = std::exchange(other.ids_, {});
      num_dropped_ = std::exchange(other.num_dropped_, 0);
    }
    return *this;
  }
  ~PageTable() {
    Truncate(0);
    pool_->ReturnRow(std::move(ids_));
  }

  std::span<const PageId> ids() const { return ids_; }
  PageId operator[](int32_t i) const { return ids_[static_cast<size_t>(i)]; }
  int32_t num_pages() const { return static_cast<int32_t>(ids_.size()); }
  const PagePool& pool() const { return *pool_; }

  // Appends a page whose reference the caller already holds (fresh, or a prefix hit), or kNullPage.
  void Adopt(PageId page) { ids_.push_back(page); }

  // Puts `page`, whose reference the caller holds, in the place of page `i`, which is released.
  void Replace(int32_t i, PageId page) {
    pool_->Release(std::exchange(ids_[static_cast<size_t>(i)], page));
  }
  // Puts it in the place of kNullPage.
  void Fill(int32_t i, PageId page) { ids_[static_cast<size_t>(i)] = page; }

  // Releases the pages before `first`, which the group no longer keeps; their entries become
  // kNullPage. Last page first, as Truncate.
  void DropBefore(int32_t first) {
    first = std::min(first, num_pages());
    for (int32_t i = first - 1; i >= num_dropped_; --i) {
      const PageId page = std::exchange(ids_[static_cast<size_t>(i)], kNullPage);
      if (page != kNullPage) pool_->Release(page);
    }
    num_dropped_ = std::max(num_dropped_, first);
  }

  // Drops pages [new_size, num_pages). Last page first, so that a chain is evicted leaf to root.
  void Truncate(int32_t new_size) {
    while (num_pages() > new_size) {
      const PageId page = ids_.back();
      ids_.pop_back();
      if (page != kNullPage) pool_->Release(page);
    }
    num_dropped_ = std::min(num_dropped_, num_pages());
  }

  // A second table over the same pages. Before either side writes into a page that both hold, the
  // block manager swaps in a private copy (BlockManager::Grow).
  PageTable Fork() const {
    PageTable child(*pool_);
    child.ids_.assign(ids_.begin(), ids_.end());
    child.num_dropped_ = num_dropped_;
    for (const PageId page : ids_) {
      if (page != kNullPage) pool_->Retain(page);
    }
    return child;
  }

 private:
  PagePool* pool_;
  std::vector<PageId> ids_;
  int32_t num_dropped_ = 0;  // entries before it are kNullPage
};

}  // namespace quire
