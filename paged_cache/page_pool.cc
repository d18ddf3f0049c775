#include "paged_cache/page_pool.h"

#include <bit>
#include <numeric>
#include <utility>

#include "paged_cache/page_table.h"

namespace quire {
namespace {

// Enough for the tables of all running sequences; beyond it a row's memory is given back.
constexpr size_t kMaxSpareRows = 4096;

// Entries of pages that are likely taken next are fetched so many takes before.
constexpr size_t kAhead = 4;

int TimeBucket(uint32_t ms) {
  return std::min(static_cast<int>(std::bit_width(ms)), kNumTimeBuckets - 1);
}

}  // namespace

PagePool::PagePool(int32_t num_usable_pages, int32_t page_size, PagePoolOptions options)
    : page_size_(page_size), options_(options), num_usable_(num_usable_pages) {
  CHECK(num_usable_pages >= 1 && num_usable_pages < INT32_MAX && page_size >= 1,
        "num_usable_pages={} page_size={}", num_usable_pages, page_size);
  pages_.resize(static_cast<size_t>(num_usable_pages) + 1);
  blank_.resize(static_cast<size_t>(num_usable_pages));
  std::iota(blank_.begin(), blank_.end(), PageId{1});
  if (!options_.take_from_top) std::reverse(blank_.begin(), blank_.end());
}

bool PagePool::Take(std::span<PageId> out) {
  if (std::ssize(out) > num_available()) return false;
  for (PageId& page : out) {
    // A drop may turn orphans blank as well; they are used before anything else is evicted.
    if (blank_.empty()) Drop(Victim(), DropReason::kEvicted);
    page = blank_.back();
    blank_.pop_back();
    highest_taken_ = std::max(highest_taken_, page);
    if (blank_.size() >= kAhead) __builtin_prefetch(&at(blank_[blank_.size() - kAhead]));
    Page& p = at(page);
    p.refs = 1;
    p.taken_ms = p.last_access_ms = static_cast<uint32_t>(now_ms_);
  }
  num_refs_ += std::ssize(out);
  stats_.taken += std::ssize(out);
  return true;
}

void PagePool::Retain(PageId page) {
  Page& p = at(page);
  ++num_refs_;
  p.last_access_ms = static_cast<uint32_t>(now_ms_);
  if (p.refs++ > 0) {
    num_shared_ += p.refs == 2;
    return;
  }
  CHECK(p.sealed, "page {} is blank", page);
  LeaveCached(page);
  ++stats_.revived;
}

void PagePool::Release(PageId page) {
  Page& p = at(page);
  CHECK(p.refs > 0, "page {} released twice", page);
  --num_refs_;
  p.last_access_ms = static_cast<uint32_t>(now_ms_);
  if (--p.refs > 0) {
    num_shared_ -= p.refs == 1;
    return;
  }
  if (!p.sealed) {
    BecomeBlank(page);
    return;
  }
  BecomeCached(page);
  if (!p.keep) {
    Drop(page, DropReason::kPrivate);
  } else if (num_to_retire_ > 0) {
    Drop(page, DropReason::kShrunk);
  }
}

void PagePool::Seal(PageId page, int64_t tag, bool keep) {
  Page& p = at(page);
  CHECK(p.refs > 0 && !p.sealed, "page {} refs={} sealed={}", page, p.refs, p.sealed);
  p.sealed = true;
  p.tag = tag;
  p.keep = keep;
  p.eviction_class = kDefaultRetentionPriority;
  ++stats_.sealed;
}

void PagePool::Unseal(PageId page, DropReason reason) {
  Page& p = at(page);
  CHECK(p.sealed, "page {} is not sealed", page);
  if (p.expires) ForgetExpiry(page);
  if (p.refs == 0) LeaveCached(page);
  p.sealed = false;
  ++p.generation;
  ++stats_.dropped[static_cast<int>(reason)];
  if (reason == DropReason::kEvicted) {
    ++stats_.lifetime_ms[TimeBucket(static_cast<uint32_t>(now_ms_) - p.taken_ms)];
    ++stats_.idle_ms[TimeBucket(static_cast<uint32_t>(now_ms_) - p.last_access_ms)];
  }
  if (p.refs == 0) BecomeBlank(page);
}

void PagePool::FlushCached() {
  while (num_cached_ > 0) Drop(Victim(), DropReason::kFlushed);
}

// ---- retention ----

void PagePool::Keep(PageId page, const Retention& wanted) {
  Page& p = at(page);
  CHECK(p.sealed, "page {} has no content to keep", page);
  if (wanted == Retention{}) return;  // no wish
  const bool is_default = !p.expires && p.eviction_class == kDefaultRetentionPriority;
  const Retention r = is_default ? wanted : Stronger(retention(page), wanted);
  if (p.expires) ForgetExpiry(page);
  SetClass(page, EvictionClass(r), /*first_to_go=*/false);
  if (r.expires_ms == kNoExpiry || EvictionClass(r) == kDefaultRetentionPriority) return;
  const Expiry expiry{r.expires_ms, ++expiry_order_, page};
  expiries_.insert(expiry);
  expiry_of_.emplace(page, expiry);
  p.expires = true;
}

Retention PagePool::retention(PageId page) const {
  const Page& p = at(page);
  return {p.eviction_class, p.expires ? expiry_of_.at(page).at_ms : kNoExpiry};
}

void PagePool::ForgetExpiry(PageId page) {
  const auto it = expiry_of_.find(page);
  expiries_.erase(it->second);
  expiry_of_.erase(it);
  at(page).expires = false;
}

void PagePool::SetClass(PageId page, int32_t eviction_class, bool first_to_go) {
  Page& p = at(page);
  const bool cached = p.refs == 0;
  if (cached) LeaveCached(page);
  p.eviction_class = static_cast<uint8_t>(eviction_class);
  if (!cached) return;
  BecomeCached(page);
  if (!first_to_go) return;
  List& list = cached_[p.eviction_class];
  Unlink(list, page);
  PushFront(list, page);
}

void PagePool::SetTime(int64_t now_ms) {
  now_ms_ = std::max(now_ms_, now_ms);
  while (!expiries_.empty() && expiries_.begin()->at_ms <= now_ms_) {
    const PageId page = expiries_.begin()->page;
    ForgetExpiry(page);
    SetClass(page, kDefaultRetentionPriority, /*first_to_go=*/true);
    ++stats_.expired;
  }
}

// ---- size ----

void PagePool::Resize(int32_t num_usable, std::vector<PageId>& retired) {
  CHECK(num_usable >= 1 && num_usable < INT32_MAX, "num_usable={}", num_usable);
  int32_t change = num_usable - num_usable_;
  num_usable_ = num_usable;
  // More: first those that were about to go, then those that went, then new ones.
  const int32_t spared = std::clamp(change, 0, num_to_retire_);
  num_to_retire_ -= spared;
  std::vector<PageId> more;
  for (change -= spared; change > 0; --change) {
    PageId page = retired_.head;
    if (page >= 0) {
      Unlink(retired_, page);
      --num_retired_;
      at(page).retired = false;
    } else {
      page = static_cast<PageId>(pages_.size());
      pages_.emplace_back();
    }
    more.push_back(page);
  }
  blank_.insert(blank_.begin(), more.rbegin(), more.rend());  // taken last
  blank_.reserve(pages_.size());
  // Fewer: blank ones, then cached ones; the rest when they come back.
  num_to_retire_ += std::max(0, -change);
  const int32_t unused = std::min(num_to_retire_, num_blank());
  for (int32_t i = 0; i < unused; ++i) Retire(blank_[static_cast<size_t>(i)]);
  blank_.erase(blank_.begin(), blank_.begin() + unused);
  while (num_to_retire_ > 0 && num_cached_ > 0) Drop(Victim(), DropReason::kShrunk);
  for (PageId page = retired_.head; page >= 0; page = at(page).next) retired.push_back(page);
}

// ---- lists ----

PageId PagePool::Victim() const {
  for (size_t word = 0; word < cached_classes_.size(); ++word) {
    if (cached_classes_[word] == 0) continue;
    return cached_[word * 64 + static_cast<size_t>(std::countr_zero(cached_classes_[word]))].head;
  }
  CHECK(false, "no page is cached");
  return kNullPage;
}

void PagePool::BecomeCached(PageId page) {
  const size_t c = at(page).eviction_class;
  PushBack(cached_[c], page);
  cached_classes_[c / 64] |= uint64_t{1} << (c % 64);
  ++num_cached_;
}

void PagePool::LeaveCached(PageId page) {
  const size_t c = at(page).eviction_class;
  Unlink(cached_[c], page);
  if (cached_[c].head < 0) cached_classes_[c / 64] &= ~(uint64_t{1} << (c % 64));
  --num_cached_;
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
  if (options_.record_freed) freed_.push_back(page);
  if (num_to_retire_ > 0) {
    Retire(page);
  } else {
    blank_.push_back(page);
  }
}

void PagePool::Retire(PageId page) {
  --num_to_retire_;
  at(page).retired = true;
  PushBack(retired_, page);
  ++num_retired_;
}

std::vector<PageId> PagePool::TakeRow() {
  if (spare_rows_.empty()) return {};
  std::vector<PageId> row = std::move(spare_rows_.back());
  spare_rows_.pop_back();
  return row;
}

void PagePool::ReturnRow(std::vector<PageId>&& row) {
  if (row.capacity() == 0 || spare_rows_.size() >= kMaxSpareRows) return;
  row.clear();
  spare_rows_.push_back(std::move(row));
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

// ---- audit ----

absl::Status PagePool::AuditList(const List& list, int32_t count, bool sealed, bool retired) const {
  int32_t n = 0;
  for (PageId page = list.head; page >= 0; page = at(page).next) {
    const Page& p = at(page);
    if (p.refs != 0 || p.sealed != sealed || p.retired != retired || ++n > count) {
      return Error(absl::StatusCode::kInternal,
                   "I1: page {} refs={} sealed={} retired={} in a list of {}", page, p.refs,
                   p.sealed, p.retired, count);
    }
  }
  if (n == count) return absl::OkStatus();
  return Error(absl::StatusCode::kInternal, "I1: list has {} pages, count says {}", n, count);
}

absl::Status PagePool::Audit(std::span<const PageTable* const> tables) const {
  std::vector<bool> is_blank(pages_.size());
  for (const PageId page : blank_) {
    const Page& p = at(page);
    if (p.refs != 0 || p.sealed || p.retired || is_blank[static_cast<size_t>(page)]) {
      return Error(absl::StatusCode::kInternal,
                   "I1: page {} refs={} sealed={} retired={} among the blank ones, or twice", page,
                   p.refs, p.sealed, p.retired);
    }
    is_blank[static_cast<size_t>(page)] = true;
  }
  RETURN_IF_ERROR(AuditList(retired_, num_retired_, /*sealed=*/false, /*retired=*/true));
  int32_t cached = 0;
  for (size_t c = 0; c < cached_.size(); ++c) {
    int32_t n = 0;
    for (PageId page = cached_[c].head; page >= 0; page = at(page).next, ++n) {
      if (at(page).eviction_class != c || n > num_cached_) {
        return Error(absl::StatusCode::kInternal, "I1: page {} of class {} in the list of class {}",
                     page, at(page).eviction_class, c);
      }
    }
    RETURN_IF_ERROR(AuditList(cached_[c], n, /*sealed=*/true, /*retired=*/false));
    if ((n > 0) != ((cached_classes_[c / 64] >> (c % 64) & 1) != 0)) {
      return Error(absl::StatusCode::kInternal,
                   "I1: class {} has {} cached pages, its bit is wrong", c, n);
    }
    cached += n;
  }
  std::vector<int32_t> seen(pages_.size());
  int64_t held = 0;
  for (const PageTable* table : tables) {
    for (const PageId page : table->ids()) {
      if (page == kNullPage) continue;
      ++seen[static_cast<size_t>(page)];
      ++held;
    }
  }
  int32_t active = 0;
  int32_t expiring = 0;
  int32_t shared = 0;
  for (PageId page = 1; page < num_ids(); ++page) {
    const Page& p = at(page);
    active += p.refs > 0;
    expiring += p.expires;
    shared += p.refs > 1;
    if (p.refs != seen[static_cast<size_t>(page)]) {
      return Error(absl::StatusCode::kInternal, "I2: page {} has refs={}, tables hold {}", page,
                   p.refs, seen[static_cast<size_t>(page)]);
    }
  }
  if (held != num_refs_ || shared != num_shared_) {
    return Error(absl::StatusCode::kInternal,
                 "I2: {} references counted, tables hold {}; {} shared pages counted, {} are",
                 num_refs_, held, num_shared_, shared);
  }
  if (cached != num_cached_ || num_blank() + num_cached_ + active != num_usable_ + num_to_retire_ ||
      num_blank() + num_cached_ + active + num_retired_ != num_ids() - 1 ||
      (num_to_retire_ > 0 && num_blank() + num_cached_ > 0)) {
    return Error(absl::StatusCode::kInternal,
                 "I1: blank={} cached={} active={} retired={} to_retire={} usable={}", num_blank(),
                 num_cached_, active, num_retired_, num_to_retire_, num_usable_);
  }
  if (static_cast<size_t>(expiring) != expiries_.size() || expiries_.size() != expiry_of_.size()) {
    return Error(absl::StatusCode::kInternal, "I1: {} pages expire, {} are noted", expiring,
                 expiries_.size());
  }
  return absl::OkStatus();
}

}  // namespace quire
