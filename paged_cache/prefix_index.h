// paged_cache/prefix_index.h -- which pages hold the cache of which token prefix (contract C2).
//
// A tree of interned prefixes. The root of a tree is an interned byte string (what else than tokens
// decides a page's content); each node below it is one page of tokens after its parent, and keeps
// for every cache group the sealed page that holds its content, if there is one. A prefix is found
// by walking down from the root: the key of a step is (parent node, hash), and the tokens must be
// equal, too. So equal hashes never join different prefixes, whatever the hash; if two children of
// one parent collide, the second is not indexed. As all groups meet in the node, "the hit is the
// longest prefix that every group can serve" is a question about one path.
//
// A node lives while it has a page, a child or a holder (PrefixCursor), so a parent's id cannot be
// taken by another prefix as long as somebody could continue from it.
//
// A prefix of a full-attention group is of use only with all pages before it: when such a page is
// dropped, its node and all below are detached: they lose all pages and are never found again.
//
// Thread: engine thread only. BlockManager owns the only one.
//
// Invariants, checked by Audit():
//   I3   a sealed page is the page of exactly the node and group in its tag, with its generation.
//   I11  an attached node has an attached parent and pages in every full group; a detached node has
//        none; it is the index's entry for (parent, hash of its tokens); its tokens are kept.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "base/status.h"
#include "base/types.h"
#include "paged_cache/cache_layout.h"
#include "paged_cache/page_pool.h"
#include "paged_cache/prefix_hash.h"

namespace quire {

// A root of prefix chains. Ids are never used twice.
using RootId = int64_t;

using NodeId = int32_t;
inline constexpr NodeId kNoNode = -1;

class PrefixIndex final : public DropListener {
 public:
  // Roots that nobody uses are forgotten beyond this number, the longest idle first.
  static constexpr size_t kMaxIdleRoots = 1024;

  // pools[i] serves layout.pools[i]; all outlive the index. hash_bits: 0..128, of each hash that
  // are looked at; less than 128 for tests of collisions only.
  PrefixIndex(const CacheLayout& layout, std::span<PagePool> pools, int32_t hash_bits);
  ~PrefixIndex();
  PrefixIndex(const PrefixIndex&) = delete;
  PrefixIndex& operator=(const PrefixIndex&) = delete;

  // The root of `key`; the same for equal keys while it is known. With keep = false its pages
  // become blank, not cached, when their last owner goes. An idle root that was forgotten comes
  // back without its key when it is used again: safe, but shared with nobody.
  RootId InternRoot(std::string_view key, bool keep);
  NodeId RootNode(RootId root);

  // The child of `parent` with these tokens, or kNoNode.
  NodeId Find(NodeId parent, const PrefixHash& hash, std::span<const TokenId> tokens) const;
  // The same, made if need be; kNoNode if another child has the same (cut) hash. A new node must
  // get its pages (SealPage) before anything else happens. REQUIRES: parent attached.
  NodeId FindOrAdd(NodeId parent, const PrefixHash& hash, std::span<const TokenId> tokens);

  // The sealed page of (node, group), or kNullPage.
  PageId page(NodeId node, size_t group) const { return pages_of(node)[group]; }
  void SealPage(NodeId node, size_t group, PageId page);

  bool is_detached(NodeId node) const { return at(node).detached; }
  int32_t depth(NodeId node) const { return at(node).depth; }  // pages; 0 for a root
  NodeId Ancestor(NodeId node, int32_t depth) const;

  void Retain(NodeId node);
  void Release(NodeId node);

  // Pool `pool` drops `page`: forgets it, and what has become useless with it.
  void OnDrop(PagePool& pool, PageId page, DropReason reason) override;
  // Nothing sealed until now will ever be found again; cached pages become blank.
  void Flush();

  size_t num_roots() const { return roots_.size(); }
  size_t num_nodes() const { return nodes_.size() - free_nodes_.size(); }
  absl::Status Audit() const;

 private:
  struct Node {
    NodeId parent = kNoNode;
    NodeId first_child = kNoNode;
    NodeId prev_sibling = kNoNode;
    NodeId next_sibling = kNoNode;
    PrefixHash hash;  // cut to hash_bits
    RootId root = 0;
    int32_t depth = 0;
    int32_t holders = 0;    // PrefixCursors
    int32_t num_pages = 0;  // over all groups
    bool detached = false;
    bool in_use = false;  // false: on the free list
  };
  struct Root {
    std::string key;
    NodeId node = kNoNode;
    bool keep = true;
    bool named = true;        // findable by its key
    uint64_t idle_since = 0;  // key in idle_; 0 = in use
  };
  struct Key {
    NodeId parent;
    PrefixHash hash;
    friend bool operator==(const Key&, const Key&) = default;
    template <typename H>
    friend H AbslHashValue(H h, const Key& k) {
      return H::combine(std::move(h), k.parent, k.hash);
    }
  };

  const Node& at(NodeId node) const { return nodes_[static_cast<size_t>(node)]; }
  Node& at(NodeId node) { return nodes_[static_cast<size_t>(node)]; }
  std::span<const PageId> pages_of(NodeId node) const {
    return {pages_.data() + static_cast<size_t>(node) * num_groups_, num_groups_};
  }
  std::span<const TokenId> tokens_of(NodeId node) const {
    return {tokens_.data() + static_cast<size_t>(node) * block_size_, block_size_};
  }
  PrefixHash Cut(const PrefixHash& hash) const;
  PagePool& pool_of(size_t group) const {
    return pools_[static_cast<size_t>(layout_.groups[group].pool)];
  }
  bool is_full(size_t group) const { return layout_.groups[group].group.kind == CacheKind::kFull; }

  RootId AddRoot(RootId id, std::string_view key, bool keep, bool named);
  NodeId NewNode(NodeId parent, RootId root);
  void DropPage(NodeId node, size_t group, DropReason reason);
  void DetachSubtree(NodeId top, DropReason reason);
  bool FreeIfUnused(NodeId node);
  void Prune(NodeId node);
  void UpdateIdle(NodeId root_node);

  const CacheLayout& layout_;
  std::span<PagePool> pools_;
  const size_t block_size_;
  const size_t num_groups_;
  const int32_t hash_bits_;
  std::vector<Node> nodes_;
  std::vector<TokenId> tokens_;  // [nodes, block_size]; roots' are unused
  std::vector<PageId> pages_;    // [nodes, groups]
  std::vector<NodeId> free_nodes_;
  absl::flat_hash_map<Key, NodeId> index_;  // attached nodes but roots
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
