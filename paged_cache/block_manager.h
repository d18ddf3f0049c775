// paged_cache/block_manager.h -- tables of all sequences x groups over the pools.
//
// Engine thread only. Everything that can fail for want of pages is all-or-nothing and returns
// false or nullopt; pages are owned by the tables (RAII), so destroying a SequenceTables frees
// them. SequenceTables are destroyed before the manager, the manager before the pools.
//
// A step in order: MatchPrefix (new sequences), Grow, Announce, the executor (page operations, then
// writes), Publish, Commit. A page is findable once it is written, or, announced, by readers that
// are computed behind its writer in the very same step: each layer writes all keys and values of a
// step before it reads any. So a prefix is computed once however many ask for it at a time. (A
// recurrent state has no such order: its layouts share from the next step on, and a hit tells that
// it pays to wait.)
//
// Writing into pages that others know (contract C3): a page with refs > 1 is replaced by a private
// copy at the first write of each owner but the last; a sealed page with refs == 1 (left after
// Truncate) is unsealed and written in place, since a copy would cost a page that WorstCasePages
// could not promise. Either way sealed content is never written (I9).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/container/inlined_vector.h"
#include "base/status.h"
#include "base/types.h"
#include "paged_cache/cache_events.h"
#include "paged_cache/cache_files.h"
#include "paged_cache/cache_layout.h"
#include "paged_cache/page_copy.h"
#include "paged_cache/page_pool.h"
#include "paged_cache/page_table.h"
#include "paged_cache/prefix_hash.h"
#include "paged_cache/prefix_index.h"
#include "paged_cache/retention.h"

namespace quire {

// What the cache is told of a sequence beside its tokens.
struct SequenceSpec {
  int32_t prompt_tokens = 0;   // where a recurrent state takes its last snapshot
  int32_t encoder_tokens = 0;  // cross-attention: fixed for the sequence's life
  std::shared_ptr<const RetentionPolicy> retention;  // null: the default for all pages
};

// The pages of one sequence, one table per group. Move-only; the destructor frees.
struct SequenceTables {
  RootId root = 0;
  absl::InlinedVector<PageTable, 4> groups;
  // Blocks [0, num_sealed) of the sequence are sealed or known to stay private (hash collision).
  int32_t num_sealed = 0;
  int32_t first_announced = 0;  // blocks [first_announced, num_sealed) are written in this step
  bool merges = false;          // of these, some stand in the index with another page
  bool chain_broken = false;    // a collision or a flush: this sequence seals no further pages
  int32_t prompt_mark = 0;      // tokens: where the prompt's state is kept
  int32_t encoder_tokens = 0;
  std::shared_ptr<const RetentionPolicy> retention;
  PrefixCursor cursor;  // the prefix of the sealed blocks
};

struct PrefixHit {
  int32_t num_tokens = 0;  // equal in all groups; a multiple of the block size
  SequenceTables tables;   // holds references to the hit pages already
  // What the hit would be after the step that is being planned. More than num_tokens only with
  // recurrent states, which cannot be shared while they are computed: worth waiting for.
  int32_t num_tokens_next_step = 0;
};

// A sequence's pages that no prefix keeps, in the host tier. Move-only; the destructor frees.
struct SwappedTables {
  int32_t num_computed = 0;
  absl::InlinedVector<PageTable, 4> groups;  // over the host pools; kNullPage: not saved
};

using PinId = int64_t;

struct PinInfo {
  PinId id = 0;
  RootId root = 0;
  int32_t num_tokens = 0;
  int64_t expires_ms = kNoExpiry;
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
  // Least share of a block that a partial hit must save to be worth its copy; above 1 = never.
  double partial_hit_share = 0.5;
  // Of prefix chains; see PrefixHasher.
  PrefixHashAlgorithm hash_algorithm = PrefixHashAlgorithm::kXxh3;
  std::string hash_seed;
  // Most of each pool that pins may hold.
  double max_pinned_share = 0.5;
};

// Counters since start.
struct CacheStats {
  int64_t lookups = 0;         // MatchPrefix
  int64_t lookup_tokens = 0;   // tokens of the sequences looked up
  int64_t hit_tokens = 0;      // of these found in the cache, whole blocks
  int64_t partial_tokens = 0;  // of these found in a block that goes on differently
  int64_t in_step_tokens = 0;  // of hit_tokens: still being written by another of the same step
  int64_t copies = 0;          // copy-on-write and partial hits
  int64_t forks = 0;
  int64_t unsealed_writes = 0;  // sealed pages written again by their only owner
  int64_t dedupe_hits = 0;      // completed pages replaced by an equal one
  int64_t collisions = 0;       // pages that stay private
  // Host tier, in pages.
  int64_t saved = 0;           // evicted from the pool and kept there, or swapped out
  int64_t loaded = 0;          // found there, or swapped in
  int64_t file_loaded = 0;     // pages found in files
  int64_t file_saved = 0;      // pages that the host tier gave up and files took
  int64_t file_not_saved = 0;  // and did not take
  int64_t swap_outs = 0;       // sequences
  int64_t swap_ins = 0;
};

enum class PageState : uint8_t { kBlank, kActive, kCached };

// One page, for people.
struct BlockInfo {
  int32_t pool = 0;
  PageId page = kNullPage;
  PageState state = PageState::kBlank;
  int32_t refs = 0;
  bool sealed = false;
  // Of sealed pages:
  int32_t group = -1;
  int32_t end_token = 0;  // it holds the tokens before this position of its prefix
  PrefixHash hash;
  PrefixHash parent_hash;
  RootId root = 0;
  Retention retention;
  int64_t last_access_ms = 0;
};

class PageFileStore;
class PageStorage;

class BlockManager {
 public:
  // pools[i] serves layout.pools[i]; host_pools[i] has slots for pages of pools[i] (empty: nothing
  // is kept that the pool evicts, and no sequence is swapped out). All outlive the manager.
  BlockManager(const CacheLayout& layout, std::span<PagePool> pools,
               const BlockManagerOptions& options = {}, std::span<PagePool> host_pools = {});
  BlockManager(const BlockManager&) = delete;
  BlockManager& operator=(const BlockManager&) = delete;
  ~BlockManager();

