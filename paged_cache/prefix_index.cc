#include "paged_cache/prefix_index.h"

#include <algorithm>
#include <array>
#include <cstdlib>

#include "absl/strings/string_view.h"
#include "paged_cache/cache_files.h"

namespace quire {
namespace {

PrefixHash MaskOf(int32_t bits) {
  const auto mask = [](int32_t n) {
    return n >= 64 ? ~uint64_t{0} : (uint64_t{1} << std::max(n, 0)) - 1;
  };
  return {mask(bits), mask(bits - 64)};
}

// Children looked at for a partial hit: the ones added last, which are likely still of use.
constexpr int kMaxPartialChildren = 64;

// What lists of a step's nodes have room for from the start.
constexpr size_t kScratch = 1024;

}  // namespace

PrefixIndex::PrefixIndex(const CacheLayout& layout, std::span<PagePool> pools,
                         std::span<PagePool> host_pools, int32_t hash_bits,
                         std::vector<PageCopy>& ops)
    : layout_(layout),
      pools_(pools),
      host_pools_(host_pools),
      ops_(ops),
      block_size_(static_cast<size_t>(layout.block_size)),
      num_groups_(layout.groups.size()),
      hash_mask_(MaskOf(hash_bits)) {
  CHECK(hash_bits >= 0 && hash_bits <= 128, "hash_bits={}", hash_bits);
  CHECK(host_pools.empty() || host_pools.size() == pools.size(), "{} host pools for {}",
        host_pools.size(), pools.size());
  // Room for a node per page: the step itself then allocates nothing. Memory that is not touched
  // costs nothing.
  size_t most = 64;
  for (PagePool& pool : pools_) {
    pool.set_listener(this);
    most += static_cast<size_t>(pool.num_usable());
  }
  for (PagePool& pool : host_pools_) {
    pool.set_listener(this);
    most += static_cast<size_t>(pool.num_usable());
  }
  nodes_.reserve(most);
  tokens_.reserve(most * block_size_);
  contents_.reserve(most * num_groups_);
  index_.reserve(most);
  pending_.reserve(kScratch);
  subtree_.reserve(kScratch);
}

PrefixIndex::~PrefixIndex() {
  for (PagePool& pool : pools_) pool.set_listener(nullptr);
  for (PagePool& pool : host_pools_) pool.set_listener(nullptr);
}

// Of all that decides where a prefix is looked for. The tree decides what is found.
uint64_t PrefixIndex::KeyOf(RootId root, uint64_t hash_lo, uint64_t hash_hi) const {
  constexpr uint64_t kOdd = 0x9e3779b97f4a7c15;
  return (hash_lo & hash_mask_.lo) ^ ((hash_hi & hash_mask_.hi) * kOdd) ^
         (static_cast<uint64_t>(root) * 0xd1b54a32d192ed03);
}

// ---- roots ----

RootId PrefixIndex::InternRoot(std::string_view key, bool keep, std::string_view cache_salt) {
  const auto it = root_of_key_.find(absl::string_view(key.data(), key.size()));
  if (it != root_of_key_.end()) return it->second;
  return AddRoot(next_root_++, key, keep, /*named=*/true, cache_salt);
}

RootId PrefixIndex::AddRoot(RootId id, std::string_view key, bool keep, bool named,
                            std::string_view cache_salt) {
  const NodeId node = NewNode(kNoNode, id);
  roots_.emplace(id, Root{std::string(key), std::string(cache_salt), node, keep, named});
  if (keeps_file_keys_) {
    file_keys_[static_cast<size_t>(node)] = RootPageKey(FileRootBytes(key, cache_salt));
  }
  if (named) root_of_key_.emplace(key, id);
  UpdateIdle(node);
  return id;
}

NodeId PrefixIndex::RootNode(RootId root) {
  CHECK(root > 0 && root < next_root_, "root={} was never interned", root);
  auto it = roots_.find(root);
  if (it == roots_.end()) {
    AddRoot(root, {}, /*keep=*/false, /*named=*/false, {});
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
  Free(gone->second.node);
  roots_.erase(gone);
}

// ---- nodes ----

NodeId PrefixIndex::NewNode(NodeId parent, RootId root) {
  NodeId id;
  if (first_free_ == kNoNode) {
    id = static_cast<NodeId>(nodes_.size());
    nodes_.emplace_back();
    tokens_.resize(tokens_.size() + block_size_);
    contents_.resize(contents_.size() + num_groups_, 0);
    if (keeps_file_keys_) file_keys_.emplace_back();
  } else {
    id = first_free_;
    first_free_ = at(id).next_sibling;
    --num_free_;
  }
  Node& n = at(id);
  n = Node{.parent = parent, .root = root, .in_use = true};
  SetMoreHash(id, 0, 0);
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
  const uint64_t key = KeyOf(at(parent).root, hash);
  index_.prefetch(key);  // both lines that the search reads, at once
  const auto it = index_.find(key);
  if (it == index_.end()) return kNoNode;
  Prefetch(it->second);
  if (at(it->second).parent != parent) return kNoNode;
  const std::span<const TokenId> own = tokens_of(it->second);
  return std::equal(own.begin(), own.end(), tokens.begin(), tokens.end()) ? it->second : kNoNode;
}

void PrefixIndex::SetMoreHash(NodeId node, uint64_t lo, uint64_t hi) {
  const auto i = static_cast<size_t>(node);
  if ((lo | hi) != 0 && i >= more_hash_.size()) more_hash_.resize(nodes_.capacity());
  if (i < more_hash_.size()) more_hash_[i] = {lo, hi};
}

PrefixHash PrefixIndex::hash(NodeId node) const {
  const Node& n = at(node);
  const auto i = static_cast<size_t>(node);
  if (i >= more_hash_.size()) return {n.hash_lo, n.hash_hi};
  return {n.hash_lo, n.hash_hi, more_hash_[i].first, more_hash_[i].second};
}

void PrefixIndex::Prefetch(NodeId node) const {
  const auto i = static_cast<size_t>(node);
  __builtin_prefetch(&nodes_[i]);
  __builtin_prefetch(&contents_[i * num_groups_]);
  const auto* tokens = reinterpret_cast<const std::byte*>(&tokens_[i * block_size_]);
  __builtin_prefetch(tokens);
  __builtin_prefetch(tokens + block_size_ * sizeof(TokenId) - 1);
}

void PrefixIndex::FindPath(NodeId root, std::span<const PrefixHash> chain,
                           std::span<const TokenId> tokens, size_t most,
                           std::vector<NodeId>& path) const {
  // How far ahead the table's buckets and the nodes behind them are fetched.
  constexpr size_t kBuckets = 8;
  constexpr size_t kNodes = 4;
  const RootId id = at(root).root;
  std::array<NodeId, kNodes> ahead{};  // what the hash leads to, by block modulo kNodes
  const auto look = [&](size_t i) {
    const auto it = index_.find(KeyOf(id, chain[i]));
    ahead[i % kNodes] = it == index_.end() ? kNoNode : it->second;
    if (it != index_.end()) Prefetch(it->second);
  };
  path.assign(1, root);
  for (size_t i = 0; i < std::min(most, kBuckets); ++i) index_.prefetch(KeyOf(id, chain[i]));
  for (size_t i = 0; i < std::min(most, kNodes); ++i) look(i);
  for (size_t i = 0; i < most; ++i) {
    const NodeId node = ahead[i % kNodes];
    if (node == kNoNode || at(node).parent != path.back()) return;
    const std::span<const TokenId> own = tokens_of(node);
    if (!std::equal(own.begin(), own.end(), tokens.begin() + static_cast<int64_t>(i * block_size_)))
      return;
    path.push_back(node);
    if (i + kBuckets < most) index_.prefetch(KeyOf(id, chain[i + kBuckets]));
    if (i + kNodes < most) look(i + kNodes);
  }
}

std::pair<NodeId, int32_t> PrefixIndex::FindPartial(NodeId node,
                                                    std::span<const TokenId> tokens) const {
  NodeId best = kNoNode;
  int32_t most = 0;
  int left = kMaxPartialChildren;
  for (NodeId c = at(node).first_child; c != kNoNode && left > 0; c = at(c).next_sibling, --left) {
    if (at(c).detached || at(c).pending) continue;
    const std::span<const TokenId> own = tokens_of(c);
    const auto same = std::mismatch(own.begin(), own.end(), tokens.begin(), tokens.end()).first;
    const auto n = static_cast<int32_t>(same - own.begin());
    if (n > most) {
      most = n;
      best = c;
    }
  }
  return {best, most};
}

NodeId PrefixIndex::FindOrAdd(NodeId parent, const PrefixHash& hash,
                              std::span<const TokenId> tokens) {
  DCHECK(tokens.size() == block_size_ && !at(parent).detached);
  const NodeId found = Find(parent, hash, tokens);
  if (found != kNoNode) return found;
  const RootId root = at(parent).root;
  const uint64_t key = KeyOf(root, hash);
  if (index_.contains(key)) return kNoNode;  // another prefix: the newcomer stays private
  const NodeId node = NewNode(parent, root);
  at(node).hash_lo = hash.lo;
  at(node).hash_hi = hash.hi;
  SetMoreHash(node, hash.more_lo, hash.more_hi);
  std::copy(tokens.begin(), tokens.end(),
            tokens_.begin() + static_cast<int64_t>(node) * static_cast<int64_t>(block_size_));
  index_.emplace(key, node);
  if (keeps_file_keys_) file_keys_[static_cast<size_t>(node)] = PageKey(file_key(parent), tokens);
  return node;
}

void PrefixIndex::SealPage(NodeId node, size_t group, PageId page) {
  int32_t& slot = content(node, group);
  CHECK(slot == 0 && !at(node).detached, "node {} group {} has content {}", node, group, slot);
  slot = page;
  ++at(node).num_contents;
  pool_of(group).Seal(page, TagOf(node, group), roots_.at(at(node).root).keep);
  if (events_ != nullptr) Tell(node, group, CacheTier::kPool, /*stored=*/true);
}

void PrefixIndex::MoveToPage(NodeId node, size_t group, PageId page) {
  const PageId slot = this->slot(node, group);
  PagePool& host = host_of(group);
  CHECK(slot != kNullPage, "node {} group {} has no slot", node, group);
  const Retention retention = host.retention(slot);
  content(node, group) = 0;
  --at(node).num_contents;
  host.Unseal(slot, DropReason::kFlushed);
  if (events_ != nullptr) Tell(node, group, CacheTier::kHost, /*stored=*/false);
  SealPage(node, group, page);
  pool_of(group).Keep(page, retention);
}

void PrefixIndex::SetPending(NodeId node) {
  if (std::exchange(at(node).pending, true)) return;
  Retain(node);  // so that the id stays its own until the step's end
  pending_.push_back(node);
}

void PrefixIndex::Publish() {
  for (const NodeId node : pending_) {
    at(node).pending = false;
    Release(node);
  }
  pending_.clear();
  unsaved_.clear();
}

void PrefixIndex::Abandon() {
  for (const NodeId node : pending_) {
    at(node).pending = false;
    if (!at(node).detached) DetachSubtree(node, DropReason::kFailed);
  }
  for (const NodeId node : pending_) Release(node);
  pending_.clear();
  unsaved_.clear();
}

std::string_view PrefixIndex::root_key(RootId root) const {
  const auto it = roots_.find(root);
  return it == roots_.end() ? std::string_view() : std::string_view(it->second.key);
}
std::string_view PrefixIndex::cache_salt(RootId root) const {
  const auto it = roots_.find(root);
  return it == roots_.end() ? std::string_view() : std::string_view(it->second.cache_salt);
}
bool PrefixIndex::root_keeps(RootId root) const {
  const auto it = roots_.find(root);
  return it != roots_.end() && it->second.keep;
}
bool PrefixIndex::is_named(RootId root) const {
  const auto it = roots_.find(root);
  return it != roots_.end() && it->second.named;
}

void PrefixIndex::ForEach(const std::function<void(NodeId)>& visit, size_t most) const {
  std::vector<NodeId> nodes;
  for (const auto& [id, root] : roots_) nodes.push_back(root.node);
  for (size_t i = 0; i < nodes.size() && most > 0; ++i) {
    for (NodeId c = at(nodes[i]).first_child; c != kNoNode; c = at(c).next_sibling) {
      if (!at(c).detached) nodes.push_back(c);
    }
    if (at(nodes[i]).parent == kNoNode) continue;
    visit(nodes[i]);
    --most;
  }
}

int32_t PrefixIndex::num_children(NodeId node) const {
  int32_t count = 0;
  for (NodeId c = at(node).first_child; c != kNoNode; c = at(c).next_sibling) {
    count += !at(c).detached;
  }
  return count;
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
  const bool host = &pool != &pool_of(group);
  CHECK(content(node, group) == (host ? -page : page), "page {} is not that of node {} in group {}",
        page, node, group);
  if (!host && (reason == DropReason::kEvicted || reason == DropReason::kShrunk) &&
      Demote(node, group, page, reason)) {
    return;
  }
  if (!pool.IsSealed(page)) return;  // went with an ancestor while a slot was looked for
  if (host && reason == DropReason::kEvicted && on_host_evict_ != nullptr) {
    on_host_evict_(node, group, page);
  }
  DropContent(node, group, reason);
  if (keeps_all(group)) {
    DetachSubtree(node, DropReason::kOrphaned);
  } else {
    Prune(node);
  }
}

// An evicted page moves to the host tier, if there is room or something older to give up.
bool PrefixIndex::Demote(NodeId node, size_t group, PageId page, DropReason reason) {
  if (host_pools_.empty() || at(node).pending || !roots_.at(at(node).root).keep) return false;
  PagePool& host = host_of(group);
  PageId slot = kNullPage;
  if (!host.Take({&slot, 1})) return false;
  PagePool& pool = pool_of(group);
  if (!pool.IsSealed(page)) {  // what was given up for it was an ancestor's
    host.Release(slot);
    return false;
  }
  ops_.push_back({layout_.groups[group].pool, page, slot, PageOp::kSave});
  unsaved_.emplace(&host, slot);
  ++num_demoted_;
  const Retention retention = pool.retention(page);
  content(node, group) = -slot;
  host.Seal(slot, TagOf(node, group), /*keep=*/true);
  host.Keep(slot, retention);
  host.Release(slot);
  pool.Unseal(page, reason);
  if (events_ != nullptr) {
    Tell(node, group, CacheTier::kHost, /*stored=*/true);
    Tell(node, group, CacheTier::kPool, /*stored=*/false);
  }
  return true;
}

void PrefixIndex::DropContent(NodeId node, size_t group, DropReason reason) {
  const int32_t content = std::exchange(this->content(node, group), 0);
  if (content == 0) return;
  --at(node).num_contents;
  if (content > 0) {
    pool_of(group).Unseal(content, reason);
  } else {
    host_of(group).Unseal(-content, reason);
  }
  if (events_ != nullptr) {
    Tell(node, group, content > 0 ? CacheTier::kPool : CacheTier::kHost, /*stored=*/false);
  }
}

void PrefixIndex::DetachSubtree(NodeId top, DropReason reason) {
  const NodeId above = at(top).parent;
  std::vector<NodeId> nodes = std::move(subtree_);  // parents before children
  nodes.assign(1, top);
  for (size_t i = 0; i < nodes.size(); ++i) {
    for (NodeId c = at(nodes[i]).first_child; c != kNoNode; c = at(c).next_sibling) {
      nodes.push_back(c);
    }
  }
  for (auto it = nodes.rbegin(); it != nodes.rend(); ++it) {
    Node& n = at(*it);
    if (!n.detached) index_.erase(KeyOf(n));
    n.detached = true;
    for (size_t g = 0; g < num_groups_; ++g) {
      DropContent(*it, g, reason);
    }
    FreeIfUnused(*it);
  }
  subtree_ = std::move(nodes);
  Prune(above);
}

void PrefixIndex::Flush(std::string_view key_prefix) {
  std::vector<NodeId> tops;
  for (const auto& [id, root] : roots_) {
    if (!std::string_view(root.key).starts_with(key_prefix)) continue;
    for (NodeId c = at(root.node).first_child; c != kNoNode; c = at(c).next_sibling) {
      tops.push_back(c);
    }
  }
  for (const NodeId top : tops) DetachSubtree(top, DropReason::kFlushed);
}

bool PrefixIndex::FreeIfUnused(NodeId node) {
  const Node n = at(node);
  if (n.holders > 0 || n.num_contents > 0 || n.first_child != kNoNode) return false;
  if (!n.detached) index_.erase(KeyOf(n));
  (n.prev_sibling == kNoNode ? at(n.parent).first_child : at(n.prev_sibling).next_sibling) =
      n.next_sibling;
  if (n.next_sibling != kNoNode) at(n.next_sibling).prev_sibling = n.prev_sibling;
  Free(node);
  return true;
}

void PrefixIndex::Free(NodeId node) {
  at(node) = Node{.next_sibling = first_free_};
  first_free_ = node;
  ++num_free_;
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

}  // namespace quire
