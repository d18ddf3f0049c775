// paged_cache/block_manager.h -- tables of all sequences x groups over the pools.
//
// Engine thread only. Everything that can fail for want of pages is all-or-nothing and returns false
// or nullopt; pages are owned by the tables (RAII), so destroying a SequenceTables frees them.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "base/types.h"
#include "paged_cache/cache_layout.h"
#include "paged_cache/page_pool.h"
#include "paged_cache/page_table.h"
#include "paged_cache/prefix_hash.h"

namespace quire {

// A root of prefix chains: what else than tokens decides the content of a page. Interned by
// BlockManager::InternRoot; compared exactly, never by hash.
using RootId = int32_t;

// One page of pool `pool` to copy before the step writes (copy-on-write).
struct PageCopy {
  int32_t pool = 0;
  PageId src = 0;
  PageId dst = 0;
};

// The pages of one sequence, one table per group. Move-only; the destructor frees.
struct SequenceTables {
  RootId root = 0;
  std::vector<PageTable> groups;
  // Pages [0, num_sealed) of the sequence are sealed or known to stay private (hash collision).
  int32_t num_sealed = 0;
  bool chain_broken = false;  // a collision: this sequence seals no further pages
};

struct PrefixHit {
  int32_t num_tokens = 0;  // equal in all groups; a multiple of the block size
  SequenceTables tables;   // holds references to the hit pages already
};

// Pages per pool.
using PageNeed = std::vector<int32_t>;

class BlockManager {
 public:
  // pools[i] serves layout.pools[i]; both outlive the manager.
  BlockManager(const CacheLayout& layout, std::span<PagePool> pools);

  const CacheLayout& layout() const { return layout_; }
  int32_t block_size() const { return layout_.block_size; }

  // Roots: (cache_salt, rope regime, private request id or 0 ...) joined by the caller into one byte
  // string that is compared exactly. Roots nobody uses any more are dropped with their pages.
  RootId InternRoot(std::string_view key);

  SequenceTables NewTables(RootId root);

  // Longest prefix of whole pages, shorter than `tokens`, that every group can serve; hits of all
  // groups are retained before anything is taken. chain: hashes of the full pages of `tokens`.
  PrefixHit MatchPrefix(RootId root, std::span<const TokenId> tokens,
                        std::span<const PrefixHash> chain);

  // Room for tokens [0, num_tokens) in all groups, or false and nothing has changed. The step is
  // going to write slots [first_write, num_tokens): pages there that somebody else holds, too, are
  // replaced by private copies, whose contents the executor copies first (appended to `copies`).
  [[nodiscard]] bool Grow(SequenceTables& t, int32_t first_write, int32_t num_tokens,
                          std::vector<PageCopy>& copies);

  // After the step: seals pages that became full (replacing them by an equal sealed page if there is
  // one) and gives back pages before every group's FirstLivePage. chain is extended as needed.
  void Commit(SequenceTables& t, std::span<const TokenId> tokens, int32_t num_computed,
              std::vector<PrefixHash>& chain);

  // A second owner of the same pages, the partial tail included; nothing is copied.
  SequenceTables Fork(const SequenceTables& t);

  // As if tokens [num_tokens, ...) had never been there.
  void Truncate(SequenceTables& t, int32_t num_tokens);

  // row: layout max pages entries; what the group does not keep is kNullPage.
  void FillReadRow(const SequenceTables& t, int32_t group, std::span<PageId> row) const;
  // slots[i] = page * page_size + offset of position first_pos + i.
  void FillWriteSlots(const SequenceTables& t, int32_t group, int32_t first_pos,
                      std::span<int64_t> slots) const;

  // Upper bound of pages, per pool, that a request of this shape ever holds: the prompt's full pages
  // once, and everything after them once per branch. The same arithmetic that Grow uses.
  PageNeed WorstCasePages(int32_t prompt_tokens, int32_t max_new_tokens, int32_t num_branches) const;

  std::span<PagePool> pools() { return pools_; }
  std::span<const PagePool> pools() const { return pools_; }

  // Invariants I1-I8 and I11 over all live tables. ERRORS: kInternal naming invariant, page, values.
  absl::Status Audit(std::span<const SequenceTables* const> live) const;

 private:
  const CacheLayout& layout_;
  std::span<PagePool> pools_;
};

}  // namespace quire
