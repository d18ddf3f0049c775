// kernels/cpu/linear_dot-inl.h -- the loops of linear_dot.h by fma, over a vector type V, after
// linear-inl.h: what CPUs without tile instructions run. No include guard and no includes.

// Values of the 32 k of one block and kLanes columns, less the centre; scales and means of them.
struct DotBlock {
  static constexpr int32_t kParts = 2;  // only Q6_K has two
  alignas(64) float codes[kDotBlock][V::kLanes];
  typename V::F scale[kParts];
};

constexpr int32_t CentreOf(DType type) {
  const BlockFormat f = FormatOf(type);
  if (f.has_min) return f.bits == 5 ? 16 : 8;
  return f.offset;
}
constexpr int32_t PartsOf(DType type) { return type == DType::kQ6_K ? 2 : 1; }
constexpr bool HasMean(DType type) { return FormatOf(type).has_min; }

// means: [num_blocks][kPanel] of the blocks from first on.
template <DType kType>
void FillMeans(const std::byte* panel, int64_t first, int64_t num_blocks, float* means) {
  if constexpr (HasMean(kType)) {
    const typename V::F centre = V::Set1(static_cast<float>(CentreOf(kType)));
    for (int64_t b = 0; b < num_blocks; ++b) {
      for (int32_t col = 0; col < kPanel; col += V::kLanes) {
        Decoder<kType> column;
        column.Begin(panel, first + b, col);
        V::Store(means + b * kPanel + col, V::Fma(column.scale_, centre, column.min_));
      }
    }
  }
}

// The code of Decoder::Value alone, less the centre.
template <DType kType, int j>
typename V::F Code(const Decoder<kType>& d) {
  constexpr BlockFormat kFormat = FormatOf(kType);
  constexpr int kHalf = j % 2 * 16;
  if constexpr (kFormat.bits == 8) {
    return V::template ByteI8<j % 2 * 2 + j / 4>(j / 2 % 2 == 0 ? d.low_ : d.next_low_);
  } else {
    typename V::F q =
        V::template Nibble<CentreOf(kType)>(V::template Shr<kHalf + j / 2 * 4>(d.low_));
    if constexpr (kFormat.bits == 5) {
      q = V::Add(q, V::HighBit(V::template Shr<kHalf + j / 2>(d.high_)));
    }
    if constexpr (kFormat.bits == 6) {
      q = V::Add(q, V::HighPair(V::template Shr<kHalf + j / 2 * 2>(d.high_)));
    }
    return q;
  }
}

template <DType kType>
void FillBlock(const std::byte* panel, int64_t block, int32_t col, DotBlock& out) {
  Decoder<kType> d;
  d.Begin(panel, block, col);
  for (int32_t g = 0; g < 4; ++g) {
    if (g % 2 == 0) {
      d.Half(g / 2);
      if constexpr (kType == DType::kQ6_K) out.scale[g / 2] = d.scale_;
    }
    d.Group(g);
    float(*group)[V::kLanes] = out.codes + 8 * g;
    if constexpr (FormatOf(kType).is_block()) {
      V::Store(group[0], Code<kType, 0>(d));
      V::Store(group[1], Code<kType, 1>(d));
      V::Store(group[2], Code<kType, 2>(d));
      V::Store(group[3], Code<kType, 3>(d));
      V::Store(group[4], Code<kType, 4>(d));
      V::Store(group[5], Code<kType, 5>(d));
      V::Store(group[6], Code<kType, 6>(d));
      V::Store(group[7], Code<kType, 7>(d));
    } else {
      for (int32_t j = 0; j < 8; ++j) V::Store(group[j], d.At(block * kDotBlock + 8 * g + j));
    }
  }
  if constexpr (FormatOf(kType).is_block() && kType != DType::kQ6_K) out.scale[0] = d.scale_;
}

// c[r][col ..] of kRows rows continues over one block. x: [kRows][32] bfloat16.
template <DType kType, int kRows>
void DotBlockRows(const DotBlock& w, const uint16_t* x, float* c) {
  constexpr int kParts = PartsOf(kType);
  typename V::F y[kRows];
  QUIRE_UNROLL
  for (int r = 0; r < kRows; ++r) y[r] = V::Load(c + r * kPanel);
  for (int part = 0; part < kParts; ++part) {
    typename V::F even[kRows], odd[kRows];
    QUIRE_UNROLL
    for (int r = 0; r < kRows; ++r) even[r] = odd[r] = V::Zero();
    for (int64_t i = part * (kDotBlock / kParts); i < (part + 1) * (kDotBlock / kParts); i += 2) {
      const typename V::F w0 = V::Load(w.codes[i]);
      const typename V::F w1 = V::Load(w.codes[i + 1]);
      QUIRE_UNROLL
      for (int r = 0; r < kRows; ++r) {
        even[r] = V::Fma(V::Set1(BF16ToFloat(x[r * kDotBlock + i])), w0, even[r]);
        odd[r] = V::Fma(V::Set1(BF16ToFloat(x[r * kDotBlock + i + 1])), w1, odd[r]);
      }
    }
    QUIRE_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const typename V::F dot = V::Add(even[r], odd[r]);
      if constexpr (FormatOf(kType).is_block()) {
        y[r] = V::Fma(dot, w.scale[part], y[r]);
      } else {
        y[r] = V::Add(y[r], dot);
      }
    }
  }
  QUIRE_UNROLL
  for (int r = 0; r < kRows; ++r) V::Store(c + r * kPanel, y[r]);
}

