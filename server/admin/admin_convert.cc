#include "server/admin/admin_convert.h"

#include <array>
#include <string>

namespace quire {
namespace {

uint32_t U32(int64_t v) { return static_cast<uint32_t>(v); }
uint64_t U64(int64_t v) { return static_cast<uint64_t>(v); }
double Ms(int64_t us) { return static_cast<double>(us) / 1e3; }

const char* NameOf(CacheKind kind) {
  switch (kind) {
    case CacheKind::kFull:
      return "full";
    case CacheKind::kSlidingWindow:
      return "sliding_window";
    case CacheKind::kChunkedLocal:
      return "chunked_local";
    case CacheKind::kLatent:
      return "latent";
    case CacheKind::kCompressed:
      return "compressed";
    case CacheKind::kIndexer:
      return "indexer";
    case CacheKind::kState:
      return "state";
    case CacheKind::kCrossAttention:
      return "cross_attention";
  }
  return "unknown";
}

// Little-endian words, 32 bytes: the bytes of a SHA-256, or XXH3's 128 bits and zeros.
std::string BytesOf(const PrefixHash& hash) {
  std::string bytes;
  for (const uint64_t word : {hash.lo, hash.hi, hash.more_lo, hash.more_hi}) {
    for (int i = 0; i < 8; ++i) bytes += static_cast<char>(word >> (8 * i));
  }
  return bytes;
}

void ToProto(const PoolStats& stats, pb::Drops& out) {
  const auto count = [&](DropReason reason) {
    return U64(stats.dropped[static_cast<size_t>(reason)]);
  };
  static_assert(kNumDropReasons == 8, "show the new reason, too");
  out.set_evicted(count(DropReason::kEvicted));
  out.set_flushed(count(DropReason::kFlushed));
  out.set_orphaned(count(DropReason::kOrphaned));
  out.set_rewritten(count(DropReason::kRewritten));
  out.set_unshared(count(DropReason::kPrivate));
  out.set_shrunk(count(DropReason::kShrunk));
  out.set_failed(count(DropReason::kFailed));
  out.set_merged(count(DropReason::kMerged));
}

void ToProto(const PoolSnapshot& pool, pb::PoolStats& out) {
  out.set_total_blocks(U32(pool.num_usable));
  out.set_used_blocks(U32(pool.num_used));
  out.set_cached_blocks(U32(pool.num_cached));
  out.set_empty_blocks(U32(pool.num_free));
  out.set_pinned_blocks(U32(pool.num_pinned));
  out.set_shared_blocks(U32(pool.num_shared));
  out.set_retiring_blocks(U32(pool.num_retiring));
  out.set_logical_blocks(U64(pool.num_refs));
  out.set_host_total_blocks(U32(pool.num_host));
  out.set_swapped_blocks(U32(pool.num_swapped));
  out.set_host_cached_blocks(U32(pool.num_host_cached));
  out.set_taken(U64(pool.stats.taken));
  out.set_sealed(U64(pool.stats.sealed));
  out.set_revived(U64(pool.stats.revived));
  out.set_expired(U64(pool.stats.expired));
  ToProto(pool.stats, *out.mutable_drops());
  ToProto(pool.host_stats, *out.mutable_host_drops());
  for (const int64_t n : pool.stats.lifetime_ms) out.add_lifetime_ms(U64(n));
  for (const int64_t n : pool.stats.idle_ms) out.add_idle_ms(U64(n));
}

void ToProto(const BlockList& list, const BlockView& view, pb::BlockInfo& out) {
  const BlockInfo& info = view.info;
  out.set_pool(U32(info.pool));
  out.set_block(U32(info.page));
  out.set_state(info.state == PageState::kActive   ? pb::BLOCK_STATE_USED
                : info.state == PageState::kCached ? pb::BLOCK_STATE_CACHED
                                                   : pb::BLOCK_STATE_EMPTY);
  out.set_refs(U32(info.refs));
  out.set_sealed(info.sealed);
  out.set_idle_ms(view.idle_ms);
  out.set_pinned(view.pinned);
  for (const uint32_t i : view.holders) out.add_request_ids(list.request_ids[i]);
  if (!info.sealed) return;
  out.set_group(U32(info.group));
  out.set_end_token(U32(info.end_token));
  out.set_hash(BytesOf(info.hash));
  out.set_parent_hash(BytesOf(info.parent_hash));
  out.set_root(info.root);
  out.set_priority(info.retention.priority);
  if (view.ttl_ms > 0) out.set_ttl_ms(view.ttl_ms);
}

void AddTables(const std::vector<std::vector<PageId>>& tables, const RequestList& list,
               google::protobuf::RepeatedPtrField<pb::TableInfo>& out) {
  for (size_t g = 0; g < tables.size(); ++g) {
    pb::TableInfo& table = *out.Add();
    table.set_group(U32(static_cast<int64_t>(g)));
    table.set_pool(U32(list.pool_of_group[g]));
    table.mutable_blocks()->Add(tables[g].begin(), tables[g].end());
  }
}

pb::BranchState ToProto(BranchState state) {
  switch (state) {
    case BranchState::kQueued:
      return pb::BRANCH_STATE_QUEUED;
    case BranchState::kRunning:
      return pb::BRANCH_STATE_RUNNING;
    case BranchState::kPreempted:
      return pb::BRANCH_STATE_PREEMPTED;
    case BranchState::kSwapped:
      return pb::BRANCH_STATE_SWAPPED;
    case BranchState::kParked:
      return pb::BRANCH_STATE_PARKED;
  }
  return pb::BRANCH_STATE_UNSPECIFIED;
}

void ToProto(const RequestList& list, const RequestView& view, pb::RequestInfo& out) {
  out.set_request_id(view.request_id);
  out.set_prompt_tokens(U32(view.stats.prompt_tokens));
  out.set_max_tokens(U32(view.max_tokens));
  out.set_cached_tokens(U32(view.stats.cached_tokens));
  out.set_preemptions(U32(view.stats.preemptions));
  out.set_priority(view.priority);
  out.set_tenant(view.tenant);
  out.set_draft_tokens(U32(view.stats.draft_tokens));
  out.set_accepted_draft_tokens(U32(view.stats.accepted_draft_tokens));
  out.set_beam_width(U32(view.beam_width));
  out.set_age_ms(Ms(view.age_us));
  out.set_queue_ms(Ms(view.queue_us));
  if (view.deadline_in_us) out.set_deadline_in_ms(Ms(*view.deadline_in_us));
  for (const BranchView& branch : view.branches) {
    pb::BranchInfo& b = *out.add_branches();
    b.set_output_index(U32(branch.branch));
    b.set_state(ToProto(branch.state));
    b.set_computed_tokens(U32(branch.computed_tokens));
    b.set_total_tokens(U32(branch.total_tokens));
    b.set_swapped_tokens(U32(branch.swapped_tokens));
    AddTables(branch.tables, list, *b.mutable_tables());
    AddTables(branch.swapped_tables, list, *b.mutable_swapped_tables());
  }
}

void ToProto(const NodeView& view, pb::PrefixNode& out) {
  out.set_node(view.node);
  out.set_parent(view.parent);
  out.set_root(view.root);
  out.set_depth_tokens(U32(view.depth_tokens));
  out.set_hash(BytesOf(view.hash));
  out.set_children(U32(view.children));
  for (size_t g = 0; g < view.pages.size(); ++g) {
    if (view.pages[g] == kNullPage && view.slots[g] == kNullPage) continue;
    pb::PrefixContent& content = *out.add_contents();
    content.set_group(U32(static_cast<int64_t>(g)));
    if (view.pages[g] != kNullPage) {
      content.set_block(U32(view.pages[g]));
    } else {
      content.set_host_slot(U32(view.slots[g]));
    }
  }
  out.mutable_token_ids()->Add(view.tokens.begin(), view.tokens.end());
}

}  // namespace

void ToProto(const RequestCounts& counts, pb::RequestCounts& out) {
  out.set_started(counts.started);
  out.set_ok(counts.ok);
  out.set_cancelled(counts.cancelled);
  out.set_deadline(counts.deadline);
  out.set_failed(counts.failed);
  out.set_refused(counts.refused);
}

void ToProto(const MemoryProfile& p, pb::MemoryProfile& out) {
  out.set_limit(U64(p.limit));
  out.set_limit_source(p.limit_source);
  out.set_others(U64(p.others));
  out.set_available(U64(p.available));
  out.set_available_source(p.available_source);
  out.set_budget(U64(p.budget));
  out.set_weights(U64(p.weights));
  out.set_activation_peak(U64(p.activation_peak));
  for (const ActivationPart& part : p.activation_parts) {
    pb::MemoryPart& o = *out.add_activation_parts();
    o.set_what(part.what);
    o.set_bytes(U64(part.bytes));
  }
  out.set_reserve(U64(p.reserve));
  out.set_kv_pool(U64(p.kv_pool));
  out.set_block_bytes(U64(p.block_bytes));
  out.set_bytes_per_token(U64(p.bytes_per_token));
  out.set_num_blocks(U32(p.num_blocks));
  out.set_block_size(U32(p.block_size));
  out.set_rule(p.rule);
  out.set_host_cache(U64(p.host_cache));
  out.set_draft_model(U64(p.draft_model));
  out.set_max_num_blocks(U32(p.max_num_blocks));
}

void AddPools(const CacheLayout& layout, const EngineSnapshot& snapshot, pb::MemoryProfile& out) {
  for (size_t i = 0; i < snapshot.pools.size() && i < layout.pools.size(); ++i) {
    const PoolSnapshot& pool = snapshot.pools[i];
    const uint64_t block_bytes = layout.pools[i].page_bytes;
    pb::PoolMemory& o = *out.add_pools();
    o.set_num_blocks(U32(pool.num_usable));
    o.set_block_bytes(block_bytes);
    o.set_bytes(U64(pool.num_usable) * block_bytes);
    o.set_host_blocks(U32(pool.num_host));
    o.set_host_bytes(U64(pool.num_host) * block_bytes);
    for (size_t g = 0; g < layout.groups.size(); ++g) {
      const GroupLayout& group = layout.groups[g];
      if (static_cast<size_t>(group.pool) != i) continue;
      pb::CacheGroupInfo& info = *o.add_groups();
      info.set_group(U32(static_cast<int64_t>(g)));
      info.set_kind(NameOf(group.group.kind));
      info.set_num_layers(U32(group.num_layers));
      info.set_page_tokens(U32(group.group.page_size));
      info.set_window(U32(group.group.window));
    }
  }
}

void ToProto(const EngineSnapshot& snapshot, int32_t block_size, pb::BlockStats& out) {
  PoolSnapshot sum;
  for (const PoolSnapshot& pool : snapshot.pools) {
    sum.num_usable += pool.num_usable;
    sum.num_used += pool.num_used;
    sum.num_cached += pool.num_cached;
    sum.num_free += pool.num_free;
    sum.num_retiring += pool.num_retiring;
    sum.num_pinned += pool.num_pinned;
    sum.num_shared += pool.num_shared;
    sum.num_refs += pool.num_refs;
    sum.num_host += pool.num_host;
    sum.num_swapped += pool.num_swapped;
    sum.num_host_cached += pool.num_host_cached;
    ToProto(pool, *out.add_pools());
  }
  out.set_total_blocks(U32(sum.num_usable));
  out.set_used_blocks(U32(sum.num_used));
  out.set_cached_blocks(U32(sum.num_cached));
  out.set_empty_blocks(U32(sum.num_free));
  out.set_pinned_blocks(U32(sum.num_pinned));
  out.set_shared_blocks(U32(sum.num_shared));
  out.set_retiring_blocks(U32(sum.num_retiring));
  out.set_logical_blocks(U64(sum.num_refs));
  out.set_sharing_ratio(sum.num_used > 0 ? static_cast<double>(sum.num_refs) / sum.num_used : 1);
  out.set_host_total_blocks(U32(sum.num_host));
  out.set_swapped_blocks(U32(sum.num_swapped));
  out.set_host_cached_blocks(U32(sum.num_host_cached));
  out.set_block_size(U32(block_size));
  out.set_pins(U32(snapshot.num_pins));
  out.set_prefix_roots(U64(snapshot.num_prefix_roots));
  out.set_prefix_nodes(U64(snapshot.num_prefix_nodes));

  const SchedulerStats& s = snapshot.scheduler;
  out.set_running_sequences(U32(s.running_seqs));
  out.set_waiting_sequences(U32(s.waiting_seqs));
  out.set_live_requests(U32(s.live_requests));
  out.set_queued_requests(U32(s.queued_requests));
  out.set_preemptions(U64(s.preemptions));
  out.set_swapped_preemptions(U64(s.swapped_preemptions));
  out.set_swap_ins(U64(s.swap_ins));
  out.set_forks(U64(s.forks));
  out.set_copied_blocks(U64(snapshot.cache.copies));
  out.set_prompt_tokens(U64(s.prefix_query_tokens));
  out.set_cached_tokens(U64(s.prefix_hit_tokens));
  out.set_resume_hit_tokens(U64(s.resume_hit_tokens));
  out.set_generated_tokens(U64(s.generated_tokens));
  out.set_steps(U64(s.steps));
  pb::SchedulerStats& scheduler = *out.mutable_scheduler();
  scheduler.set_policy_changes(U64(s.policy_changes));
  scheduler.set_scheduled_tokens(U64(s.scheduled_tokens));
  scheduler.set_beam_steps(U64(s.beam_steps));
  scheduler.set_beam_forks(U64(s.beam_forks));
  scheduler.set_draft_tokens(U64(s.draft_tokens));
  scheduler.set_accepted_draft_tokens(U64(s.accepted_draft_tokens));
  scheduler.set_draft_chains(U64(s.draft_chains));
  scheduler.set_step_fixed_us(s.step_fixed_us);
  scheduler.set_step_us_per_token(s.step_us_per_token);

  const CacheStats& c = snapshot.cache;
  out.set_in_step_hit_tokens(U64(c.in_step_tokens));
  out.set_partial_hit_tokens(U64(c.partial_tokens));
  out.set_merged_blocks(U64(c.dedupe_hits));
  out.set_collisions(U64(c.collisions));
  out.set_rewritten_blocks(U64(c.unsealed_writes));
  out.set_saved_blocks(U64(c.saved));
  out.set_loaded_blocks(U64(c.loaded));
  out.set_file_loaded_blocks(U64(c.file_loaded));
  out.set_file_saved_blocks(U64(c.file_saved));
  out.set_file_lost_blocks(U64(c.file_not_saved));
}

void ToProto(const CacheTransfer& transfer, pb::CacheTransfer& out) {
  out.set_entries(U64(transfer.entries));
  out.set_tokens(U64(transfer.tokens));
  out.set_bytes(U64(transfer.bytes));
  out.set_known(U64(transfer.known));
  out.set_dropped(U64(transfer.dropped));
}

void ToProto(const PageFileStats& stats, pb::FileTierStats& out) {
  out.set_entries(stats.entries);
  out.set_bytes(stats.bytes);
  out.set_queued_bytes(stats.queued_bytes);
  out.set_gets(stats.gets);
  out.set_hits(stats.hits);
  out.set_written(stats.written);
  out.set_evicted(stats.evicted);
  out.set_dropped_queue_full(stats.dropped_queue_full);
  out.set_dropped_no_room(stats.dropped_no_room);
  out.set_write_errors(stats.write_errors);
  out.set_last_write_error(stats.last_write_error);
  for (size_t i = 0; i < stats.faults.size(); ++i) {
    (*out.mutable_faults())[std::string(Name(static_cast<PageFault>(i)))] = stats.faults[i];
  }
}

size_t FillBatch(const BlockList& list, size_t next, size_t max_bytes, pb::BlockBatch& out) {
  for (size_t bytes = 0; next < list.blocks.size() && bytes < max_bytes; ++next) {
    pb::BlockInfo& block = *out.add_blocks();
    ToProto(list, list.blocks[next], block);
    bytes += block.ByteSizeLong();
  }
  out.set_truncated(next == list.blocks.size() && list.truncated);
  out.set_step(U64(list.step));
  return next;
}

size_t FillBatch(const RequestList& list, size_t next, size_t max_bytes, pb::RequestBatch& out) {
  for (size_t bytes = 0; next < list.requests.size() && bytes < max_bytes; ++next) {
    pb::RequestInfo& request = *out.add_requests();
    ToProto(list, list.requests[next], request);
    bytes += request.ByteSizeLong();
  }
  out.set_truncated(next == list.requests.size() && list.truncated);
  out.set_step(U64(list.step));
  return next;
}

size_t FillBatch(const PrefixTree& tree, size_t next, size_t max_bytes, pb::PrefixBatch& out) {
  if (next == 0) {
    for (const RootView& view : tree.roots) {
      pb::PrefixRoot& root = *out.add_roots();
      root.set_root(view.root);
      root.set_cache_salt(view.parts.cache_salt);
      root.set_rope_regime(view.parts.rope_regime);
      root.set_is_private(view.parts.private_to != 0);
    }
  }
  for (size_t bytes = 0; next < tree.nodes.size() && bytes < max_bytes; ++next) {
    pb::PrefixNode& node = *out.add_nodes();
    ToProto(tree.nodes[next], node);
    bytes += node.ByteSizeLong();
  }
  out.set_truncated(next == tree.nodes.size() && tree.truncated);
  out.set_step(U64(tree.step));
  return next;
}

}  // namespace quire
