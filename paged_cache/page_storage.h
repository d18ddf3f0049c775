// paged_cache/page_storage.h -- the bytes of the cache pages of every pool.
//
// One anonymous mapping per pool, aligned to 2 MiB for huge pages; the kernel gives it memory when
// a page is first written, so a big pool costs nothing until it is used. Layout [num_usable + 1,
// page_bytes]: the null page has an address, too, but nothing may be read from it as data.
//
// Used by the executor on the engine thread; kernels write into it from worker threads through
// base().
//
// The host tier's slots have the same sizes and a mapping of their own. On a device they would lie
// in pinned host memory; on the CPU they are memory beside the pool, which pays where it lies on
// another NUMA node or where the pool is kept small, and keeps one interface.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "base/types.h"
#include "paged_cache/cache_layout.h"
#include "paged_cache/page_copy.h"
#include "paged_cache/page_pool.h"

namespace quire {

// Offsets into a pool pass 2^32; both factors are widened before they are multiplied.
inline std::byte* PageAddress(std::byte* base, PageId page, size_t page_bytes) {
  return base + static_cast<size_t>(page) * page_bytes;
}

class PageStorage {
 public:
  // Without pools: for a dry run; base() is null.
  PageStorage() = default;
  ~PageStorage();
  PageStorage(const PageStorage&) = delete;
  PageStorage& operator=(const PageStorage&) = delete;

  // num_usable[i]: pages of layout.pools[i], the null page not included. most_usable[i]: how many
  // it may have one day (address space only; empty = no more); num_host[i]: slots of the host tier
  // (empty = none). ERRORS: kInvalidArgument for sizes that overflow, kResourceExhausted if it
  // cannot be mapped; both name pool, pages and bytes.
  static absl::StatusOr<std::unique_ptr<PageStorage>> Create(
      const CacheLayout& layout, std::span<const int32_t> num_usable,
      std::span<const int32_t> most_usable = {}, std::span<const int32_t> num_host = {});

  // First byte of the pool's page 0; null for a pool that is not there (dry run).
  std::byte* base(int32_t pool) const {
    return static_cast<size_t>(pool) < pools_.size() ? pools_[static_cast<size_t>(pool)].base
                                                     : nullptr;
  }
  size_t page_bytes(int32_t pool) const {
    return static_cast<size_t>(pool) < pools_.size() ? pools_[static_cast<size_t>(pool)].page_bytes
                                                     : 0;
  }
  std::byte* page(int32_t pool, PageId id) const {
    return PageAddress(base(pool), id, page_bytes(pool));
  }
  // A slot of the host tier, from 1 on.
  std::byte* host_page(int32_t pool, PageId slot) const {
    return PageAddress(host_[static_cast<size_t>(pool)].base, slot, page_bytes(pool));
  }
  size_t num_pools() const { return pools_.size(); }
  // Pages that a pool can grow to.
  int32_t most_usable(int32_t pool) const {
    return static_cast<int32_t>(pools_[static_cast<size_t>(pool)].num_pages) - 1;
  }

  // The kernel may have the memory of these pages back; they come back as zeros when used again.
  void Discard(int32_t pool, std::span<const PageId> pages);

  // Runs the operations in their order. REQUIRES: before anything else of the step is written.
  // fills: contents of kFill, BlockManager::fills().
  void Copy(std::span<const PageCopy> copies, std::span<const std::vector<std::byte>> fills = {});

  // Debugging: fills a page with 0xFF bytes, which are NaN in every float type in use.
  void Poison(int32_t pool, PageId id);
  // Debugging, after Copy: poisons the pages that `pools` (with record_freed) freed since the last
  // call, but for targets of `copies`. Sources of this step's copies may be among the freed ones,
  // so this must not run any earlier.
  void PoisonFreed(std::span<PagePool> pools, std::span<const PageCopy> copies);

 private:
  struct Pool {
    std::byte* base = nullptr;
    size_t page_bytes = 0;
    size_t num_pages = 0;  // the null page included
    void* mapping = nullptr;
    size_t mapping_bytes = 0;
  };
  static absl::StatusOr<Pool> Map(size_t index, size_t page_bytes, int32_t num_pages);

  std::vector<Pool> pools_;
  std::vector<Pool> host_;
};

}  // namespace quire
