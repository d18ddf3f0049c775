#include "paged_cache/prefix_index.h"

#include <algorithm>

namespace quire {
namespace {

template <typename... Args>
absl::Status Broken(fmt::format_string<Args...> format, Args&&... args) {
  return Error(absl::StatusCode::kInternal, format, std::forward<Args>(args)...);
}

}  // namespace

PrefixIndex::PrefixIndex(const CacheLayout& layout, std::span<PagePool> pools, int32_t hash_bits)
    : layout_(layout),
      pools_(pools),
      block_size_(static_cast<size_t>(layout.block_size)),
      num_groups_(layout.groups.size()),
      hash_bits_(hash_bits) {
  CHECK(hash_bits >= 0 && hash_bits <= 128, "hash_bits={}", hash_bits);
  for (PagePool& pool : pools_) pool.set_listener(this);
}

PrefixIndex::~PrefixIndex() {
  for (PagePool& pool : pools_) pool.set_listener(nullptr);
}

PrefixHash PrefixIndex::Cut(const PrefixHash& hash) const {
  const auto mask = [](int32_t bits) {
    return bits >= 64 ? ~uint64_t{0} : (uint64_t{1} << std::max(bits, 0)) - 1;
  };
  return {hash.lo & mask(hash_bits_), hash.hi & mask(hash_bits_ - 64)};
}

// ---- roots ----

RootId PrefixIndex::InternRoot(std::string_view key, bool keep) {
  const auto it = root_of_key_.find(std::string(key));
  if (it != root_of_key_.end()) return it->second;
  return AddRoot(next_root_++, key, keep, /*named=*/true);
}

RootId PrefixIndex::AddRoot(RootId id, std::string_view key, bool keep, bool named) {
  const NodeId node = NewNode(kNoNode, id);
  roots_.emplace(id, Root{std::string(key), node, keep, named});
  if (named) root_of_key_.emplace(key, id);
  UpdateIdle(node);
  return id;
}

NodeId PrefixIndex::RootNode(RootId root) {
  CHECK(root > 0 && root < next_root_, "root={} was never interned", root);
  auto it = roots_.find(root);
  if (it == roots_.end()) {
    AddRoot(root, {}, /*keep=*/false, /*named=*/false);
    it = roots_.find(root);
  }
  return it->second.node;
}

// Bounds memory under a stream of roots that are used once (salts, private roots).
void PrefixIndex::UpdateIdle(NodeId root_node) {
  const Node& n = at(root_node);
  Root& root = roots_.at(n.root);
  const bool idle = n.holders == 0 && n.first_child == kNoNode;
  if (idle == (root.idle_since != 0)) return;
  if (!idle) {
    idle_.erase(std::exchange(root.idle_since, 0));
    return;
  }
  root.idle_since = ++idle_clock_;
  idle_.emplace(root.idle_since, n.root);
  if (idle_.size() <= kMaxIdleRoots) return;
  const auto gone = roots_.find(idle_.begin()->second);
  idle_.erase(idle_.begin());
  if (gone->second.named) root_of_key_.erase(gone->second.key);
  at(gone->second.node) = Node{};
  free_nodes_.push_back(gone->second.node);
  roots_.erase(gone);
}

// ---- nodes ----

NodeId PrefixIndex::NewNode(NodeId parent, RootId root) {
  NodeId id;
  if (free_nodes_.empty()) {
    id = static_cast<NodeId>(nodes_.size());
    nodes_.emplace_back();
    tokens_.resize(tokens_.size() + block_size_);
    pages_.resize(pages_.size() + num_groups_, kNullPage);
  } else {
    id = free_nodes_.back();
    free_nodes_.pop_back();
  }
  Node& n = at(id);
  n = Node{.parent = parent, .root = root, .in_use = true};
  if (parent == kNoNode) return id;
  Node& p = at(parent);
  n.depth = p.depth + 1;
  n.next_sibling = p.first_child;
  if (p.first_child != kNoNode) at(p.first_child).prev_sibling = id;
  p.first_child = id;
  if (p.parent == kNoNode) UpdateIdle(parent);
  return id;
}

NodeId PrefixIndex::Find(NodeId parent, const PrefixHash& hash,
                         std::span<const TokenId> tokens) const {
  const auto it = index_.find(Key{parent, Cut(hash)});
  if (it == index_.end()) return kNoNode;
  const std::span<const TokenId> own = tokens_of(it->second);
  return std::equal(own.begin(), own.end(), tokens.begin(), tokens.end()) ? it->second : kNoNode;
}

NodeId PrefixIndex::FindOrAdd(NodeId parent, const PrefixHash& hash,
                              std::span<const TokenId> tokens) {
  DCHECK(tokens.size() == block_size_ && !at(parent).detached);
  const NodeId found = Find(parent, hash, tokens);
  if (found != kNoNode) return found;
  const Key key{parent, Cut(hash)};
  if (index_.contains(key)) return kNoNode;  // other tokens: the newcomer stays private
  const NodeId node = NewNode(parent, at(parent).root);
  at(node).hash = key.hash;
  std::copy(tokens.begin(), tokens.end(),
            tokens_.begin() + static_cast<int64_t>(node) * static_cast<int64_t>(block_size_));
  index_.emplace(key, node);
  return node;
}

void PrefixIndex::SealPage(NodeId node, size_t group, PageId page) {
  PageId& slot = pages_[static_cast<size_t>(node) * num_groups_ + group];
  CHECK(slot == kNullPage && !at(node).detached, "node {} group {} has page {}", node, group, slot);
  slot = page;
  ++at(node).num_pages;
  pool_of(group).Seal(
      page, int64_t{node} * static_cast<int64_t>(num_groups_) + static_cast<int64_t>(group),
      roots_.at(at(node).root).keep);
}

NodeId PrefixIndex::Ancestor(NodeId node, int32_t depth) const {
  CHECK(depth >= 0 && depth <= at(node).depth, "depth={} below node {}", depth, node);
  while (at(node).depth > depth) node = at(node).parent;
  return node;
}

void PrefixIndex::Retain(NodeId node) {
  ++at(node).holders;
  if (at(node).parent == kNoNode) UpdateIdle(node);
}

void PrefixIndex::Release(NodeId node) {
  CHECK(at(node).holders > 0, "node {} released twice", node);
  --at(node).holders;
  Prune(node);
}

// ---- dropping ----

void PrefixIndex::OnDrop(PagePool& pool, PageId page, DropReason reason) {
  const auto node = static_cast<NodeId>(pool.tag(page) / static_cast<int64_t>(num_groups_));
  const auto group = static_cast<size_t>(pool.tag(page) % static_cast<int64_t>(num_groups_));
  CHECK(&pool == &pool_of(group) && this->page(node, group) == page,
        "page {} is not the page of node {} in group {}", page, node, group);
  DropPage(node, group, reason);
  if (is_full(group)) {
    DetachSubtree(node, DropReason::kOrphaned);
  } else {
    Prune(node);
  }
}

void PrefixIndex::DropPage(NodeId node, size_t group, DropReason reason) {
  const PageId page =
      std::exchange(pages_[static_cast<size_t>(node) * num_groups_ + group], kNullPage);
  --at(node).num_pages;
  pool_of(group).Unseal(page, reason);
}

void PrefixIndex::DetachSubtree(NodeId top, DropReason reason) {
  const NodeId above = at(top).parent;
  std::vector<NodeId> nodes = {top};  // parents before children
  for (size_t i = 0; i < nodes.size(); ++i) {
    for (NodeId c = at(nodes[i]).first_child; c != kNoNode; c = at(c).next_sibling) {
      nodes.push_back(c);
    }
  }
  for (auto it = nodes.rbegin(); it != nodes.rend(); ++it) {
    Node& n = at(*it);
    if (!n.detached) index_.erase(Key{n.parent, n.hash});
    n.detached = true;
    for (size_t g = 0; g < num_groups_; ++g) {
      if (page(*it, g) != kNullPage) DropPage(*it, g, reason);
    }
    FreeIfUnused(*it);
  }
  Prune(above);
}

void PrefixIndex::Flush() {
  std::vector<NodeId> tops;
  for (const auto& [id, root] : roots_) {
    for (NodeId c = at(root.node).first_child; c != kNoNode; c = at(c).next_sibling) {
      tops.push_back(c);
    }
  }
  for (const NodeId top : tops) DetachSubtree(top, DropReason::kFlushed);
}

bool PrefixIndex::FreeIfUnused(NodeId node) {
  const Node n = at(node);
  if (n.holders > 0 || n.num_pages > 0 || n.first_child != kNoNode) return false;
  if (!n.detached) index_.erase(Key{n.parent, n.hash});
  (n.prev_sibling == kNoNode ? at(n.parent).first_child : at(n.prev_sibling).next_sibling) =
      n.next_sibling;
  if (n.next_sibling != kNoNode) at(n.next_sibling).prev_sibling = n.prev_sibling;
  at(node) = Node{};
  free_nodes_.push_back(node);
  return true;
}

// Frees `node` and every ancestor that has become useless with it.
void PrefixIndex::Prune(NodeId node) {
  while (at(node).parent != kNoNode) {
    const NodeId above = at(node).parent;
    if (!FreeIfUnused(node)) return;
    node = above;
  }
  UpdateIdle(node);
}

absl::Status PrefixIndex::Audit() const {
  std::vector<int64_t> sealed(pools_.size());
  size_t attached = 0;
  for (NodeId id = 0; id < static_cast<NodeId>(nodes_.size()); ++id) {
    const Node& n = at(id);
    if (!n.in_use) continue;
    int32_t num_pages = 0;
    for (size_t g = 0; g < num_groups_; ++g) {
      const PageId p = page(id, g);
      if (p == kNullPage) {
        if (is_full(g) && n.parent != kNoNode && !n.detached) {
          return Broken("I11: node {} is indexed, its page of full group {} is gone", id, g);
        }
        continue;
      }
      ++num_pages;
      ++sealed[static_cast<size_t>(layout_.groups[g].pool)];
      const PagePool& pool = pool_of(g);
      const int64_t tag = int64_t{id} * static_cast<int64_t>(num_groups_) + static_cast<int64_t>(g);
      if (!pool.IsSealed(p) || pool.tag(p) != tag) {
        return Broken("I3: node {} group {} has page {}, sealed={} tag={}, expected {}", id, g, p,
                      pool.IsSealed(p), pool.tag(p), tag);
      }
    }
    if (num_pages != n.num_pages || (n.detached && num_pages > 0)) {
      return Broken("I11: node {} has {} pages, counted {}, detached={}", id, num_pages,
                    n.num_pages, n.detached);
    }
    if (n.parent == kNoNode) continue;
    const Node& p = at(n.parent);
    if (!p.in_use || p.depth + 1 != n.depth || p.root != n.root || (p.detached && !n.detached)) {
      return Broken("I11: node {} at depth {} has parent {} at depth {}, detached={}", id, n.depth,
                    n.parent, p.depth, p.detached);
    }
    if (n.holders == 0 && n.num_pages == 0 && n.first_child == kNoNode) {
      return Broken("I11: node {} has no page, child or holder", id);
    }
    if (n.detached) continue;
    ++attached;
    const auto it = index_.find(Key{n.parent, n.hash});
    if (it == index_.end() || it->second != id) {
      return Broken("I3: node {} is not what its parent {} and hash lead to", id, n.parent);
    }
  }
  if (attached != index_.size()) {
    return Broken("I3: {} attached nodes, {} indexed", attached, index_.size());
  }
  for (size_t i = 0; i < pools_.size(); ++i) {
    int64_t count = 0;
    for (PageId p = 1; p <= pools_[i].num_usable(); ++p) count += pools_[i].IsSealed(p);
    if (count != sealed[i]) {
      return Broken("I3: pool {} has {} sealed pages, {} are in the index", i, count, sealed[i]);
    }
  }
  return absl::OkStatus();
}

}  // namespace quire
