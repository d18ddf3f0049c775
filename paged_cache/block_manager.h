// paged_cache/block_manager.h -- tables of all sequences x groups over the pools.
//
// Engine thread only. Everything that can fail for want of pages is all-or-nothing and returns
// false or nullopt; pages are owned by the tables (RAII), so destroying a SequenceTables frees
// them. SequenceTables are destroyed before the manager, the manager before the pools.
//
// A step in order: MatchPrefix (new sequences), Grow, the executor (copies, then writes), Commit.
// Only Commit makes pages findable, so no hit ever sees a page before the step that wrote it ended.
//
// Writing into pages that others know (contract C3): a page with refs > 1 is replaced by a private
// copy at the first write of each owner but the last; a sealed page with refs == 1 (left after
// Truncate) is unsealed and written in place, since a copy would cost a page that WorstCasePages
// could not promise. Either way sealed content is never written (I9).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "base/types.h"
#include "paged_cache/cache_layout.h"
#include "paged_cache/page_copy.h"
#include "paged_cache/page_pool.h"
#include "paged_cache/page_table.h"
#include "paged_cache/prefix_hash.h"
#include "paged_cache/prefix_index.h"

namespace quire {

// The pages of one sequence, one table per group. Move-only; the destructor frees.
struct SequenceTables {
  RootId root = 0;
  std::vector<PageTable> groups;
  // Pages [0, num_sealed) of the sequence are sealed or known to stay private (hash collision).
  int32_t num_sealed = 0;
  bool chain_broken = false;  // a collision or a flush: this sequence seals no further pages
  PrefixCursor cursor;        // the prefix of the sealed pages
};

struct PrefixHit {
  int32_t num_tokens = 0;  // equal in all groups; a multiple of the block size
  SequenceTables tables;   // holds references to the hit pages already
};

// Pages per pool.
using PageNeed = std::vector<int32_t>;

struct BlockManagerOptions {
  // Most tokens of one sequence that a step computes; 0 = a whole prompt. Bounds what windowed
  // groups hold (WorstCasePages).
  int32_t max_step_tokens = 0;
  // So many committed tokens can still be taken back by Truncate; windows keep their pages that
  // long.
  int32_t max_truncate_tokens = 0;
  // Bits of each prefix hash that are looked at; less than 128 for tests of collisions only.
  int32_t hash_bits = 128;
};

// Counters since start.
struct CacheStats {
  int64_t lookups = 0;          // MatchPrefix
  int64_t lookup_tokens = 0;    // tokens of the sequences looked up
  int64_t hit_tokens = 0;       // of these found in the cache
  int64_t copies = 0;           // copy-on-write
  int64_t unsealed_writes = 0;  // sealed pages written again by their only owner
  int64_t dedupe_hits = 0;      // completed pages replaced by an equal one
  int64_t collisions = 0;       // pages that stay private
};

class BlockManager {
 public:
  // pools[i] serves layout.pools[i]; both outlive the manager.
  BlockManager(const CacheLayout& layout, std::span<PagePool> pools,
               const BlockManagerOptions& options = {});
  BlockManager(const BlockManager&) = delete;
  BlockManager& operator=(const BlockManager&) = delete;

  const CacheLayout& layout() const { return layout_; }
  int32_t block_size() const { return layout_.block_size; }

  // Roots: (cache_salt, rope regime, private request id or 0 ...) joined by the caller into one
  // byte string that is compared exactly. Ids are never used twice. Roots without pages and tables
  // are forgotten, the longest idle first, when there are many: so intern the key at each
  // admission; an id kept for longer stays safe to use, but may share with nobody. keep = false (a
  // root of one request that bypasses the cache): its pages become blank at their last release; the
  // request's own branches share them while they live.
  RootId InternRoot(std::string_view key, bool keep = true);

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

  // After the step: seals pages that became full (replacing them by an equal sealed page if there
  // is one) and gives back pages before every group's FirstLivePage. chain: hashes of the full
  // pages of `tokens`, extended as needed; whoever takes tokens back shortens it, too.
  void Commit(SequenceTables& t, std::span<const TokenId> tokens, int32_t num_computed,
              std::vector<PrefixHash>& chain);

  // A second owner of the same pages, the partial tail included; nothing is copied.
  SequenceTables Fork(const SequenceTables& t);

  // As if tokens [num_tokens, ...) had never been there. The caller cuts its chain to the full
  // pages left. REQUIRES: windowed groups still hold what num_tokens needs (max_truncate_tokens);
  // states cannot be taken back but to a snapshot.
  void Truncate(SequenceTables& t, int32_t num_tokens);

  // row: layout max pages entries; what the group does not keep is kNullPage.
  void FillReadRow(const SequenceTables& t, int32_t group, std::span<PageId> row) const;
  // slots[i] = page * page_size + offset of position first_pos + i. REQUIRES (I5): a page written
  // is unsealed with refs == 1, as Grow leaves it.
  void FillWriteSlots(const SequenceTables& t, int32_t group, int32_t first_pos,
                      std::span<int64_t> slots) const;

  // Upper bound of pages, per pool, that a request of this shape ever holds: the prompt's full
  // pages once, and everything after them once per branch. The same arithmetic that Grow uses.
  PageNeed WorstCasePages(int32_t prompt_tokens, int32_t max_new_tokens,
                          int32_t num_branches) const;

  std::span<PagePool> pools() { return pools_; }
  std::span<const PagePool> pools() const { return pools_; }

  // Forgets all prefixes: cached pages become blank, pages in use stay with their owners but are
  // not found again, and sequences that hold sealed pages seal no more of them.
  void Flush();

  const CacheStats& stats() const { return stats_; }
  size_t num_roots() const { return index_.num_roots(); }
  size_t num_prefix_nodes() const { return index_.num_nodes(); }

  // Invariants I1-I4, I7 and I11 over all live tables (I5 is checked where slots are filled, I8
  // holds by construction). ERRORS: kInternal naming invariant, page, values.
  absl::Status Audit(std::span<const SequenceTables* const> live) const;

 private:
  // What Grow will do to one group.
  struct GroupPlan {
    int32_t first_new = 0;  // pages before it exist, or are not kept (kNullPage)
    int32_t num_new = 0;
    std::vector<int32_t> private_copies;  // page indices to replace
    std::vector<int32_t> unseal;          // page indices to write in place
  };
  int32_t FirstKeptPage(size_t group, int32_t num_computed) const;
  GroupPlan PlanGroup(const SequenceTables& t, size_t group, int32_t first_write,
                      int32_t num_tokens) const;
  void SealNext(SequenceTables& t, std::span<const TokenId> tokens, int32_t num_computed,
                const PrefixHash& hash);
  absl::Status AuditTables(const SequenceTables& t) const;

  const CacheGroup& group_of(size_t group) const { return layout_.groups[group].group; }
  size_t pool_index(size_t group) const { return static_cast<size_t>(layout_.groups[group].pool); }

  const CacheLayout& layout_;
  std::span<PagePool> pools_;
  const BlockManagerOptions options_;
  PrefixIndex index_;
  CacheStats stats_;
};

}  // namespace quire