  const CacheLayout& layout() const { return layout_; }
  int32_t block_size() const { return layout_.block_size; }
  bool has_state() const { return has_state_; }  // a group keeps recurrent states

  // Roots: (cache_salt, rope regime, private request id or 0 ...) joined by the caller into one
  // byte string that is compared exactly. Ids are never used twice. Roots without pages and tables
  // are forgotten, the longest idle first, when there are many: so intern the key at each
  // admission; an id kept for longer stays safe to use, but may share with nobody. keep = false (a
  // root of one request that bypasses the cache): its pages become blank at their last release; the
  // request's own branches share them while they live.
  // cache_salt: what of the key is part of sha256_cbor's bytes.
  RootId InternRoot(std::string_view key, bool keep = true, std::string_view cache_salt = {});
  // Appends the hashes of all full blocks of a sequence of this root that `chain` does not have
  // yet.
  void ExtendChain(RootId root, std::span<const TokenId> tokens,
                   std::vector<PrefixHash>& chain) const;

  // What the host tier gives up goes to files, and prefixes that memory does not have are looked
  // for there. REQUIRES: nothing has been interned yet; both outlive the manager; storage has the
  // bytes of all pools.
  void AttachFiles(PageFileStore& files, PageStorage& storage);
  PageFileStore* files() const { return files_; }
  // Keeps what is in the pools and the host tier in `files`; the other way round, as far as there
  // are blank pages. Between steps; due page operations are run first. They take their time: the
  // memory is copied once.
  CacheTransfer Save(PageFileStore& files, PageStorage& storage);
  CacheTransfer Load(PageFileStore& files, PageStorage& storage);

