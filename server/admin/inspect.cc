#include "server/admin/inspect.h"

#include <algorithm>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"

namespace quire {
namespace {

using PoolPage = std::pair<size_t, PageId>;  // pool, page

// visit(request, pool, page) for each entry of each table of what runs.
template <typename Visit>
void ForEachEntry(const Scheduler& scheduler, Visit visit) {
  const CacheLayout& layout = scheduler.blocks().layout();
  scheduler.ForEachBranch([&](const LiveRequest& live, int32_t, const Sequence* seq) {
    if (seq == nullptr) return;
    for (size_t g = 0; g < seq->tables.groups.size(); ++g) {
      const auto pool = static_cast<size_t>(layout.groups[g].pool);
      for (const PageId page : seq->tables.groups[g].ids()) {
        if (page != kNullPage) visit(live, pool, page);
      }
    }
  });
}

bool Wants(const BlockFilter& filter, const PagePool& pool, PageId page) {
  if (pool.IsRetired(page)) return false;
  if (pool.refs(page) > 0) return filter.used;
  return pool.IsSealed(page) ? filter.cached : filter.empty;
}

// Up to limit + 1 pages, by pool and id.
std::vector<PoolPage> Choose(const Scheduler& scheduler, const BlockFilter& filter) {
  const std::span<const PagePool> pools = scheduler.blocks().pools();
  std::vector<PoolPage> chosen;
  if (!filter.request_id.empty()) {
    ForEachEntry(scheduler, [&](const LiveRequest& live, size_t pool, PageId page) {
      if (live.request->client_id == filter.request_id && filter.pool.value_or(pool) == pool &&
          page >= filter.first && Wants(filter, pools[pool], page)) {
        chosen.emplace_back(pool, page);
      }
    });
    std::sort(chosen.begin(), chosen.end());
    chosen.erase(std::unique(chosen.begin(), chosen.end()), chosen.end());
    chosen.resize(std::min(chosen.size(), filter.limit + 1));
    return chosen;
  }
  for (size_t p = 0; p < pools.size(); ++p) {
    if (filter.pool.value_or(p) != p) continue;
    for (PageId page = std::max(filter.first, 1); page < pools[p].num_ids(); ++page) {
      if (!Wants(filter, pools[p], page)) continue;
      chosen.emplace_back(p, page);
      if (chosen.size() > filter.limit) return chosen;
    }
  }
  return chosen;
}

std::vector<std::vector<PageId>> CopyTables(const absl::InlinedVector<PageTable, 4>& groups) {
  std::vector<std::vector<PageId>> tables;
  for (const PageTable& table : groups) tables.emplace_back(table.ids().begin(), table.ids().end());
  return tables;
}

BranchView CopyBranch(const LiveRequest& live, const LiveBranch& branch, bool tables) {
  const Sequence& seq = *branch.seq;
  BranchView view{.branch = seq.branch,
                  .computed_tokens = seq.num_computed_tokens,
                  .total_tokens = seq.num_tokens()};
  if (seq.status == SequenceStatus::kRunning) {
    view.state = branch.has_candidates ? BranchState::kParked : BranchState::kRunning;
  } else if (live.admitted) {
    view.state = seq.swapped ? BranchState::kSwapped : BranchState::kPreempted;
  }
  if (seq.swapped) view.swapped_tokens = seq.swapped->num_computed;
  if (!tables) return view;
  view.tables = CopyTables(seq.tables.groups);
  if (seq.swapped) view.swapped_tables = CopyTables(seq.swapped->groups);
  return view;
}

int64_t Us(Clock::duration d) {
  return std::chrono::duration_cast<std::chrono::microseconds>(d).count();
}

}  // namespace

BlockList CopyBlocks(const Scheduler& scheduler, const BlockFilter& filter) {
  const BlockManager& blocks = scheduler.blocks();
  BlockList list;
  list.step = scheduler.stats().steps;
  std::vector<PoolPage> chosen = Choose(scheduler, filter);
  list.truncated = chosen.size() > filter.limit;
  if (list.truncated) chosen.pop_back();

  absl::flat_hash_map<PoolPage, size_t> place;  // of the used ones
  const int64_t now = scheduler.now_ms();
  for (const auto& [pool, page] : chosen) {
    BlockView view{.info = blocks.InspectPage(pool, page)};
    view.idle_ms = std::max<int64_t>(0, now - view.info.last_access_ms);
    if (view.info.sealed && view.info.retention.expires_ms != kNoExpiry) {
      view.ttl_ms = std::max<int64_t>(1, view.info.retention.expires_ms - now);
    }
    if (view.info.refs > 0) place.emplace(PoolPage(pool, page), list.blocks.size());
    list.blocks.push_back(std::move(view));
  }
  std::vector<int32_t> seen(list.blocks.size());
  absl::flat_hash_map<RequestId, uint32_t> name;
  ForEachEntry(scheduler, [&](const LiveRequest& live, size_t pool, PageId page) {
    const auto it = place.find(PoolPage(pool, page));
    if (it == place.end()) return;
    ++seen[it->second];
    const auto [entry, is_new] =
        name.emplace(live.request->id, static_cast<uint32_t>(list.request_ids.size()));
    if (is_new) list.request_ids.push_back(live.request->client_id);
    auto& holders = list.blocks[it->second].holders;
    if (std::find(holders.begin(), holders.end(), entry->second) == holders.end()) {
      holders.push_back(entry->second);
    }
  });
  // Invariant I2: references are those of requests' tables and of pins.
  for (size_t i = 0; i < list.blocks.size(); ++i) {
    list.blocks[i].pinned = list.blocks[i].info.refs > seen[i];
  }
  return list;
}

RequestList CopyRequests(const Scheduler& scheduler, const std::string& request_id, bool tables,
                         size_t limit) {
  RequestList list;
  list.step = scheduler.stats().steps;
  for (const GroupLayout& group : scheduler.blocks().layout().groups) {
    list.pool_of_group.push_back(group.pool);
  }
  std::vector<const LiveRequest*> all;
  scheduler.ForEachBranch([&](const LiveRequest& live, int32_t, const Sequence*) {
    if (!request_id.empty() && live.request->client_id != request_id) return;
    if (all.empty() || all.back() != &live) all.push_back(&live);
  });
  // Some policies rank those that have run by when that was, and the queue by something else.
  const SchedulingPolicy policy = scheduler.options().policy;
  const bool admitted_first =
      policy == SchedulingPolicy::kFair || policy == SchedulingPolicy::kPrefixAware;
  std::sort(all.begin(), all.end(), [&](const LiveRequest* a, const LiveRequest* b) {
    if (admitted_first && a->admitted != b->admitted) return a->admitted;
    return std::pair(a->rank, a->order) < std::pair(b->rank, b->order);
  });
  list.truncated = all.size() > limit;
  if (list.truncated) all.resize(limit);
  const Clock::time_point now = Clock::now();
  for (const LiveRequest* live : all) {
    const Request& request = *live->request;
    RequestView& view = list.requests.emplace_back();
    view.request_id = request.client_id;
    view.stats = live->stats;
    view.max_tokens = request.stop.max_tokens;
    view.priority = request.priority;
    view.tenant = request.tenant;
    view.beam_width = request.beam.on() ? request.beam.beam_width : 0;
    view.age_us = Us(now - request.arrival);
    view.queue_us = live->admitted ? live->stats.queue_us : view.age_us;
    if (request.deadline != Clock::time_point::max()) {
      view.deadline_in_us = Us(request.deadline - now);
    }
    for (const LiveBranch& branch : live->branches) {
      if (branch.seq != nullptr) view.branches.push_back(CopyBranch(*live, branch, tables));
    }
  }
  return list;
}

PrefixTree CopyPrefixTree(const Scheduler& scheduler, bool tokens, size_t limit) {
  const BlockManager& blocks = scheduler.blocks();
  const PrefixIndex& index = blocks.index();
  const size_t num_groups = blocks.layout().groups.size();
  PrefixTree tree;
  tree.step = scheduler.stats().steps;
  absl::flat_hash_set<RootId> roots;
  index.ForEach(
      [&](NodeId node) {
        if (tree.nodes.size() == limit) {
          tree.truncated = true;
          return;
        }
        NodeView& view = tree.nodes.emplace_back();
        view.node = node;
        view.parent = index.depth(node) > 1 ? index.parent(node) : kNoNode;
        view.root = index.root(node);
        view.depth_tokens = index.depth(node) * blocks.block_size();
        view.hash = index.hash(node);
        view.children = index.num_children(node);
        for (size_t g = 0; g < num_groups; ++g) {
          view.pages.push_back(index.page(node, g));
          view.slots.push_back(index.slot(node, g));
        }
        if (tokens) view.tokens.assign(index.tokens_of(node).begin(), index.tokens_of(node).end());
        if (!roots.insert(view.root).second) return;
        const std::optional<RootParts> parts = ParseRootKey(index.root_key(view.root));
        tree.roots.push_back({view.root, parts.value_or(RootParts{})});
      },
      limit + 1);
  return tree;
}

std::string SaltOf(const BlockManager& blocks, RootId root) {
  const std::optional<RootParts> parts = ParseRootKey(blocks.index().root_key(root));
  return parts ? parts->cache_salt : std::string();
}

}  // namespace quire
