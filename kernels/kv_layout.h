// kernels/kv_layout.h -- where an element lies in a page: the one place that says so. WriteKv,
// every backend and the tests ask here; everybody else moves whole pages.
//
//   F32, F16  keys [num_kv_heads, head_dim, page_size]
//             values [num_kv_heads, page_size, head_dim_v]
//   BF16      keys [num_kv_heads, ceil(head_dim / 2), page_size, 2]: dimensions in pairs
//             values [num_kv_heads, page_size / 2, head_dim_v, 2]: keys in pairs
// Pairs lie as bf16 products want them, so that a tile is a strided load from the page. The second
// half of an odd head_dim's last pair is 0.
#pragma once

#include <cstdint>

#include "kernels/attention.h"

namespace quire::kernels {

constexpr bool HasPairs(const AttentionShape& s) { return s.kv_dtype == DType::kBF16; }

// Dimensions of a key in a page, padding included.
constexpr int64_t KeyDims(const AttentionShape& s) {
  return HasPairs(s) ? (int64_t{s.head_dim} + 1) / 2 * 2 : int64_t{s.head_dim};
}

// Index of an element within the page's keys (values).
constexpr int64_t KeyIndex(const AttentionShape& s, int64_t page_size, int64_t kv_head, int64_t d,
                           int64_t slot) {
  const int64_t head = kv_head * KeyDims(s) * page_size;
  return HasPairs(s) ? head + (d / 2 * page_size + slot) * 2 + d % 2 : head + d * page_size + slot;
}
constexpr int64_t ValueIndex(const AttentionShape& s, int64_t page_size, int64_t kv_head,
                             int64_t slot, int64_t d) {
  const int64_t head = kv_head * page_size * s.head_dim_v;
  return HasPairs(s) ? head + (slot / 2 * s.head_dim_v + d) * 2 + slot % 2
                     : head + slot * s.head_dim_v + d;
}

}  // namespace quire::kernels
