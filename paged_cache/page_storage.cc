#include "paged_cache/page_storage.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "absl/container/flat_hash_set.h"

namespace quire {

constexpr size_t kAlignment = size_t{2} << 20;  // a huge page
constexpr int kPoison = 0xFF;

absl::StatusOr<std::unique_ptr<PageStorage>> PageStorage::Create(
    const CacheLayout& layout, std::span<const int32_t> num_usable) {
  CHECK(num_usable.size() == layout.pools.size(), "{} sizes for {} pools", num_usable.size(),
        layout.pools.size());
  auto storage = std::make_unique<PageStorage>();
  for (size_t i = 0; i < num_usable.size(); ++i) {
    Pool pool{.page_bytes = layout.pools[i].page_bytes};
    size_t bytes = 0;
    if (num_usable[i] < 1 || pool.page_bytes == 0 ||
        __builtin_mul_overflow(static_cast<size_t>(num_usable[i]) + 1, pool.page_bytes, &bytes) ||
        __builtin_add_overflow(bytes, 2 * kAlignment, &pool.mapping_bytes)) {
      return InvalidArgument("num_blocks={} of {} bytes in pool {} is not a size; give 1 or more",
                             num_usable[i], pool.page_bytes, i);
    }
    pool.num_pages = static_cast<size_t>(num_usable[i]) + 1;
    pool.mapping = mmap(nullptr, pool.mapping_bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (pool.mapping == MAP_FAILED) {
      return Error(
          absl::StatusCode::kResourceExhausted,
          "num_blocks={} of {} bytes in pool {} cannot be mapped ({}); lower num_blocks or "
          "memory_utilization",
          num_usable[i], pool.page_bytes, i, std::strerror(errno));
    }
    const auto address = reinterpret_cast<uintptr_t>(pool.mapping);
    pool.base =
        static_cast<std::byte*>(pool.mapping) + (kAlignment - address % kAlignment) % kAlignment;
    // Only advice; without huge pages the pool works as well.
    (void)madvise(pool.base, bytes, MADV_HUGEPAGE);
    storage->pools_.push_back(pool);
  }
  return storage;
}

PageStorage::~PageStorage() {
  for (const Pool& pool : pools_) munmap(pool.mapping, pool.mapping_bytes);
}

void PageStorage::Copy(std::span<const PageCopy> copies) {
  for (const PageCopy& copy : copies) {
    CHECK(copy.src != copy.dst && copy.src > kNullPage && copy.dst > kNullPage,
          "copy of page {} to {}", copy.src, copy.dst);
    std::memcpy(page(copy.pool, copy.dst), page(copy.pool, copy.src), page_bytes(copy.pool));
  }
}

void PageStorage::Poison(int32_t pool, PageId id) {
  std::memset(page(pool, id), kPoison, page_bytes(pool));
}

void PageStorage::PoisonFreed(std::span<PagePool> pools, std::span<const PageCopy> copies) {
  absl::flat_hash_set<std::pair<int32_t, PageId>> targets;
  for (const PageCopy& copy : copies) targets.emplace(copy.pool, copy.dst);
  for (size_t i = 0; i < pools.size(); ++i) {
    for (const PageId id : pools[i].DrainFreed()) {
      const auto pool = static_cast<int32_t>(i);
      if (!targets.contains({pool, id})) Poison(pool, id);
    }
  }
}

}  // namespace quire
