// kernels/cpu/attention_flash.h -- what the planner of `flash` hands to its inner loops.
//
// Called by kernels/attention_flash.cc only. A worker processes a work item in passes of at most
// kFlashRows rows; a row is one (query token, query head) pair of the item's kv head, token-major.
#pragma once

#include <cstdint>

#include "kernels/attention.h"

namespace quire::kernels {

inline constexpr int32_t kFlashRows = 96;                  // of a pass
inline constexpr int32_t kFlashBlock = 48;                 // of them at a time
inline constexpr int32_t kFlashSections = 4;               // kv heads per pass
inline constexpr int32_t kFlashRowBlock = 6;               // rows per register block
inline constexpr int32_t kFlashLdScores = kKeySplit + 16;  // floats; not a power of two: cache sets
inline constexpr int32_t kFlashValueDims =
    64;  // dimensions of values per pass over bf16 numerators
inline constexpr int32_t kFlashPartialHead = 16;  // floats before a partial's sums: max, sum

// Scratch of one worker; all pointers 64-byte aligned.
// With dot = BF16, scores and acc have 15 rows more: tiles are whole. What is per block stays in
// the nearest cache.
struct FlashScratch {
  float* q;        // [row blocks][head_dim][rows of the block]; BF16: [kFlashRows, FlashDotDims]
  float* scores;   // [kFlashBlock, kFlashLdScores]
  float* acc;      // [kFlashBlock, dv16]: sums of one split
  float* run_acc;  // [kFlashRows, dv16]: sums over splits
  float* keys;     // [head_dim, kKeyTile]; BF16: [FlashDotDims / 2, 16] pairs
  float* values;   // [kKeyTile, dv16]; BF16: [kKeySplit / 2, kFlashValueDims] pairs
};

struct FlashTask {
  const AttentionMetadata* m;
  const AttentionShape* s;
  const AttentionArgs* a;
  WorkItem item;
  FlashScratch scratch;
  const SharedRow* rows;  // of an item that is shared, else null
  float* partials;        // of the whole run
};

// Values of one row, padded to whole vectors.
constexpr int32_t FlashDv16(const AttentionShape& s) { return (s.head_dim_v + 15) / 16 * 16; }
// Dimensions of queries in whole runs of bf16 products.
constexpr int32_t FlashDotDims(const AttentionShape& s) {
  return (s.head_dim + kDotRun - 1) / kDotRun * kDotRun;
}
// One partial result: max and sum at floats 0 and 1, then the row's sums.
constexpr int64_t FlashPartialFloats(const AttentionShape& s) {
  return kFlashPartialHead + FlashDv16(s);
}

}  // namespace quire::kernels
