#include "paged_cache/page_pool.h"

#include <utility>

#include "paged_cache/page_table.h"

namespace quire {

PagePool::PagePool(int32_t num_usable_pages, int32_t page_size, PagePoolOptions options)
    : page_size_(page_size), options_(options) {
  CHECK(num_usable_pages >= 1 && num_usable_pages < INT32_MAX && page_size >= 1,
        "num_usable_pages={} page_size={}", num_usable_pages, page_size);
  pages_.resize(static_cast<size_t>(num_usable_pages) + 1);
  for (PageId page = 1; page <= num_usable_pages; ++page) {
    if (options_.take_from_top) {
      PushFront(blank_, page);
    } else {
      PushBack(blank_, page);
    }
  }
  num_blank_ = num_usable_pages;
}

std::optional<std::vector<PageId>> PagePool::Take(int32_t count) {
  CHECK(count >= 0, "count={}", count);
  if (count > num_available()) return std::nullopt;
  std::vector<PageId> taken;
  taken.reserve(static_cast<size_t>(count));
  for (int32_t i = 0; i < count; ++i) {
    // A drop may turn orphans blank as well; they are used before anything else is evicted.
    if (num_blank_ == 0) Drop(cached_.head, DropReason::kEvicted);
    const PageId page = blank_.head;
    Unlink(blank_, page);
    --num_blank_;
    at(page).refs = 1;
    taken.push_back(page);
  }
  stats_.taken += count;
  return taken;
}

void PagePool::Retain(PageId page) {
  Page& p = at(page);
  if (p.refs++ > 0) return;
  CHECK(p.sealed, "page {} is blank", page);
  Unlink(cached_, page);
  --num_cached_;
  ++stats_.revived;
}

void PagePool::Release(PageId page) {
  Page& p = at(page);
  CHECK(p.refs > 0, "page {} released twice", page);
  if (--p.refs > 0) return;
  if (!p.sealed) {
    BecomeBlank(page);
    return;
  }
  PushBack(cached_, page);
  ++num_cached_;
  if (!p.keep) Drop(page, DropReason::kPrivate);
}

void PagePool::Seal(PageId page, int64_t tag, bool keep) {
  Page& p = at(page);
  CHECK(p.refs > 0 && !p.sealed, "page {} refs={} sealed={}", page, p.refs, p.sealed);
  p.sealed = true;
  p.tag = tag;
  p.keep = keep;
  ++stats_.sealed;
}

void PagePool::Unseal(PageId page, DropReason reason) {
  Page& p = at(page);
  CHECK(p.sealed, "page {} is not sealed", page);
  p.sealed = false;
  ++p.generation;
  ++stats_.dropped[static_cast<int>(reason)];
  if (p.refs > 0) return;
  Unlink(cached_, page);
  --num_cached_;
  BecomeBlank(page);
}

void PagePool::FlushCached() {
  while (num_cached_ > 0) Drop(cached_.head, DropReason::kFlushed);
}

void PagePool::Drop(PageId page, DropReason reason) {
  if (listener_ != nullptr) {
    listener_->OnDrop(*this, page, reason);
  } else {
    Unseal(page, reason);
  }
  CHECK(!at(page).sealed, "page {} is still sealed", page);
}

std::vector<PageId> PagePool::DrainFreed() { return std::exchange(freed_, {}); }

void PagePool::BecomeBlank(PageId page) {
  PushFront(blank_, page);
  ++num_blank_;
  if (options_.record_freed) freed_.push_back(page);
}

void PagePool::PushFront(List& list, PageId page) {
  at(page).prev = -1;
  at(page).next = list.head;
  (list.head < 0 ? list.tail : at(list.head).prev) = page;
  list.head = page;
}

void PagePool::PushBack(List& list, PageId page) {
  at(page).prev = list.tail;
  at(page).next = -1;
  (list.tail < 0 ? list.head : at(list.tail).next) = page;
  list.tail = page;
}

void PagePool::Unlink(List& list, PageId page) {
  Page& p = at(page);
  (p.prev < 0 ? list.head : at(p.prev).next) = p.next;
  (p.next < 0 ? list.tail : at(p.next).prev) = p.prev;
}

absl::Status PagePool::AuditList(const List& list, int32_t count, bool sealed) const {
  int32_t n = 0;
  for (PageId page = list.head; page >= 0; page = at(page).next) {
    const Page& p = at(page);
    if (p.refs != 0 || p.sealed != sealed || ++n > count) {
      return Error(absl::StatusCode::kInternal, "I1: page {} refs={} sealed={} in a list of {}",
                   page, p.refs, p.sealed, count);
    }
  }
  if (n == count) return absl::OkStatus();
  return Error(absl::StatusCode::kInternal, "I1: list has {} pages, count says {}", n, count);
}

absl::Status PagePool::Audit(std::span<const PageTable* const> tables) const {
  RETURN_IF_ERROR(AuditList(blank_, num_blank_, /*sealed=*/false));
  RETURN_IF_ERROR(AuditList(cached_, num_cached_, /*sealed=*/true));
  std::vector<int32_t> seen(pages_.size());
  for (const PageTable* table : tables) {
    for (const PageId page : table->ids()) {
      if (page != kNullPage) ++seen[static_cast<size_t>(page)];
    }
  }
  int32_t active = 0;
  for (PageId page = 1; page <= num_usable(); ++page) {
    const int32_t refs = at(page).refs;
    active += refs > 0;
    if (refs != seen[static_cast<size_t>(page)]) {
      return Error(absl::StatusCode::kInternal, "I2: page {} has refs={}, tables hold {}", page,
                   refs, seen[static_cast<size_t>(page)]);
    }
  }
  if (num_blank_ + num_cached_ + active == num_usable()) return absl::OkStatus();
  return Error(absl::StatusCode::kInternal, "I1: blank={} cached={} active={} usable={}",
               num_blank_, num_cached_, active, num_usable());
}

}  // namespace quire
