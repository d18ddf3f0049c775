// kernels/block_format.h -- the block types of GGUF as plain numbers, and how a packed panel holds
// them. Used by dequant.cc, linear_pack.cc and the kernels in cpu/; any thread.
//
// Every block type is runs of 32 values ("sub-blocks") of small unsigned or signed codes:
//     w = (d * sc) * (code - offset) + min,   min = m for Q4_1 and Q5_1, -(dmin * mn) for K types
// All products before the last sum are exact in float32 (11 bits of fp16 x 6..8 bits of scale x
// 4..8 bits of code, 24 at most), so one fma gives the same value as multiply, then add.
//
// A packed panel is some columns (rows of W) over all k, in one of two layouts.
//
// kColumns (float32, int8): panels have kPanel = 64 columns, which are a vector's lanes.
//   plain types   [k][64] elements; bfloat16 as pairs, [k / 2][64][2], k filled up to a multiple of
//                 32 with zeros
//   block types   one record per block of the file:
//     d    [64] fp16
//     m    [64] fp16                     if has_min
//     then for each sub-block of the block (1, or 8 for K types):
//       sc [kScales][64] int8 or uint8   K types; Q6_K has two, for 16 values each
//       mn [64] uint8                    K types with a min
//       low nibbles [4][64] uint32       4, 5, 6 bit: nibble j of the lower half of word g is value
//                                        8 g + 2 j, of the upper half value 8 g + 2 j + 1
//       high bits   [64] uint32          5 bit: bit i of the halves is values 2 i and 2 i + 1
//                   [2][64] uint32       6 bit: bits 2 i, 2 i + 1 of the halves of word h are
//                                        values 16 h + 2 i and 16 h + 2 i + 1
//       or codes    [8][64][4] int8      8 bit: bytes of words 2 g and 2 g + 1 are values
//                                        8 g + 0 4 1 5 and 8 g + 2 6 3 7, which is what every
//                                        second nibble of a word g above is
//
// kValues (bf16): panels have 32 columns; a vector's lanes are the 32 values of a sub-block of one
// column.
//   bfloat16      [k / 32][32][32], k filled up to a multiple of 32 with zeros
//   block types   records with d, m, sc and mn as above, then
//       low nibbles [8][32] uint16       4, 5, 6 bit: nibble j of word i of row q is value i of
//                                        column 4 q + j
//       high bits   [2][32] uint16       5 bit: bit j of word i of row s: column 16 s + j
//                   [4][32] uint16       6 bit: bits 2 j, 2 j + 1: column 8 s + j
//       or codes    [32][32] int8        8 bit
// Sources: ggml's block structs as PyPI's `gguf` reads them (gguf/quants.py).
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"
#include "kernels/linear.h"

namespace quire::kernels {

inline constexpr int32_t kSubBlock = 32;

enum class PanelLayout : uint8_t { kColumns, kValues };

constexpr PanelLayout LayoutOf(ComputeType compute) {
  return compute == ComputeType::kBF16 ? PanelLayout::kValues : PanelLayout::kColumns;
}
constexpr int32_t ColumnsOf(PanelLayout layout) {
  return layout == PanelLayout::kValues ? 32 : kPanel;
}

struct BlockFormat {
  int32_t bits = 0;        // of a code: 4, 5, 6, 8; 0 for plain types
  int32_t offset = 0;      // subtracted from the code; Q8_0's codes are signed already
  bool has_min = false;    // Q4_1, Q5_1, Q4_K, Q5_K
  int32_t num_scales = 0;  // integer scales per sub-block: 0, or 1, or 2 for Q6_K
  int32_t sub_blocks = 0;  // per block of the file
  int32_t columns = kPanel;

  constexpr bool is_block() const { return bits != 0; }
  constexpr size_t num_columns() const { return static_cast<size_t>(columns); }
  constexpr size_t header_bytes() const { return num_columns() * 2u * (has_min ? 2u : 1u); }
  constexpr size_t mins_offset() const { return num_columns() * static_cast<size_t>(num_scales); }
  // From the start of a sub-block to its codes.
  constexpr size_t codes_offset() const {
    return mins_offset() + (has_min && num_scales > 0 ? num_columns() : 0u);
  }
  // From the start of a sub-block to its high bits; REQUIRES: bits is 5 or 6.
  constexpr size_t high_offset() const { return codes_offset() + num_columns() * 16u; }
  constexpr size_t sub_block_bytes() const {
    return codes_offset() + num_columns() * static_cast<size_t>(bits) * kSubBlock / 8;
  }
  constexpr size_t record_bytes() const {
    return header_bytes() + sub_block_bytes() * static_cast<size_t>(sub_blocks);
  }
};

constexpr BlockFormat FormatOf(DType t) {
  switch (t) {
    case DType::kQ4_0:
      return {.bits = 4, .offset = 8, .sub_blocks = 1};
    case DType::kQ4_1:
      return {.bits = 4, .has_min = true, .sub_blocks = 1};
    case DType::kQ5_0:
      return {.bits = 5, .offset = 16, .sub_blocks = 1};
    case DType::kQ5_1:
      return {.bits = 5, .has_min = true, .sub_blocks = 1};
    case DType::kQ8_0:
      return {.bits = 8, .sub_blocks = 1};
    case DType::kQ4_K:
      return {.bits = 4, .has_min = true, .num_scales = 1, .sub_blocks = 8};
    case DType::kQ5_K:
      return {.bits = 5, .has_min = true, .num_scales = 1, .sub_blocks = 8};
    case DType::kQ6_K:
      return {.bits = 6, .offset = 32, .num_scales = 2, .sub_blocks = 8};
    case DType::kF32:
    case DType::kF16:
    case DType::kBF16:
    case DType::kI8:
    case DType::kI32:
    case DType::kI64:
      return {};
  }
  return {};
}

constexpr BlockFormat FormatOf(DType t, PanelLayout layout) {
  BlockFormat f = FormatOf(t);
  f.columns = ColumnsOf(layout);
  return f;
}

// 32 consecutive values of one row.
struct SubBlock {
  uint16_t d = 0;              // fp16 bits
  uint16_t m = 0;              // fp16 bits: m or dmin
  int8_t scale[2] = {1, 1};    // of values 0..15 and 16..31
  uint8_t min = 1;             // K types: times dmin
  uint8_t codes[kSubBlock]{};  // Q8_0: two's complement
};

// Sub-block `sub` (0 .. sub_blocks - 1) of the block at `block`, as the file stores it.
SubBlock ReadSubBlock(DType type, const std::byte* block, int32_t sub);

// Value i (0..31) as float32.
float ValueOf(DType type, const SubBlock& s, int32_t i);

}  // namespace quire::kernels