  SequenceTables NewTables(RootId root, const SequenceSpec& spec = {});

  // Longest prefix of whole blocks, shorter than `tokens`, that every group can serve; hits of all
  // groups are retained before anything is taken. Pages that the host tier has are taken and loaded
  // if there is room. chain: hashes of the full blocks of `tokens`.
  PrefixHit MatchPrefix(RootId root, std::span<const TokenId> tokens,
                        std::span<const PrefixHash> chain, const SequenceSpec& spec = {});

  // A known block may begin like the tokens after the hit and go on differently: if it saves
  // enough, its page is copied. Returns how many more tokens are in the cache now. REQUIRES: `t` is
  // a hit that was not grown yet.
  int32_t ExtendPartially(SequenceTables& t, std::span<const TokenId> tokens);

  // Room for tokens [0, num_tokens) in all groups, or false and nothing has changed. The step is
  // going to write slots [first_write, num_tokens): pages there that somebody else holds, too, are
  // replaced by private copies, whose contents the executor copies first (appended to `copies`).
  [[nodiscard]] bool Grow(SequenceTables& t, int32_t first_write, int32_t num_tokens,
                          std::vector<PageCopy>& copies);

  // The step that is being planned will compute `tokens` up to num_computed, all of them final (no
  // drafts): who comes behind in the same step may already share the blocks that it completes.
  // REQUIRES: Grow to num_computed; then Publish and Commit, or Abandon.
  void Announce(SequenceTables& t, std::span<const TokenId> tokens, int32_t num_computed,
                std::vector<PrefixHash>& chain);
  // After the step, before any Commit: what was announced is written.
  void Publish() {
    index_.Publish();
    fills_.clear();
    touched_.clear();
  }
  // Instead: the step failed. What was announced is forgotten; all its readers must be destroyed.
  void Abandon() {
    index_.Abandon();
    fills_.clear();
    touched_.clear();
  }

  // After the step: seals blocks that became full (replacing their pages by equal sealed ones if
  // there are some) and gives back pages before every group's FirstKeptPage. chain: hashes of the
  // full blocks of `tokens`, extended as needed; whoever takes tokens back shortens it, too.
  void Commit(SequenceTables& t, std::span<const TokenId> tokens, int32_t num_computed,
              std::vector<PrefixHash>& chain);

  // A second owner of the same pages, the partial tail included; nothing is copied.
  SequenceTables Fork(const SequenceTables& t);

  // As if tokens [num_tokens, ...) had never been there. The caller cuts its chain to the full
  // blocks left. REQUIRES: windowed groups still hold what num_tokens needs (max_truncate_tokens),
  // and states have been kept at it: see ResumePoint.
  void Truncate(SequenceTables& t, int32_t num_tokens);
  // The most tokens, up to num_tokens, to which `t` of num_computed tokens can be truncated; those
  // from there on are computed again. Less than num_tokens only with recurrent states.
  int32_t ResumePoint(const SequenceTables& t, int32_t num_computed, int32_t num_tokens) const;

  // Preemption without recomputing: saves the pages that no prefix keeps to the host tier. The
  // caller destroys the tables afterwards. nullopt: no tier, or too full of other sequences.
  std::optional<SwappedTables> SwapOut(const SequenceTables& t, int32_t num_computed);
  // MatchPrefix for a sequence that was swapped out: num_tokens = swapped.num_computed if its
  // prefix is still there, else what is. nullopt: no room now, with spare[i] pages of pool i left
  // (empty: none need be); no page of it was loaded.
  std::optional<PrefixHit> SwapIn(RootId root, std::span<const TokenId> tokens,
                                  std::span<const PrefixHash> chain, const SwappedTables& swapped,
                                  const SequenceSpec& spec = {},
                                  std::span<const int32_t> spare = {});

  // Tokens of whole blocks that the index knows, in whatever tier; retains nothing.
  int32_t KnownTokens(RootId root, std::span<const TokenId> tokens,
                      std::span<const PrefixHash> chain);

