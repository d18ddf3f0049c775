// paged_cache/prefix_index.h -- which pages hold the cache of which token prefix (contract C2).
//
// A tree of interned prefixes. The root of a tree is an interned byte string (what else than tokens
// decides a page's content); each node below it is one block of tokens after its parent, and keeps
// for every cache group the content of the page that ends there, if there is one: a sealed page, or
// a slot of the host tier. A prefix is found by walking down from the root: the hash leads to a
// node, whose parent must be the node before and whose tokens must be equal. So equal hashes never
// join different prefixes, whatever the hash; of two prefixes that collide, the second is not
// indexed. As all groups meet in the node, "the hit is the longest prefix that every group can
// serve" is a question about one path.
//
// A node lives while it has content, a child or a holder (PrefixCursor), so a parent's id cannot be
// taken by another prefix as long as somebody could continue from it.
//
// Content of a group that keeps all (full, latent, compressed ...) is of use only with all before
// it: when it is lost, its node and all below are detached: they lose all content and are never
// found again. With a host tier an evicted page is not lost: it moves there.
//
// A pending node's pages are written in the step that is being planned; Publish() or Abandon() ends
// that.
//
// Thread: engine thread only. BlockManager owns the only one.
//
// Invariants, checked by Audit():
//   I3   a sealed page or slot is the content of exactly the node and group in its tag.
//   I11  an attached node has an attached parent and content in every group that keeps all (if a
//        page of it ends there); a detached node has none; it is the index's entry for its hash.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/hash/hash.h"
#include "base/huge_pages.h"
#include "base/status.h"
#include "base/types.h"
#include "paged_cache/cache_events.h"
#include "paged_cache/cache_layout.h"
#include "paged_cache/page_copy.h"
#include "paged_cache/page_pool.h"
#include "paged_cache/prefix_hash.h"
#include "paged_cache/sha256.h"

namespace quire {

// A root of prefix chains. Ids are never used twice.
using RootId = int64_t;

using NodeId = int32_t;
inline constexpr NodeId kNoNode = -1;

class PrefixIndex final : public DropListener {
 public:
  // Roots that nobody uses are forgotten beyond this number, the longest idle first.
  static constexpr size_t kMaxIdleRoots = 1024;

  // pools[i] serves layout.pools[i], host_pools[i] keeps slots for what pools[i] evicts (empty: no
  // host tier); all outlive the index. hash_bits: 0..128, of each hash that are looked at; less
  // than 128 for tests of collisions only. ops: where saves to host slots are noted.
  PrefixIndex(const CacheLayout& layout, std::span<PagePool> pools, std::span<PagePool> host_pools,
              int32_t hash_bits, std::vector<PageCopy>& ops);
  ~PrefixIndex();
  PrefixIndex(const PrefixIndex&) = delete;
  PrefixIndex& operator=(const PrefixIndex&) = delete;

  // Called when the host tier gives up content that is not kept elsewhere.
  using OnHostEvict = std::function<void(NodeId node, size_t group, PageId slot)>;
  void set_on_host_evict(OnHostEvict on_evict) { on_host_evict_ = std::move(on_evict); }
  // From now on every node has a file key (page_file_format.h). REQUIRES: there are no nodes.
  void KeepFileKeys() { keeps_file_keys_ = true; }
  const Sha256Digest& file_key(NodeId node) const { return file_keys_[static_cast<size_t>(node)]; }

  // From now on `events` hears of what is stored and removed; null: nobody does.
  void set_events(CacheEventLog* events) { events_ = events; }
  // All that is stored now.
  void TellAll(CacheEventLog& log) const;
  CacheEventLog::Block EventBlock(NodeId node, size_t group) const;

  // The root of `key`; the same for equal keys while it is known. With keep = false its pages
  // become blank, not cached, when their last owner goes. An idle root that was forgotten comes
  // back without its key when it is used again: safe, but shared with nobody.
  RootId InternRoot(std::string_view key, bool keep, std::string_view cache_salt = {});
  NodeId RootNode(RootId root);

  // The child of `parent` with these tokens, or kNoNode.
  NodeId Find(NodeId parent, const PrefixHash& hash, std::span<const TokenId> tokens) const;
  // The nodes of the longest known prefix of `tokens`, the root first: at most `most` blocks.
  // Replaces `path`. Memory is fetched ahead, so a long chain costs little more than its bytes.
  void FindPath(NodeId root, std::span<const PrefixHash> chain, std::span<const TokenId> tokens,
                size_t most, std::vector<NodeId>& path) const;
  // The child of `node` that shares most leading tokens with `tokens`, of those added last, and how
  // many. Pending ones do not count.
  std::pair<NodeId, int32_t> FindPartial(NodeId node, std::span<const TokenId> tokens) const;
  // The same, made if need be; kNoNode if another child has the same (cut) hash. A new node must
  // get its pages (SealPage) before anything else happens. REQUIRES: parent attached.
  NodeId FindOrAdd(NodeId parent, const PrefixHash& hash, std::span<const TokenId> tokens);

