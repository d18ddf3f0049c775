// kernels/cpu/linear_dot-inl.h -- the loops of linear_dot.h by fma, over a vector type V, after
// linear-inl.h: what CPUs without tile instructions run. A vector's lanes are rows of x, which
// costs one row what sixteen cost; `auto` chooses int8 on such CPUs. No include guard and no
// includes.

// Values of sixteen columns of a block, rounded to bfloat16.
struct DotColumns {
  static constexpr int32_t kColumns = 16;
  alignas(64) float w[kColumns][kDotBlock];
};

inline float RoundToBF16(float x) { return BF16ToFloat(FloatToBF16(x)); }

// Word i of row `row` of packed bits.
inline int32_t WordAt(const std::byte* rows, int32_t row, int32_t i) {
  uint16_t bits;
  __builtin_memcpy(&bits, rows + 2 * (row * kSubBlock + i), sizeof(bits));
  return bits;
}

// Code i of column col less the format's offset. codes: the first byte of the sub-block's codes.
template <DType kType>
int32_t CodeOf(const std::byte* codes, int32_t col, int32_t i) {
  constexpr BlockFormat kFormat = FormatOf(kType);
  if constexpr (kFormat.bits == 8) {
    return static_cast<int8_t>(codes[col * kSubBlock + i]);
  } else {
    int32_t code = WordAt(codes, col / 4, i) >> col % 4 * 4 & 15;
    if constexpr (kFormat.bits == 5)
      code |= (WordAt(codes, kDotColumns / 4 + col / 16, i) >> col % 16 & 1) << 4;
    if constexpr (kFormat.bits == 6) {
      code |= (WordAt(codes, kDotColumns / 4 + col / 8, i) >> col % 8 * 2 & 3) << 4;
    }
    return code - kFormat.offset;
  }
}

template <DType kType>
void FillColumns(const std::byte* panel, int64_t block, int32_t col, DotColumns& out) {
  constexpr int32_t kColumns = DotColumns::kColumns;
  if constexpr (FormatOf(kType).is_block()) {
    constexpr int kParts = kType == DType::kQ6_K ? 2 : 1;
    alignas(64) float scale[kParts][kColumns], min[kColumns] = {};
    const std::byte* codes = nullptr;
    for (int32_t c = 0; c < kColumns; c += V::kLanes) {
      Decoder<kType, PanelLayout::kValues> d;
      d.Begin(panel, block, col + c);
      codes = d.sub_ + d.kFormat.codes_offset();
      if constexpr (FormatOf(kType).has_min) V::Store(min + c, d.min_);
      for (int part = 0; part < kParts; ++part) {
        d.Scale(part);
        V::Store(scale[part] + c, d.scale_);
      }
    }
    for (int32_t c = 0; c < kColumns; ++c) {
      for (int32_t i = 0; i < kDotBlock; ++i) {
        // The product is exact: one rounding, as an fma's.
        const float q = static_cast<float>(CodeOf<kType>(codes, col + c, i));
        float value = scale[i * kParts / kDotBlock][c] * q;
        if constexpr (FormatOf(kType).has_min) value += min[c];
        out.w[c][i] = RoundToBF16(value);
      }
    }
  } else {
    const std::byte* from = panel + 2 * kDotBlock * (block * kDotColumns + col);
    for (int32_t c = 0; c < kColumns; ++c) {
      for (int32_t i = 0; i < kDotBlock; ++i) {
        out.w[c][i] = BF16ToFloat(static_cast<uint16_t>(WordAt(from, c, i)));
      }
    }
  }
}

