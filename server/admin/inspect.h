// server/admin/inspect.h -- copies of what the cache and the scheduler hold, for people.
//
// The Copy functions run on the engine thread between two steps and bound their work: by the limit,
// and by one walk over the page tables of what runs. The results are plain data, turned into
// messages by other threads afterwards.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "scheduler/root_key.h"
#include "scheduler/scheduler.h"

namespace quire {

struct BlockFilter {
  bool empty = true;
  bool used = true;
  bool cached = true;
  std::string request_id;      // held by it; "" = whoever
  std::optional<size_t> pool;  // one that exists
  PageId first = 1;
  size_t limit = 1000;
};

struct BlockView {
  BlockInfo info;
  int64_t idle_ms = 0;
  int64_t ttl_ms = 0;  // left; 0 = for ever
  bool pinned = false;
  std::vector<uint32_t> holders;  // into BlockList::request_ids
};

struct BlockList {
  std::vector<BlockView> blocks;  // by pool, then id
  std::vector<std::string> request_ids;
  bool truncated = false;
  int64_t step = 0;  // SchedulerStats::steps of the moment
};

BlockList CopyBlocks(const Scheduler& scheduler, const BlockFilter& filter);

enum class BranchState : uint8_t { kQueued, kRunning, kPreempted, kSwapped, kParked };

struct BranchView {
  int32_t branch = 0;
  BranchState state = BranchState::kQueued;
  int32_t computed_tokens = 0;
  int32_t total_tokens = 0;
  int32_t swapped_tokens = 0;
  std::vector<std::vector<PageId>> tables;          // [groups], if asked for
  std::vector<std::vector<PageId>> swapped_tables;  // slots of the host tier
};

struct RequestView {
  std::string request_id;
  RequestStats stats;  // prompt_tokens, cached_tokens, preemptions, guesses
  int32_t max_tokens = 0;
  int64_t age_us = 0;
  int64_t queue_us = 0;
  std::optional<int64_t> deadline_in_us;
  int32_t priority = 0;
  std::string tenant;
  int32_t beam_width = 0;  // 0 = no beam search
  std::vector<BranchView> branches;
};

struct RequestList {
  std::vector<RequestView> requests;  // in the policy's order
  std::vector<int32_t> pool_of_group;
  bool truncated = false;
  int64_t step = 0;  // SchedulerStats::steps of the moment
};

RequestList CopyRequests(const Scheduler& scheduler, const std::string& request_id, bool tables,
                         size_t limit);

struct NodeView {
  NodeId node = kNoNode;
  NodeId parent = kNoNode;  // kNoNode: the root
  RootId root = 0;
  int32_t depth_tokens = 0;
  PrefixHash hash;
  int32_t children = 0;
  std::vector<PageId> pages;    // [groups]
  std::vector<PageId> slots;    // [groups] of the host tier
  std::vector<TokenId> tokens;  // if asked for
};

struct RootView {
  RootId root = 0;
  RootParts parts;  // empty for a root whose key was forgotten
};

struct PrefixTree {
  std::vector<RootView> roots;
  std::vector<NodeView> nodes;  // parents before children
  bool truncated = false;
  int64_t step = 0;  // SchedulerStats::steps of the moment
};

PrefixTree CopyPrefixTree(const Scheduler& scheduler, bool tokens, size_t limit);

// The salt of a root; "" if its key was forgotten.
std::string SaltOf(const BlockManager& blocks, RootId root);

}  // namespace quire