// Few rows: codes meet x in registers, so that a decode step reads the packed bytes and nothing
// else. One step of a block: the values 8 g + j of kVecs vectors of columns. x: [kRows][32] of the
// block.
template <DType kType, int kRows, int kVecs>
struct DotFew {
  typename V::F even[kRows][kVecs], odd[kRows][kVecs], y[kRows][kVecs];
  Decoder<kType> column[kVecs];

  void Clear() {
    QUIRE_UNROLL
    for (int r = 0; r < kRows; ++r) {
      QUIRE_UNROLL
      for (int v = 0; v < kVecs; ++v) even[r][v] = odd[r][v] = V::Zero();
    }
  }

  template <int j>
  void Step(const float* x) {
    QUIRE_UNROLL
    for (int v = 0; v < kVecs; ++v) {
      typename V::F w;
      if constexpr (FormatOf(kType).is_block()) {
        w = Code<kType, j>(column[v]);
      } else {
        w = column[v].template Value<j>();
      }
      QUIRE_UNROLL
      for (int r = 0; r < kRows; ++r) {
        const typename V::F xr = V::Set1(x[r * kDotBlock + j]);
        if constexpr (j % 2 == 0) {
          even[r][v] = V::Fma(xr, w, even[r][v]);
        } else {
          odd[r][v] = V::Fma(xr, w, odd[r][v]);
        }
      }
    }
  }

  void Add() {
    QUIRE_UNROLL
    for (int r = 0; r < kRows; ++r) {
      QUIRE_UNROLL
      for (int v = 0; v < kVecs; ++v) {
        const typename V::F dot = V::Add(even[r][v], odd[r][v]);
        if constexpr (FormatOf(kType).is_block()) {
          y[r][v] = V::Fma(dot, column[v].scale_, y[r][v]);
        } else {
          y[r][v] = V::Add(y[r][v], dot);
        }
      }
    }
    Clear();
  }

  void Block(const std::byte* panel, int64_t block, int32_t col, const float* x) {
    QUIRE_UNROLL
    for (int v = 0; v < kVecs; ++v) column[v].Begin(panel, block, col + v * V::kLanes);
    for (int32_t g = 0; g < 4; ++g, x += 8) {
      if (g % 2 == 0) {
        if (PartsOf(kType) == 2 && g == 2) Add();
        QUIRE_UNROLL
        for (int v = 0; v < kVecs; ++v) column[v].Half(g / 2);
      }
      if constexpr (FormatOf(kType).is_block()) {
        if (col == 0) PrefetchAhead<kType, 4>(panel, block, g);
      }
      QUIRE_UNROLL
      for (int v = 0; v < kVecs; ++v) column[v].Group(g);
      Step<0>(x);
      Step<1>(x);
      Step<2>(x);
      Step<3>(x);
      Step<4>(x);
      Step<5>(x);
      Step<6>(x);
      Step<7>(x);
    }
    Add();
  }
};

template <DType kType, int kRows>
void DotFewRows(const std::byte* panel, const DotRows& x, int64_t tile, float* c) {
  constexpr int kVecs = V::kFewVecs;
  alignas(64) float means[kDotRun * kPanel];
  alignas(64) float values[kDotRun * kRows * kDotBlock];
  const uint16_t* rows = x.Tile(tile);
  for (int64_t i = 0; i < kRows * kPanel; ++i) c[i] = 0.0f;
  for (int64_t b0 = 0; b0 < x.blocks; b0 += kDotRun) {
    const int64_t num_blocks = x.blocks - b0 < kDotRun ? x.blocks - b0 : kDotRun;
    if constexpr (HasMean(kType)) {
      FillMeans<kType>(panel, b0, num_blocks, means);
      TileRows<kRows>(means, num_blocks, x.sums + tile * kTileRows * x.blocks + b0, x.blocks, false,
                      c);
    }
    const uint16_t* run = rows + b0 * kRows * kDotBlock;
    for (int64_t i = 0; i < num_blocks * kRows * kDotBlock; ++i) values[i] = BF16ToFloat(run[i]);
    for (int32_t col = 0; col < kPanel; col += kVecs * V::kLanes) {
      DotFew<kType, kRows, kVecs> few;
      few.Clear();
      QUIRE_UNROLL
      for (int r = 0; r < kRows; ++r) {
        QUIRE_UNROLL
        for (int v = 0; v < kVecs; ++v) {
          few.y[r][v] = V::Load(c + r * kPanel + col + v * V::kLanes);
        }
      }
      for (int64_t b = 0; b < num_blocks; ++b) {
        few.Block(panel, b0 + b, col, values + b * kRows * kDotBlock);
      }
      QUIRE_UNROLL
      for (int r = 0; r < kRows; ++r) {
        QUIRE_UNROLL
        for (int v = 0; v < kVecs; ++v) {
          V::Store(c + r * kPanel + col + v * V::kLanes, few.y[r][v]);
        }
      }
    }
  }
}