// acc[kColumns][kTileRows] continue over a block. x: the tile's block. Lanes beyond `rows` hold
// others' values: sums that nobody reads.
template <int kColumns>
void DotBlockTile(const float (*w)[kDotBlock], const uint16_t* x, int64_t rows, float* acc) {
  for (int64_t r = 0; r < rows; r += V::kLanes) {
    typename V::F even[kColumns], odd[kColumns];
    QUIRE_UNROLL
    for (int c = 0; c < kColumns; ++c) even[c] = odd[c] = V::Zero();
    for (int64_t i = 0; i < kDotBlock; i += 2) {
      const typename V::U pair =
          V::LoadPairs(reinterpret_cast<const std::byte*>(x + i * rows + 2 * r));
      const typename V::F x0 = V::LowBF16(pair), x1 = V::HighBF16(pair);
      QUIRE_UNROLL
      for (int c = 0; c < kColumns; ++c) {
        even[c] = V::Fma(x0, V::Set1(w[c][i]), even[c]);
        odd[c] = V::Fma(x1, V::Set1(w[c][i + 1]), odd[c]);
      }
    }
    QUIRE_UNROLL
    for (int c = 0; c < kColumns; ++c) {
      float* at = acc + c * kTileRows + r;
      V::Store(at, V::Add(V::Load(at), V::Add(even[c], odd[c])));
    }
  }
}

template <DType kType>
void DotPanel(const std::byte* panel, const DotRows& x, int64_t first_tile, int64_t num_tiles,
              float* c, int64_t ldc, const float* add) {
  constexpr int32_t kColumns = DotColumns::kColumns;
  constexpr int kAtOnce = V::kFewVecs >= 4 ? 4 : 2;
  alignas(64) float acc[kMaxRows / kTileRows][kColumns * kTileRows];
  for (int32_t col = 0; col < kDotColumns; col += kColumns) {
    for (int64_t t = 0; t < num_tiles; ++t) {
      for (float& sum : acc[t]) sum = 0.0f;
    }
    for (int64_t b = 0; b < x.blocks; ++b) {
      DotColumns columns;
      FillColumns<kType>(panel, b, col, columns);
      for (int64_t t = 0; t < num_tiles; ++t) {
        const int64_t n = x.RowsOfTile(first_tile + t);
        const uint16_t* tile = x.Tile(first_tile + t) + b * n * kDotBlock;
        for (int32_t j = 0; j < kColumns; j += kAtOnce) {
          DotBlockTile<kAtOnce>(columns.w + j, tile, n, acc[t] + j * kTileRows);
        }
      }
    }
    for (int64_t t = 0; t < num_tiles; ++t) {
      for (int64_t r = 0; r < x.RowsOfTile(first_tile + t); ++r) {
        const int64_t at = (t * kTileRows + r) * ldc + col;
        for (int32_t j = 0; j < kColumns; ++j) {
          const float sum = acc[t][j * kTileRows + r];
          c[at + j] = add != nullptr ? sum + add[at + j] : sum;
        }
      }
    }
  }
}

inline void DotPanelOf(DType type, const std::byte* panel, const DotRows& x, int64_t first_tile,
                       int64_t num_tiles, float* c, int64_t ldc, const float* add) {
  switch (type) {
    case DType::kBF16:
      return DotPanel<DType::kBF16>(panel, x, first_tile, num_tiles, c, ldc, add);
    case DType::kQ4_0:
      return DotPanel<DType::kQ4_0>(panel, x, first_tile, num_tiles, c, ldc, add);
    case DType::kQ4_1:
      return DotPanel<DType::kQ4_1>(panel, x, first_tile, num_tiles, c, ldc, add);
    case DType::kQ5_0:
      return DotPanel<DType::kQ5_0>(panel, x, first_tile, num_tiles, c, ldc, add);
    case DType::kQ5_1:
      return DotPanel<DType::kQ5_1>(panel, x, first_tile, num_tiles, c, ldc, add);
    case DType::kQ8_0:
      return DotPanel<DType::kQ8_0>(panel, x, first_tile, num_tiles, c, ldc, add);
    case DType::kQ4_K:
      return DotPanel<DType::kQ4_K>(panel, x, first_tile, num_tiles, c, ldc, add);
    case DType::kQ5_K:
      return DotPanel<DType::kQ5_K>(panel, x, first_tile, num_tiles, c, ldc, add);
    case DType::kQ6_K:
      return DotPanel<DType::kQ6_K>(panel, x, first_tile, num_tiles, c, ldc, add);
    default:
      break;  // PackedWeight::Pack turns plain types into bfloat16
  }
}
