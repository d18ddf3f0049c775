// server/admin/admin_convert.h -- what operators are shown, as messages. Any thread; pure.
#pragma once

#include <cstddef>

#include "models/memory_profile.h"
#include "paged_cache/cache_layout.h"
#include "quire/v1/quire.pb.h"
#include "scheduler/engine.h"
#include "server/admin/cache_control.h"
#include "server/admin/inspect.h"
#include "server/edge/edge.h"

namespace quire {

namespace pb = ::quire::v1;

void ToProto(const RequestCounts& counts, pb::RequestCounts& out);
void ToProto(const MemoryProfile& profile, pb::MemoryProfile& out);
// The pools as they are now.
void AddPools(const CacheLayout& layout, const EngineSnapshot& snapshot, pb::MemoryProfile& out);
void ToProto(const EngineSnapshot& snapshot, int32_t block_size, pb::BlockStats& out);
void ToProto(const CacheTransfer& transfer, pb::CacheTransfer& out);
void ToProto(const PageFileStats& stats, pb::FileTierStats& out);

// Batches of a list, from entry `next` on, of at least one entry and not much more than `max_bytes`
// bytes. Returns the entry after the last one in it.
size_t FillBatch(const BlockList& list, size_t next, size_t max_bytes, pb::BlockBatch& out);
size_t FillBatch(const RequestList& list, size_t next, size_t max_bytes, pb::RequestBatch& out);
size_t FillBatch(const PrefixTree& tree, size_t next, size_t max_bytes, pb::PrefixBatch& out);
inline size_t SizeOf(const BlockList& list) { return list.blocks.size(); }
inline size_t SizeOf(const RequestList& list) { return list.requests.size(); }
inline size_t SizeOf(const PrefixTree& tree) { return tree.nodes.size(); }

}  // namespace quire