// Rows of one tile that DotFewRows takes.
template <DType kType>
bool DotFewOf(const std::byte* panel, const DotRows& x, int64_t tile, int64_t most, float* c) {
  const int64_t rows = x.RowsOfTile(tile);
  if (rows > most) return false;
  if (rows == 1) DotFewRows<kType, 1>(panel, x, tile, c);
  if (rows == 2) DotFewRows<kType, 2>(panel, x, tile, c);
  if (rows == 3) DotFewRows<kType, 3>(panel, x, tile, c);
  return true;
}

template <DType kType>
void DotPanel(const std::byte* panel, const DotRows& x, int64_t first_tile, int64_t num_tiles,
              float* c) {
  if (num_tiles == 1 && DotFewOf<kType>(panel, x, first_tile, 3, c)) return;
  alignas(64) float means[kDotRun * kPanel];
  const int64_t first_row = first_tile * kTileRows;
  int64_t rows = 0;
  for (int64_t t = 0; t < num_tiles; ++t) rows += x.RowsOfTile(first_tile + t);
  for (int64_t i = 0; i < rows * kPanel; ++i) c[i] = 0.0f;
  for (int64_t b0 = 0; b0 < x.blocks; b0 += kDotRun) {
    const int64_t num_blocks = x.blocks - b0 < kDotRun ? x.blocks - b0 : kDotRun;
    if constexpr (HasMean(kType)) {
      FillMeans<kType>(panel, b0, num_blocks, means);
      for (int64_t r = 0; r < rows; r += V::kTileRows) {
        TileAnyRows(rows - r, means, num_blocks, x.sums + (first_row + r) * x.blocks + b0, x.blocks,
                    false, c + r * kPanel);
      }
    }
    for (int64_t b = b0; b < b0 + num_blocks; ++b) {
      for (int32_t col = 0; col < kPanel; col += V::kLanes) {
        DotBlock w;
        FillBlock<kType>(panel, b, col, w);
        for (int64_t t = 0; t < num_tiles; ++t) {
          const int64_t n = x.RowsOfTile(first_tile + t);
          const uint16_t* tile = x.Tile(first_tile + t) + b * n * kDotBlock;
          float* out = c + t * kTileRows * kPanel + col;
          int64_t r = 0;
          for (; r + 4 <= n; r += 4) {
            DotBlockRows<kType, 4>(w, tile + r * kDotBlock, out + r * kPanel);
          }
          for (; r < n; ++r) DotBlockRows<kType, 1>(w, tile + r * kDotBlock, out + r * kPanel);
        }
      }
    }
  }
}

inline void DotPanelOf(DType type, const std::byte* panel, const DotRows& x, int64_t first_tile,
                       int64_t num_tiles, float* c) {
  switch (type) {
    case DType::kBF16:
      return DotPanel<DType::kBF16>(panel, x, first_tile, num_tiles, c);
    case DType::kQ4_0:
      return DotPanel<DType::kQ4_0>(panel, x, first_tile, num_tiles, c);
    case DType::kQ4_1:
      return DotPanel<DType::kQ4_1>(panel, x, first_tile, num_tiles, c);
    case DType::kQ5_0:
      return DotPanel<DType::kQ5_0>(panel, x, first_tile, num_tiles, c);
    case DType::kQ5_1:
      return DotPanel<DType::kQ5_1>(panel, x, first_tile, num_tiles, c);
    case DType::kQ8_0:
      return DotPanel<DType::kQ8_0>(panel, x, first_tile, num_tiles, c);
    case DType::kQ4_K:
      return DotPanel<DType::kQ4_K>(panel, x, first_tile, num_tiles, c);
    case DType::kQ5_K:
      return DotPanel<DType::kQ5_K>(panel, x, first_tile, num_tiles, c);
    case DType::kQ6_K:
      return DotPanel<DType::kQ6_K>(panel, x, first_tile, num_tiles, c);
    default:
      break;  // PackedWeight::Pack turns plain types into bfloat16
  }
}
