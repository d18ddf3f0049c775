#include "paged_cache/page_storage.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/container/flat_hash_set.h"

namespace quire {

constexpr size_t kAlignment = size_t{2} << 20;  // a huge page
constexpr int kPoison = 0xFF;

absl::StatusOr<PageStorage::Pool> PageStorage::Map(size_t index, size_t page_bytes,
                                                   int32_t num_pages) {
  Pool pool{.page_bytes = page_bytes};
  size_t bytes = 0;
  if (num_pages < 1 || page_bytes == 0 ||
      __builtin_mul_overflow(static_cast<size_t>(num_pages) + 1, page_bytes, &bytes) ||
      __builtin_add_overflow(bytes, 2 * kAlignment, &pool.mapping_bytes)) {
    return InvalidArgument("num_blocks={} of {} bytes in pool {} is not a size; give 1 or more",
                           num_pages, page_bytes, index);
  }
  pool.num_pages = static_cast<size_t>(num_pages) + 1;
  pool.mapping = mmap(nullptr, pool.mapping_bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (pool.mapping == MAP_FAILED) {
    return Error(absl::StatusCode::kResourceExhausted,
                 "num_blocks={} of {} bytes in pool {} cannot be mapped ({}); lower num_blocks or "
                 "memory_utilization",
                 num_pages, page_bytes, index, std::strerror(errno));
  }
  const auto address = reinterpret_cast<uintptr_t>(pool.mapping);
  pool.base =
      static_cast<std::byte*>(pool.mapping) + (kAlignment - address % kAlignment) % kAlignment;
  // Only advice; without huge pages the pool works as well.
  (void)madvise(pool.base, bytes, MADV_HUGEPAGE);
  return pool;
}

absl::StatusOr<std::unique_ptr<PageStorage>> PageStorage::Create(
    const CacheLayout& layout, std::span<const int32_t> num_usable,
    std::span<const int32_t> most_usable, std::span<const int32_t> num_host) {
  const size_t n = layout.pools.size();
  CHECK(num_usable.size() == n && (most_usable.empty() || most_usable.size() == n) &&
            (num_host.empty() || num_host.size() == n),
        "{}, {} and {} sizes for {} pools", num_usable.size(), most_usable.size(), num_host.size(),
        n);
  auto storage = std::make_unique<PageStorage>();
  for (size_t i = 0; i < n; ++i) {
    const int32_t most =
        most_usable.empty() ? num_usable[i] : std::max(num_usable[i], most_usable[i]);
    ASSIGN_OR_RETURN(const Pool pool, Map(i, layout.pools[i].page_bytes, most));
    storage->pools_.push_back(pool);
  }
  for (size_t i = 0; i < num_host.size(); ++i) {
    ASSIGN_OR_RETURN(const Pool pool, Map(i, layout.pools[i].page_bytes, num_host[i]));
    storage->host_.push_back(pool);
  }
  return storage;
}

PageStorage::~PageStorage() {
  for (const Pool& pool : pools_) munmap(pool.mapping, pool.mapping_bytes);
  for (const Pool& pool : host_) munmap(pool.mapping, pool.mapping_bytes);
}

void PageStorage::Copy(std::span<const PageCopy> copies,
                       std::span<const std::vector<std::byte>> fills) {
  for (const PageCopy& copy : copies) {
    if (copy.op == PageOp::kFill) {
      const auto i = static_cast<size_t>(copy.src);
      CHECK(i < fills.size() && fills[i].size() == page_bytes(copy.pool),
            "fill {} of {} for a page of {} bytes", i, fills.size(), page_bytes(copy.pool));
      std::memcpy(page(copy.pool, copy.dst), fills[i].data(), fills[i].size());
      continue;
    }
    CHECK(copy.src > kNullPage && copy.dst > kNullPage &&
              (copy.op != PageOp::kCopy || copy.src != copy.dst),
          "copy of page {} to {}", copy.src, copy.dst);
    const bool from_host = copy.op == PageOp::kLoad;
    const bool to_host = copy.op == PageOp::kSave;
    std::memcpy(to_host ? host_page(copy.pool, copy.dst) : page(copy.pool, copy.dst),
                from_host ? host_page(copy.pool, copy.src) : page(copy.pool, copy.src),
                page_bytes(copy.pool));
  }
}

void PageStorage::Discard(int32_t pool, std::span<const PageId> pages) {
  constexpr uintptr_t kOsPage = 4096;
  for (const PageId id : pages) {
    std::byte* const begin = page(pool, id);
    const size_t to_first = (kOsPage - reinterpret_cast<uintptr_t>(begin) % kOsPage) % kOsPage;
    if (page_bytes(pool) <= to_first) continue;
    const size_t bytes = (page_bytes(pool) - to_first) / kOsPage * kOsPage;
    // Only advice; a page that shares its ends with neighbours keeps those.
    if (bytes > 0) (void)madvise(begin + to_first, bytes, MADV_DONTNEED);
  }
}

void PageStorage::Poison(int32_t pool, PageId id) {
  std::memset(page(pool, id), kPoison, page_bytes(pool));
}

void PageStorage::PoisonFreed(std::span<PagePool> pools, std::span<const PageCopy> copies) {
  absl::flat_hash_set<std::pair<int32_t, PageId>> targets;
  for (const PageCopy& copy : copies) {
    if (copy.op != PageOp::kSave) targets.emplace(copy.pool, copy.dst);
  }
  for (size_t i = 0; i < pools.size(); ++i) {
    for (const PageId id : pools[i].DrainFreed()) {
      const auto pool = static_cast<int32_t>(i);
      if (!targets.contains({pool, id})) Poison(pool, id);
    }
  }
}

}  // namespace quire
