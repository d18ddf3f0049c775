// kernels/attention.h -- paged attention: the one interface behind every kernel name.
//
// Two phases, so that work that is equal for all layers is done once per step:
//   backend.plan(metadata, shape, plan)       once per step and distinct (group, shape)
//   backend.run(plan, metadata, shape, args)  once per layer
//
// Shapes are row-major and written [outer, ..., inner]. Token rows are the step's scheduled tokens
// of all sequences, concatenated; sequence i owns rows cu_seqlens_q[i] .. cu_seqlens_q[i+1]-1.
// Masks align to the bottom right: query i of n sees keys up to seqlens_k - n + i.
//
// Pages. The keys of one layer in page p begin at k_base + p * page_stride, likewise the values;
// kv_layout.h says where each element is: lanes are keys for keys, so that scores need no
// horizontal sums, and dimensions for values. Element type kv_dtype (F32, BF16, F16, or I8: codes
// with a scale for each key and each value). All offsets are 64 bit. What slots hold that no table
// names never matters: it may be NaN.
//
// Exactness (C1): a score is one fma chain over d ascending (heads wider than kDimChain, as latent
// attention has them: runs of it, added in order, for accuracy); keys are walked in tiles of
// kKeyTile at absolute multiples, partial results of key splits of kKeySplit at absolute multiples
// merge in ascending order. Nothing depends on the number of rows, sequences, threads or on the
// chunking.
//
// dot = BF16: queries times softmax_scale / ln 2 and softmax's numerators are rounded to bf16
// (nearest even), and products are added in float32 as one tile product of AMX-BF16 does it: in
// runs of kDotRun terms (the last one filled up with zeros) of d, or of keys at absolute multiples;
// a run is one fma chain over its even and one over its odd terms, both from 0, and their sum is
// added to what came before. Denormals count as 0 in there. Other instruction sets compute the same
// bits by fma.
//
// Thread: engine thread; run() fans out over the pool and joins before it returns.
// Sources: FlashAttention-2 (arXiv:2307.08691), Flash-Decoding, FlashInfer (arXiv:2501.01005).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/status.h"
#include "base/thread_pool.h"
#include "kernels/attention_cascade.h"

