// kernels/attention_common.h -- checks and numbers that the attention backends share. No math.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/attention.h"

namespace quire::kernels {

// OK if the shape is one that the paged layout can hold.
// ERRORS: kInvalidArgument for impossible shapes, kUnimplemented for types without a layout.
absl::Status CheckAttentionShape(const AttentionShape& s, int32_t page_size);
// Likewise, of a backend whose products are float32.
absl::Status CheckFloat32Shape(const AttentionShape& s, int32_t page_size);

// Query tokens of a sequence, and the position of its first one (negative if it has fewer keys).
inline int32_t NumQueries(const AttentionMetadata& m, int32_t seq) {
  const auto i = static_cast<size_t>(seq);
  return m.cu_seqlens_q[i + 1] - m.cu_seqlens_q[i];
}
inline int32_t FirstPosition(const AttentionMetadata& m, int32_t seq) {
  return m.seqlens_k[static_cast<size_t>(seq)] - NumQueries(m, seq);
}

inline int32_t MaxSeqlenK(const AttentionMetadata& m) {
  int32_t longest = 0;
  for (const int32_t n : m.seqlens_k) longest = std::max(longest, n);
  return longest;
}

// Byte address of page `page`: 64-bit products, since pools exceed 2^31 elements.
template <typename T>
T* PageAddress(T* base, int64_t page, int64_t page_stride) {
  return base + page * page_stride;
}

// Keys first .. first + count - 1 of a sequence as float32: k [count, head_dim], v [count,
// head_dim_v]; either may be null. REQUIRES: the read table names their pages.
void ReadKv(const AttentionMetadata& m, const AttentionShape& s, const AttentionArgs& a,
            int32_t seq, int32_t kv_head, int32_t first, int32_t count, float* k, float* v);

// To AttentionBackends(), for good; start-up only. REQUIRES: nobody else has its name.
void AddAttention(const AttentionBackend& backend);

extern const AttentionBackend kEagerAttention;
extern const AttentionBackend kFlashAttention;

}  // namespace quire::kernels