  // Page operations that are due before the next step writes anything. Grow takes them along.
  std::vector<PageCopy> TakeOps() {
    NoteTouched(ops_);
    return std::exchange(ops_, {});
  }
  // What kFill operations bring; kept until the step has ended.
  std::span<const std::vector<std::byte>> fills() const { return fills_; }

  // row: layout max pages entries; what the group does not keep is kNullPage.
  void FillReadRow(const SequenceTables& t, int32_t group, std::span<PageId> row) const;
  // What a step that computes positions [first_pos, first_pos + slots.size()) writes in `group`:
  // slots[i] = page * entries per page + entry, of the keys and values of position first_pos + i,
  // of the entry that it completes, or (the page itself) of the state after it; kNoSlot = nothing.
  // REQUIRES (I5): a page written is unsealed with refs == 1, as Grow leaves it, or announced.
  static constexpr int64_t kNoSlot = -1;
  void FillWriteSlots(const SequenceTables& t, int32_t group, int32_t first_pos,
                      std::span<int64_t> slots) const;
  // Of encoder positions [0, slots.size()) in a cross-attention group.
  void FillEncoderSlots(const SequenceTables& t, int32_t group, std::span<int64_t> slots) const;

  // Upper bound of pages, per pool, that a request of this shape ever holds: the prompt's full
  // pages once, and everything after them once per branch. The same arithmetic that Grow uses.
  PageNeed WorstCasePages(int32_t prompt_tokens, int32_t max_new_tokens, int32_t num_branches,
                          int32_t encoder_tokens = 0) const;
  // What admission may count on: usable pages less pinned ones.
  int32_t Capacity(size_t pool) const { return pools_[pool].num_usable() - pinned_pages(pool); }

  std::span<PagePool> pools() { return pools_; }
  std::span<const PagePool> pools() const { return pools_; }
  std::span<const PagePool> host_pools() const { return host_pools_; }

  // Milliseconds of a clock that never goes back: dates accesses, ends retentions and pins.
  void SetTime(int64_t now_ms);

  // Keeps what is cached of `tokens` until Unpin, whatever comes. least[i]: pages of pool i that
  // must stay for what is admitted. ERRORS: kNotFound (nothing of it is cached),
  // kResourceExhausted (max_pinned_share, or not enough left for what is admitted).
  absl::StatusOr<PinInfo> Pin(RootId root, std::span<const TokenId> tokens, int64_t ttl_ms,
                              const PageNeed& least);
  bool Unpin(PinId pin);
  std::vector<PinInfo> pins() const;
  size_t num_pins() const { return pins_.size(); }
  int32_t pinned_pages(size_t pool) const { return pinned_pages_[pool]; }

  // From now on `pool` has num_usable pages. Cached pages go first; pages in use beyond the size
  // are given up as they come back. retired: pages whose memory is not needed now.
  // ERRORS: kInvalidArgument if less than `least` were left beside the pins.
  absl::Status Resize(size_t pool, int32_t num_usable, int32_t least, std::vector<PageId>& retired);

  // Engine thread, not during a step. Pages of all pools, the null pages and retired ones left out.
  std::vector<BlockInfo> Inspect() const;
  BlockInfo InspectPage(size_t pool, PageId page) const;
  const PrefixIndex& index() const { return index_; }

  // Forgets all prefixes, or those of roots whose key begins so: cached pages become blank, pages
  // in use stay with their owners but are not found again, and sequences that hold sealed pages
  // seal no more of them. Pins of what is forgotten end.
  void Flush(std::string_view key_prefix = {});

  // From now on what becomes findable and what ceases to be is recorded. REQUIRES: after
  // AttachFiles, not during a step.
  void EnableEvents();
  bool has_events() const { return events_ != nullptr; }
  // What happened since the last call; the first begins with "cleared". Empty without events.
  CacheEvents TakeEvents();
  // All that is stored now. REQUIRES: between steps.
  CacheEvents SnapshotEvents() const;