namespace quire::kernels {

inline constexpr int32_t kKeyTile = 64;
inline constexpr int32_t kKeySplit = 256;
inline constexpr int32_t kDimChain = 128;
inline constexpr int32_t kDotRun = 32;

// What the scheduler decided, as flat arrays. The same for every layer of one cache group.
struct AttentionMetadata {
  int32_t num_seqs = 0;
  int32_t num_tokens = 0;                 // scheduled this step, all sequences
  int32_t page_size = 0;                  // token slots per page: 8, 16, 32, 64 or 128
  int32_t max_pages_per_seq = 0;          // row length of read_table
  std::span<const int32_t> cu_seqlens_q;  // [num_seqs + 1]
  std::span<const int32_t> seqlens_k;     // [num_seqs], scheduled tokens included
  std::span<const int32_t> read_table;    // [num_seqs, max_pages_per_seq] page ids; 0 = not kept
  std::span<const int64_t> write_table;   // [num_tokens] slot = page * page_size + offset; unique
};

// What the model fixed. At most one of window and chunk is set.
struct AttentionShape {
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;  // divides num_heads
  int32_t head_dim = 0;      // of q and k
  int32_t head_dim_v = 0;    // of v and out
  int32_t window = 0;        // a query sees `window` keys, its own included; 0 = all
  int32_t chunk = 0;         // a query sees keys of its own chunk of this many positions; 0 = all
  float softmax_scale = 0.0f;
  float logit_softcap = 0.0f;  // 0 = off
  DType kv_dtype = DType::kF32;
  DType dot = DType::kF32;     // what products are computed in; kBF16 needs kv_dtype kBF16
  bool bidirectional = false;  // a query also sees the keys behind it (encoders, cross-attention)
  bool additive_bias = false;  // AttentionArgs::bias is given
  bool composed = false;       // AttentionArgs::mask or score_mods are given
};

class AttentionMask;  // kernels/attention_mask.h
struct ScoreMod;

// One layer's tensors. Not owned. A score is scale * q.k, then soft-capped, then ALiBi, the bias
// and the score mods are added, in that order.
struct AttentionArgs {
  const float* q = nullptr;  // [num_tokens, num_heads, head_dim]
  const std::byte* k_base = nullptr;
  const std::byte* v_base = nullptr;
  int64_t page_stride = 0;              // bytes from page p to p + 1
  const float* sinks = nullptr;         // [num_heads] or null: extra logit in the denominator
  const float* alibi_slopes = nullptr;  // [num_heads] or null: adds slope * (key pos - query pos)
  // [num_tokens, num_heads, max_seqlen_k] or null: added to the score of key position j at [.., j].
  // Strides in floats; 0 = one for all tokens, one for all heads.
  const float* bias = nullptr;
  int64_t bias_token_stride = 0;
  int64_t bias_head_stride = 0;
  // shape.composed: what a query sees, instead of what window, chunk and bidirectional say (null:
  // those), and functions that change scores.
  const AttentionMask* mask = nullptr;
  std::span<const ScoreMod> score_mods;
  float* out = nullptr;  // [num_tokens, num_heads, head_dim_v]
  float* lse = nullptr;  // [num_tokens, num_heads] or null; sink left out
  // eager only: [num_tokens, num_heads, max_seqlen_k], zeros where masked; else must be null.
  float* weights = nullptr;
};

// First key position that query position `pos` may see: the mask of every kernel, in one place.
constexpr int32_t FirstVisible(const AttentionShape& s, int32_t pos) {
  if (s.chunk > 0) return pos / s.chunk * s.chunk;
  if (s.window > 0) return pos + 1 > s.window ? pos + 1 - s.window : 0;
  return 0;
}

// One past the last key position that query position `pos` of a sequence of `seqlen_k` keys may
// see.
constexpr int32_t EndVisible(const AttentionShape& s, int32_t pos, int32_t seqlen_k) {
  if (s.chunk > 0 && s.bidirectional) {
    const int32_t end = (pos / s.chunk + 1) * s.chunk;
    return end < seqlen_k ? end : seqlen_k;
  }
  return s.bidirectional || pos + 1 > seqlen_k ? seqlen_k : pos + 1;
}

struct KvWrite {
  const float* k = nullptr;  // [num_tokens, num_kv_heads, head_dim], rotated
  const float* v = nullptr;  // [num_tokens, num_kv_heads, head_dim_v]
  std::byte* k_base = nullptr;
  std::byte* v_base = nullptr;
  int64_t page_stride = 0;
};

// Stores this step's rows at write_table, rounded to kv_dtype (nearest even), or as codes with a
// scale.
void WriteKv(const AttentionMetadata& m, const AttentionShape& s, const KvWrite& w,
             ThreadPool& pool);

// Bytes of one layer's keys (and of its values) in one page, rounded up to 64.
size_t KeyPageBytes(const AttentionShape& s, int32_t page_size);
size_t ValuePageBytes(const AttentionShape& s, int32_t page_size);

// A unit of parallel work, defined by the backend that planned it.
struct WorkItem {
  int32_t seq;
  int32_t kv_head;
  int32_t first_q, num_q;  // query rows, relative to the sequence
  int32_t first_k, num_k;  // key positions
  int64_t partial;         // index into partial results, or -1: complete by itself
  int64_t prefix = -1;     // index of what the keys before first_k have given, or -1: nothing
  // More than one: the heads from kv_head on, one after the other; what follows in memory is read
  // by the same thread then. Their partial results lie partial_stride apart.
  int32_t num_kv_heads = 1;
  int64_t partial_stride = 0;
};

// A query row whose first keys are read together with those of other sequences.
struct SharedRow {
  int32_t token;   // row of q
  int32_t pos;     // of the query
  int64_t prefix;  // index into partial results, of the row's first head
};

struct AttentionPlan {
  std::vector<WorkItem> items;   // capacity is reused from step to step
  std::vector<WorkItem> merges;  // rows whose partial results are merged after `items`
  std::vector<WorkItem> shared;  // before `items`: first_q and num_q count in shared_rows
  std::vector<SharedRow> shared_rows;
  PrefixGroups prefixes;
  std::vector<std::pair<int32_t, int64_t>> own;  // by sequence: keys that are shared, their prefix
  size_t workspace_bytes = 0;                    // the caller's arena provides it, 64-byte aligned
  int32_t num_threads = 0;                       // as planned; run()'s pool may not have more
};

// One backend = one row in kernels/attention_table.cc.
struct AttentionBackend {
  std::string_view name;        // value of --attention
  std::string_view summary;     // one line for --help and `quire kernels`
  bool batch_invariant = true;  // keeps contract C1
  // OK, or kUnimplemented naming the feature that this backend lacks.
  absl::Status (*supports)(const AttentionShape& shape, int32_t page_size);
  void (*plan)(const AttentionMetadata& m, const AttentionShape& s, int32_t num_threads,
               AttentionPlan& plan);
  void (*run)(const AttentionPlan& plan, const AttentionMetadata& m, const AttentionShape& s,
              const AttentionArgs& a, std::byte* workspace, ThreadPool& pool);
};

std::span<const AttentionBackend* const> AttentionBackends();

// Accepts "flash" and "paged|flash" alike.
// ERRORS: kInvalidArgument for an unknown name, listing the names.
absl::StatusOr<const AttentionBackend*> FindAttention(std::string_view name);

}  // namespace quire::kernels