  // The sealed page of (node, group), or kNullPage.
  PageId page(NodeId node, size_t group) const { return std::max(content(node, group), 0); }
  // The slot of the host tier that has it, or kNullPage.
  PageId slot(NodeId node, size_t group) const { return std::max(-content(node, group), 0); }
  bool has_content(NodeId node, size_t group) const { return content(node, group) != 0; }
  void SealPage(NodeId node, size_t group, PageId page);
  // The content of (node, group) moves from its slot, whose load the caller has noted, to `page`.
  void MoveToPage(NodeId node, size_t group, PageId page);

  // The content of (node, group), if there is some, is not needed any more: the caller has another.
  void DropContent(NodeId node, size_t group, DropReason reason);

  // Marks a node whose pages are written in this step.
  void SetPending(NodeId node);
  bool is_pending(NodeId node) const { return at(node).pending; }
  size_t num_pending() const { return pending_.size(); }
  // Whether a slot's content comes with an operation of this step, which may not have run yet.
  bool is_unsaved(const PagePool& host_pool, PageId slot) const {
    return unsaved_.contains({&host_pool, slot});
  }
  int64_t num_demoted() const { return num_demoted_; }  // pages moved to the host tier
  void Publish();
  void Abandon();

  bool is_detached(NodeId node) const { return at(node).detached; }
  int32_t depth(NodeId node) const { return at(node).depth; }  // blocks; 0 for a root
  NodeId parent(NodeId node) const { return at(node).parent; }
  RootId root(NodeId node) const { return at(node).root; }
  PrefixHash hash(NodeId node) const;
  std::span<const TokenId> tokens_of(NodeId node) const {
    return {tokens_.data() + static_cast<size_t>(node) * block_size_, block_size_};
  }
  std::string_view root_key(RootId root) const;  // empty if forgotten
  std::string_view cache_salt(RootId root) const;
  bool root_keeps(RootId root) const;
  bool is_named(RootId root) const;
  // Attached nodes, parents before children, roots left out; at most `most`.
  void ForEach(const std::function<void(NodeId)>& visit, size_t most = SIZE_MAX) const;
  int32_t num_children(NodeId node) const;  // attached ones
  NodeId Ancestor(NodeId node, int32_t depth) const;

  void Retain(NodeId node);
  void Release(NodeId node);

  // Pool `pool` drops `page`: forgets it, and what has become useless with it.
  void OnDrop(PagePool& pool, PageId page, DropReason reason) override;
  // Nothing sealed until now below roots whose key begins so will ever be found again; cached pages
  // become blank.
  void Flush(std::string_view key_prefix = {});

  size_t num_roots() const { return roots_.size(); }
  size_t num_nodes() const { return nodes_.size() - num_free_; }
  absl::Status Audit() const;

 private:
  // One cache line: of many thousands, each that is looked at is a miss.
  struct alignas(64) Node {
    NodeId parent = kNoNode;
    NodeId first_child = kNoNode;
    NodeId prev_sibling = kNoNode;
    NodeId next_sibling = kNoNode;
    uint64_t hash_lo = 0;
    uint64_t hash_hi = 0;
    RootId root = 0;
    int32_t depth = 0;
    int32_t holders = 0;       // PrefixCursors
    int16_t num_contents = 0;  // over all groups
    bool pending = false;
    bool detached = false;
    bool in_use = false;  // false: on the free list
  };
  struct Root {
    std::string key;
    std::string cache_salt;
    NodeId node = kNoNode;
    bool keep = true;
    bool named = true;        // findable by its key
    uint64_t idle_since = 0;  // key in idle_; 0 = in use
  };
  static_assert(sizeof(Node) == 64);
  const Node& at(NodeId node) const { return nodes_[static_cast<size_t>(node)]; }
  Node& at(NodeId node) { return nodes_[static_cast<size_t>(node)]; }
  int32_t content(NodeId node, size_t group) const {
    return contents_[static_cast<size_t>(node) * num_groups_ + group];
  }
  int32_t& content(NodeId node, size_t group) {
    return contents_[static_cast<size_t>(node) * num_groups_ + group];
  }
  int64_t TagOf(NodeId node, size_t group) const {
    return int64_t{node} * static_cast<int64_t>(num_groups_) + static_cast<int64_t>(group);
  }
  uint64_t KeyOf(RootId root, uint64_t hash_lo, uint64_t hash_hi) const;
  uint64_t KeyOf(RootId root, const PrefixHash& hash) const {
    return KeyOf(root, hash.lo, hash.hi);
  }
  uint64_t KeyOf(const Node& n) const { return KeyOf(n.root, n.hash_lo, n.hash_hi); }
  void SetMoreHash(NodeId node, uint64_t lo, uint64_t hi);
  void Prefetch(NodeId node) const;
  PagePool& pool_of(size_t group) const {
    return pools_[static_cast<size_t>(layout_.groups[group].pool)];
  }
  PagePool& host_of(size_t group) const {
    return host_pools_[static_cast<size_t>(layout_.groups[group].pool)];
  }
  bool keeps_all(size_t group) const { return KeepsAll(layout_.groups[group].group.kind); }
  // Whether a page of the group ends at this depth.
  bool ends_page(size_t group, int32_t depth) const {
    return depth * layout_.block_size % layout_.groups[group].group.page_size == 0;
  }

