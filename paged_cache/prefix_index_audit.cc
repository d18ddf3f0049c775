// Checks of the prefix tree: I3 and I11, recomputed from scratch.
#include <cstdlib>

#include "paged_cache/prefix_index.h"

namespace quire {
namespace {

template <typename... Args>
absl::Status Broken(fmt::format_string<Args...> format, Args&&... args) {
  return Error(absl::StatusCode::kInternal, format, std::forward<Args>(args)...);
}

}  // namespace

absl::Status PrefixIndex::Audit() const {
  std::vector<int64_t> sealed(pools_.size());
  std::vector<int64_t> kept(pools_.size());  // in host slots
  size_t attached = 0;
  size_t pending = 0;
  for (NodeId id = 0; id < static_cast<NodeId>(nodes_.size()); ++id) {
    const Node& n = at(id);
    if (!n.in_use) continue;
    pending += n.pending;
    int32_t num_contents = 0;
    for (size_t g = 0; g < num_groups_; ++g) {
      const int32_t c = content(id, g);
      if (c == 0) {
        if (keeps_all(g) && ends_page(g, n.depth) && n.parent != kNoNode && !n.detached) {
          return Broken("I11: node {} is indexed, its page of full group {} is gone", id, g);
        }
        continue;
      }
      ++num_contents;
      const auto i = static_cast<size_t>(layout_.groups[g].pool);
      ++(c > 0 ? sealed : kept)[i];
      const PagePool& pool = c > 0 ? pools_[i] : host_pools_[i];
      const PageId p = std::abs(c);
      if (!pool.IsSealed(p) || pool.tag(p) != TagOf(id, g)) {
        return Broken("I3: node {} group {} has content {}, sealed={} tag={}, expected {}", id, g,
                      c, pool.IsSealed(p), pool.tag(p), TagOf(id, g));
      }
      if (!ends_page(g, n.depth)) {
        return Broken("I11: node {} at depth {} has a page of group {}", id, n.depth, g);
      }
    }
    if (num_contents != n.num_contents || (n.detached && num_contents > 0)) {
      return Broken("I11: node {} has {} pages, counted {}, detached={}", id, num_contents,
                    n.num_contents, n.detached);
    }
    if (n.parent == kNoNode) continue;
    const Node& p = at(n.parent);
    if (!p.in_use || p.depth + 1 != n.depth || p.root != n.root || (p.detached && !n.detached)) {
      return Broken("I11: node {} at depth {} has parent {} at depth {}, detached={}", id, n.depth,
                    n.parent, p.depth, p.detached);
    }
    if (n.holders == 0 && n.num_contents == 0 && n.first_child == kNoNode) {
      return Broken("I11: node {} has no page, child or holder", id);
    }
    if (n.detached) continue;
    ++attached;
    const auto it = index_.find(KeyOf(n));
    if (it == index_.end() || it->second != id) {
      return Broken("I3: node {} is not what its parent {} and hash lead to", id, n.parent);
    }
  }
  if (attached != index_.size() || pending != pending_.size()) {
    return Broken("I3: {} attached nodes, {} indexed; {} pending, {} listed", attached,
                  index_.size(), pending, pending_.size());
  }
  const auto count = [](const PagePool& pool) {
    int64_t n = 0;
    for (PageId p = 1; p < pool.num_ids(); ++p) n += pool.IsSealed(p);
    return n;
  };
  for (size_t i = 0; i < pools_.size(); ++i) {
    if (count(pools_[i]) != sealed[i]) {
      return Broken("I3: pool {} has {} sealed pages, {} are in the index", i, count(pools_[i]),
                    sealed[i]);
    }
    if (!host_pools_.empty() && count(host_pools_[i]) != kept[i]) {
      return Broken("I3: host pool {} has {} sealed slots, {} are in the index", i,
                    count(host_pools_[i]), kept[i]);
    }
  }
  return absl::OkStatus();
}

}  // namespace quire