  CacheStats stats() const {
    CacheStats stats = stats_;
    stats.saved += index_.num_demoted();
    return stats;
  }
  size_t num_roots() const { return index_.num_roots(); }
  size_t num_prefix_nodes() const { return index_.num_nodes(); }

  // Invariants I1-I4, I7 and I11 over all live tables and host tables (I5 is checked where slots
  // are filled, I8 holds by construction). ERRORS: kInternal naming invariant, page, values.
  absl::Status Audit(std::span<const SequenceTables* const> live,
                     std::span<const SwappedTables* const> swapped = {}) const;

 private:
  // What Grow does to one page of a table.
  enum class Change : uint8_t { kNone, kGap, kNew, kPrivateCopy, kUnseal };
  template <typename Visit>
  void ForEachChange(const SequenceTables& t, size_t group, int32_t first_write, int32_t num_tokens,
                     Visit visit) const;
  int32_t FirstKept(size_t group, int32_t num_computed) const {
    return FirstKeptPage(group_of(group), num_computed, options_.max_truncate_tokens);
  }
  PrefixHit Match(RootId root, std::span<const TokenId> tokens, std::span<const PrefixHash> chain,
                  size_t most_blocks, const SequenceSpec& spec);
  int32_t LongestServable(bool with_host);
  bool Adopt(SequenceTables& t, int32_t num_blocks);
  void LoadFromFiles(std::span<const TokenId> tokens, std::span<const PrefixHash> chain,
                     size_t most_blocks);
  void SaveToFiles(NodeId node, size_t group, PageId slot);
  void TellAll(CacheEventLog& log) const;
  void TellFile(NodeId node);
  void TellErasedFiles();
  void NoteTouched(std::span<const PageCopy> ops);
  bool IsTouched(int32_t pool, PageId page) const;
  PrefixHash NextHash(NodeId parent, std::span<const TokenId> tokens) const;
  PrefixHasher HasherOf(RootId root) const;
  void SealNext(SequenceTables& t, std::span<const TokenId> tokens, int32_t num_computed,
                const PrefixHash& hash, bool pending);
  void MergeAnnounced(SequenceTables& t);
  void Keep(const SequenceTables& t, size_t group, int32_t block, PageId page);
  void CountPins();
  absl::Status AuditTables(const SequenceTables& t) const;

  const CacheGroup& group_of(size_t group) const { return layout_.groups[group].group; }
  size_t pool_index(size_t group) const { return static_cast<size_t>(layout_.groups[group].pool); }

  const CacheLayout& layout_;
  std::span<PagePool> pools_;
  std::span<PagePool> host_pools_;
  const BlockManagerOptions options_;
  const bool has_state_;
  std::vector<PageCopy> ops_;
  std::vector<std::vector<std::byte>> fills_;
  PageFileStore* files_ = nullptr;
  PageStorage* storage_ = nullptr;
  // With files: pages of operations that were handed out and may not have run yet.
  absl::flat_hash_set<std::pair<int32_t, PageId>> touched_;
  struct FileBlocks;
  std::unique_ptr<CacheEventLog> events_;
  std::shared_ptr<FileBlocks> file_blocks_;  // with events and files
  PrefixHasher hasher_;                      // without a salt
  PrefixIndex index_;
  CacheStats stats_;
  int64_t now_ms_ = 0;
  struct PinnedPrefix {
    PinInfo info;
    SequenceTables tables;
  };
  std::map<PinId, PinnedPrefix> pins_;
  std::vector<int32_t> pinned_pages_;  // per pool, distinct
  PinId next_pin_ = 1;
  // Reused from call to call: a step allocates nothing here.
  std::vector<NodeId> path_;
  std::vector<int32_t> streaks_;  // [group][blocks of path_]: pages there without a gap
  std::vector<std::vector<PageId>> fresh_;
  PageNeed need_;
};

}  // namespace quire