  RootId AddRoot(RootId id, std::string_view key, bool keep, bool named,
                 std::string_view cache_salt);
  NodeId NewNode(NodeId parent, RootId root);
  void Tell(NodeId node, size_t group, CacheTier tier, bool stored);
  bool Demote(NodeId node, size_t group, PageId page, DropReason reason);
  void DetachSubtree(NodeId top, DropReason reason);
  bool FreeIfUnused(NodeId node);
  void Free(NodeId node);
  void Prune(NodeId node);
  void UpdateIdle(NodeId root_node);

  const CacheLayout& layout_;
  std::span<PagePool> pools_;
  std::span<PagePool> host_pools_;
  std::vector<PageCopy>& ops_;
  const size_t block_size_;
  const size_t num_groups_;
  const PrefixHash hash_mask_;
  template <typename T>
  using Table = std::vector<T, HugePageAllocator<T>>;
  Table<Node> nodes_;
  Table<TokenId> tokens_;    // [nodes, block_size]; roots' are unused
  Table<int32_t> contents_;  // [nodes, groups]: page, minus slot, or 0
  // [nodes]: the second half of each hash; shorter, or empty, where it is zero, as all but
  // SHA-256's are.
  std::vector<std::pair<uint64_t, uint64_t>> more_hash_;
  NodeId first_free_ = kNoNode;  // linked by next_sibling
  size_t num_free_ = 0;
  std::vector<NodeId> pending_;
  absl::flat_hash_set<std::pair<const PagePool*, PageId>> unsaved_;
  int64_t num_demoted_ = 0;
  bool keeps_file_keys_ = false;
  std::vector<Sha256Digest> file_keys_;  // [nodes] if they are kept
  OnHostEvict on_host_evict_;
  CacheEventLog* events_ = nullptr;
  std::vector<NodeId> subtree_;  // scratch of DetachSubtree
  // Attached nodes but roots, by KeyOf.
  absl::flat_hash_map<uint64_t, NodeId, absl::Hash<uint64_t>, std::equal_to<>,
                      HugePageAllocator<std::pair<const uint64_t, NodeId>>>
      index_;
  absl::flat_hash_map<RootId, Root> roots_;
  absl::flat_hash_map<std::string, RootId> root_of_key_;
  std::map<uint64_t, RootId> idle_;  // by the time they became idle
  uint64_t idle_clock_ = 0;
  RootId next_root_ = 1;
};

// Where a sequence stands in its tree; keeps that node alive. Move-only, copied by Fork().
class PrefixCursor {
 public:
  PrefixCursor() = default;
  PrefixCursor(PrefixIndex& index, NodeId node) : index_(&index), node_(node) {
    index.Retain(node);
  }
  PrefixCursor(PrefixCursor&& other) noexcept
      : index_(std::exchange(other.index_, nullptr)), node_(std::exchange(other.node_, kNoNode)) {}
  PrefixCursor& operator=(PrefixCursor&& other) noexcept {
    std::swap(index_, other.index_);
    std::swap(node_, other.node_);
    return *this;
  }
  ~PrefixCursor() {
    if (index_ != nullptr) index_->Release(node_);
  }

  NodeId node() const { return node_; }
  void MoveTo(NodeId node) {
    index_->Retain(node);
    index_->Release(std::exchange(node_, node));
  }
  PrefixCursor Fork() const {
    return index_ == nullptr ? PrefixCursor() : PrefixCursor(*index_, node_);
  }

 private:
  PrefixIndex* index_ = nullptr;
  NodeId node_ = kNoNode;
};

}  // namespace quire
