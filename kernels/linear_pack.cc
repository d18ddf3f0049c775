// PackedWeight: from a checkpoint's rows to panels of 64 columns (block_format.h), and back for one
// row. Load time and embedding look-ups; the products are in linear.cc.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/block_format.h"
#include "kernels/dequant.h"
#include "kernels/linear.h"
#include "kernels/quantize.h"
#include "kernels/weight_memory.h"

namespace quire::kernels {
namespace {

int64_t RoundUp32(int64_t k) { return (k + 31) / 32 * 32; }

size_t PanelBytes(DType type, PanelLayout layout, int64_t k) {
  const BlockFormat format = FormatOf(type, layout);
  const DTypeInfo info = InfoOf(type);
  if (type == DType::kBF16) k = RoundUp32(k);
  const size_t blocks = static_cast<size_t>(k / info.block_size);
  return blocks * (format.is_block()
                       ? format.record_bytes()
                       : format.num_columns() * static_cast<size_t>(info.block_bytes));
}

// Where value j of a word of 2 n values of `bits` bits is: even ones in the lower half.
constexpr uint32_t ShiftOf(uint32_t j, uint32_t bits) { return j % 2 * 16 + j / 2 * bits; }

// Where byte i of 32 is in the words of column col.
constexpr size_t ByteOf(size_t i, size_t col) {
  const size_t j = i % 8;
  return (i / 8 * 2 + j / 2 % 2) * kPanel * 4 + col * 4 + j % 2 * 2 + j / 4;
}

// The lowest four bits of eight bytes as one word.
uint32_t PackNibbles(const uint8_t* codes) {
  uint32_t word = 0;
  for (uint32_t j = 0; j < 8; ++j) word |= (codes[j] & 15u) << ShiftOf(j, 4);
  return word;
}

template <typename T>
void Put(std::byte* at, size_t col, T value) {
  std::memcpy(at + col * sizeof(T), &value, sizeof(T));
}

template <typename T>
T Get(const std::byte* at, size_t col) {
  T value;
  std::memcpy(&value, at + col * sizeof(T), sizeof(T));
  return value;
}

// Scales and mins of column `col` of sub-block `sub` of a packed record. Returns its codes.
std::byte* PutScales(const BlockFormat& f, std::byte* record, int32_t sub, size_t col,
                     const SubBlock& s) {
  Put(record, col, s.d);
  if (f.has_min) Put(record + 2 * f.num_columns(), col, s.m);
  std::byte* p = record + f.header_bytes() + static_cast<size_t>(sub) * f.sub_block_bytes();
  for (int32_t i = 0; i < f.num_scales; ++i) Put(p + i * f.columns, col, s.scale[i]);
  if (f.num_scales > 0 && f.has_min) Put(p + f.mins_offset(), col, s.min);
  return p + f.codes_offset();
}

void PutColumn(const BlockFormat& f, std::byte* record, int32_t sub, size_t col,
               const SubBlock& s) {
  std::byte* const codes = PutScales(f, record, sub, col, s);
  if (f.bits == 8) {
    for (size_t i = 0; i < kSubBlock; ++i) Put(codes + ByteOf(i, col), 0, s.codes[i]);
    return;
  }
  for (int32_t g = 0; g < 4; ++g) Put(codes + 4 * kPanel * g, col, PackNibbles(s.codes + 8 * g));
  std::byte* const high = codes + 16 * kPanel;
  if (f.bits == 5) {
    uint32_t bits = 0;
    for (uint32_t i = 0; i < kSubBlock; ++i) bits |= (s.codes[i] >> 4 & 1u) << ShiftOf(i, 1);
    Put(high, col, bits);
  } else if (f.bits == 6) {
    for (int32_t h = 0; h < 2; ++h) {
      uint32_t bits = 0;
      for (uint32_t i = 0; i < 16; ++i) bits |= (s.codes[16 * h + i] >> 4 & 3u) << ShiftOf(i, 2);
      Put(high + 4 * kPanel * h, col, bits);
    }
  }
}

// Bits [shift, shift + bits) of the codes of 16 / bits columns side by side in the words of a row
// of kValues.
void PutWords(const SubBlock* columns, uint32_t shift, uint32_t bits, std::byte* to) {
  uint16_t words[kSubBlock] = {};
  for (uint32_t j = 0; j < 16 / bits; ++j) {
    const uint32_t mask = (1u << bits) - 1;
    for (size_t i = 0; i < kSubBlock; ++i) {
      const uint32_t part = columns[j].codes[i] >> shift & mask;
      words[i] = static_cast<uint16_t>(words[i] | part << (bits * j));
    }
  }
  std::memcpy(to, words, sizeof(words));
}

// A sub-block of all columns in kValues.
void PutValues(const BlockFormat& f, std::byte* record, int32_t sub,
               const std::array<SubBlock, kPanel>& columns) {
  std::byte* codes = nullptr;
  for (size_t col = 0; col < f.num_columns(); ++col) {
    codes = PutScales(f, record, sub, col, columns[col]);
    if (f.bits == 8) std::memcpy(codes + col * kSubBlock, columns[col].codes, kSubBlock);
  }
  if (f.bits == 8) return;
  constexpr size_t kRow = kSubBlock * sizeof(uint16_t);
  const auto put = [&](std::byte* rows, uint32_t shift, size_t bits) {
    const size_t per_row = 16 / bits;
    for (size_t q = 0; q < f.num_columns() / per_row; ++q) {
      PutWords(&columns[per_row * q], shift, static_cast<uint32_t>(bits), rows + q * kRow);
    }
  };
  put(codes, 0, 4);
  std::byte* const high = codes + 16 * f.num_columns();
  if (f.bits == 5) put(high, 4, 1);
  if (f.bits == 6) put(high, 4, 2);
}

// Code i of column col, without what the format subtracts.
uint32_t GetCode(const BlockFormat& f, PanelLayout layout, const std::byte* codes, size_t col,
                 uint32_t i) {
  const bool values = layout == PanelLayout::kValues;
  if (f.bits == 8) return Get<uint8_t>(codes + (values ? col * kSubBlock + i : ByteOf(i, col)), 0);
  const std::byte* const high = codes + 16 * f.num_columns();
  if (values) {
    // Bits of a column in the words of rows of 16 / bits columns.
    const auto part = [&](const std::byte* rows, size_t bits) {
      const size_t row = col / (16 / bits), shift = col % (16 / bits) * bits;
      return Get<uint16_t>(rows, row * kSubBlock + i) >> shift & ((1u << bits) - 1);
    };
    uint32_t code = part(codes, 4);
    if (f.bits == 5) code |= part(high, 1) << 4;
    if (f.bits == 6) code |= part(high, 2) << 4;
    return code;
  }
  uint32_t code = Get<uint32_t>(codes + 4 * kPanel * (i / 8), col) >> ShiftOf(i % 8, 4) & 15u;
  if (f.bits == 5) code |= (Get<uint32_t>(high, col) >> ShiftOf(i, 1) & 1u) << 4;
  if (f.bits == 6) {
    const auto pairs = Get<uint32_t>(high + 4 * kPanel * (i / 16), col);
    code |= (pairs >> ShiftOf(i % 16, 2) & 3u) << 4;
  }
  return code;
}

SubBlock GetSubBlock(const BlockFormat& f, PanelLayout layout, const std::byte* record, int32_t sub,
                     size_t col) {
  SubBlock s;
  s.d = Get<uint16_t>(record, col);
  if (f.has_min) s.m = Get<uint16_t>(record + 2 * f.num_columns(), col);
  const std::byte* p = record + f.header_bytes() + static_cast<size_t>(sub) * f.sub_block_bytes();
  for (int32_t i = 0; i < f.num_scales; ++i) s.scale[i] = Get<int8_t>(p + i * f.columns, col);
  if (f.num_scales == 1) s.scale[1] = s.scale[0];
  if (f.num_scales > 0 && f.has_min) s.min = Get<uint8_t>(p + f.mins_offset(), col);
  for (uint32_t i = 0; i < kSubBlock; ++i) {
    s.codes[i] = static_cast<uint8_t>(GetCode(f, layout, p + f.codes_offset(), col, i));
  }
  return s;
}

// Of value k of column col, in elements from the panel's start.
int64_t PlainIndex(DType type, PanelLayout layout, int64_t k, int64_t col) {
  if (layout == PanelLayout::kValues) {
    return (k / kSubBlock * ColumnsOf(layout) + col) * kSubBlock + k % kSubBlock;
  }
  return type == DType::kBF16 ? (k / 2 * kPanel + col) * 2 + k % 2 : k * kPanel + col;
}

// rows: first of num_rows <= ColumnsOf(layout) rows of the file's matrix. panel: zeroed, so that
// columns past the last row have scale 0 and cost nothing but their place.
void PackPanel(DType type, PanelLayout layout, const std::byte* rows, int64_t num_rows, int64_t k,
               std::byte* panel) {
  const BlockFormat f = FormatOf(type, layout);
  const DTypeInfo info = InfoOf(type);
  const auto row_bytes = BytesFor(type, static_cast<size_t>(k));
  const auto bytes = static_cast<size_t>(info.block_bytes);
  if (!f.is_block()) {
    // Eight k at a time: the writes of a column's step stay within lines just written.
    for (int64_t k0 = 0; k0 < k; k0 += 8) {
      const int64_t end = std::min<int64_t>(k, k0 + 8);
      for (int64_t r = 0; r < num_rows; ++r) {
        const std::byte* row = rows + static_cast<size_t>(r) * row_bytes;
        for (int64_t i = k0; i < end; ++i) {
          std::memcpy(panel + static_cast<size_t>(PlainIndex(type, layout, i, r)) * bytes,
                      row + static_cast<size_t>(i) * bytes, bytes);
        }
      }
    }
    return;
  }
  std::array<SubBlock, kPanel> columns;
  for (int64_t block = 0; block < k / info.block_size; ++block) {
    std::byte* record = panel + static_cast<size_t>(block) * f.record_bytes();
    const std::byte* source = rows + static_cast<size_t>(block) * bytes;
    for (int32_t sub = 0; sub < f.sub_blocks; ++sub) {
      for (size_t r = 0; r < static_cast<size_t>(num_rows); ++r) {
        columns[r] = ReadSubBlock(type, source + r * row_bytes, sub);
        if (layout == PanelLayout::kColumns) PutColumn(f, record, sub, r, columns[r]);
      }
      if (layout == PanelLayout::kValues) PutValues(f, record, sub, columns);
    }
  }
}

bool IsWeightType(DType type) {
  return FormatOf(type).is_block() || type == DType::kF32 || type == DType::kF16 ||
         type == DType::kBF16;
}

}  // namespace

void PackedWeight::Free::operator()(std::byte* p) const { FreeWeights(p); }

absl::StatusOr<PackedWeight> PackedWeight::Pack(const TensorView& w, ThreadPool& pool,
                                                ComputeType compute, Quantization quantization) {
  const DTypeInfo info = InfoOf(w.dtype);
  if (!IsWeightType(w.dtype)) {
    return Error(absl::StatusCode::kUnimplemented,
                 "weight type={} is not supported; use F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, "
                 "Q8_0, Q4_K, Q5_K or Q6_K",
                 info.name);
  }
  if (w.rank != 2 || w.shape[0] <= 0 || w.shape[1] <= 0) {
    return InvalidArgument("weight shape={} must be [n, k] with n and k at least 1", w.ToString());
  }
  const int64_t n = w.shape[0];
  const int64_t k = w.shape[1];
  if (k % info.block_size != 0) {
    return InvalidArgument("weight shape={} must have k a multiple of {}, the block size of {}",
                           w.ToString(), info.block_size, info.name);
  }
  // 2^46 values are beyond any memory; below it no size that follows can overflow.
  if (n > (int64_t{1} << 46) / k) {
    return InvalidArgument("weight shape={} must have fewer than 2^46 values", w.ToString());
  }
  PackedWeight out;
  out.n_ = n;
  out.k_ = k;
  out.dtype_ = QuantizedType(quantization, w.dtype, k);
  out.compute_ = ResolveCompute(compute, out.dtype_);
  if (!FormatOf(out.dtype_).is_block()) {
    if (out.compute_ == ComputeType::kI8 && k % kSubBlock != 0) out.compute_ = ComputeType::kF32;
    if (out.compute_ == ComputeType::kBF16) out.dtype_ = DType::kBF16;
    if (out.compute_ == ComputeType::kI8) out.dtype_ = DType::kQ8_0;
  }
  const PanelLayout layout = LayoutOf(out.compute_);
  const int64_t columns = ColumnsOf(layout);
  const int64_t panels = (n + columns - 1) / columns;
  const size_t panel_bytes = PanelBytes(out.dtype_, layout, k);
  out.bytes_ = static_cast<size_t>(panels) * panel_bytes;
  out.data_.reset(AllocateWeights(out.bytes_));
  if (out.data_ == nullptr) {
    return Error(absl::StatusCode::kResourceExhausted, "weight shape={} needs {} bytes",
                 w.ToString(), out.bytes_);
  }
  const auto* source = static_cast<const std::byte*>(w.data);
  const size_t row_bytes = BytesFor(w.dtype, static_cast<size_t>(k));
  pool.ParallelFor(panels, [&](int64_t panel, int32_t) {
    const int64_t first = panel * columns;
    std::byte* to = out.data_.get() + static_cast<size_t>(panel) * panel_bytes;
    if (n - first < columns || (out.dtype_ == DType::kBF16 && k % 32 != 0)) {
      std::memset(to, 0, panel_bytes);
    }
    const std::byte* rows = source + static_cast<size_t>(first) * row_bytes;
    const int64_t num_rows = std::min(columns, n - first);
    if (out.dtype_ == w.dtype) {
      PackPanel(w.dtype, layout, rows, num_rows, k, to);
    } else {
      const std::vector<std::byte> quantized = Quantized(w.dtype, rows, num_rows * k, out.dtype_);
      PackPanel(out.dtype_, layout, quantized.data(), num_rows, k, to);
    }
  });
  return out;
}

void PackedWeight::Row(int64_t row, float* out) const {
  DCHECK(row >= 0 && row < n_, "row={} of {}", row, n_);
  const PanelLayout layout = LayoutOf(compute_);
  const BlockFormat f = FormatOf(dtype_, layout);
  const auto col = static_cast<size_t>(row % f.columns);
  const std::byte* panel =
      data_.get() + static_cast<size_t>(row / f.columns) * PanelBytes(dtype_, layout, k_);
  if (!f.is_block()) {
    const auto bytes = static_cast<size_t>(InfoOf(dtype_).block_bytes);
    for (int64_t i = 0; i < k_; ++i) {
      const int64_t at = PlainIndex(dtype_, layout, i, static_cast<int64_t>(col));
      Dequantize(dtype_, panel + static_cast<size_t>(at) * bytes, 1, out + i);
    }
    return;
  }
  for (int64_t i = 0; i < k_; i += kSubBlock) {
    const int64_t sub = i / kSubBlock;
    const std::byte* record = panel + static_cast<size_t>(sub / f.sub_blocks) * f.record_bytes();
    const SubBlock s =
        GetSubBlock(f, layout, record, static_cast<int32_t>(sub % f.sub_blocks), col);
    ValuesOf(dtype_, s, out + i);
  }
}

}  // namespace quire::kernels
