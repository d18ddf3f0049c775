// kernels/cpu/linear_int8-inl.h -- the loops of linear_int8.h over a vector type V, after
// linear-inl.h. V has, besides its own, on kLanes words of four codes:
//   SetWord(w)          w in every lane
//   DotSmall(acc, u, x) acc + sum of u's unsigned bytes, below 128, times x's signed ones
//   Code8(q)            signed bytes as Dot8 takes them
//   Dot8(acc, c, x)     acc + sum of c's bytes times x's, less kDot8Excess times the sum of x's
//   ToFloat(acc)
// No include guard and no includes.

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

// What a block's dot starts from, times the sum of x's bytes.
template <DType kType>
constexpr int32_t StartOf() {
  return FormatOf(kType).bits == 8 ? V::kDot8Excess : -CentreOf(kType);
}

// Word `w` (0, 1) of the group whose nibbles are in d.low_: values 0 4 1 5 or 2 6 3 7, unsigned.
template <DType kType, int w>
typename V::U CodesOf(const Decoder<kType>& d) {
  constexpr BlockFormat kFormat = FormatOf(kType);
  if constexpr (kFormat.bits == 8) return w == 0 ? d.low_ : d.next_low_;
  const typename V::U nibbles = V::And(V::template Shr<4 * w>(d.low_), V::SetWord(0x0f0f0f0fu));
  if constexpr (kFormat.bits == 5) {
    // Pair p's bit is bit p of each half: pairs w and w + 2 go to bit 4 of the halves' bytes.
    const typename V::U bits = V::template Shr<w>(d.high_);
    const typename V::U first = V::And(V::template Shl<4>(bits), V::SetWord(0x00100010u));
    const typename V::U second = V::And(V::template Shl<10>(bits), V::SetWord(0x10001000u));
    return V::Or(nibbles, V::Or(first, second));
  }
  if constexpr (kFormat.bits == 6) {
    const typename V::U first =
        V::And(V::template Shl<4 - 2 * w>(d.high_), V::SetWord(0x00300030u));
    const typename V::U second =
        V::And(V::template Shl<8 - 2 * w>(d.high_), V::SetWord(0x30003000u));
    return V::Or(nibbles, V::Or(first, second));
  }
  return nibbles;
}

// What DotCodes takes for codes that several rows meet.
template <DType kType>
struct ForDots {
  typename V::U operator()(typename V::U codes) const {
    if constexpr (FormatOf(kType).bits == 8) return V::Code8(codes);
    return codes;
  }
};

template <DType kType>
typename V::U DotCodes(typename V::U acc, typename V::U codes, typename V::U x) {
  if constexpr (FormatOf(kType).bits == 8) return V::Dot8(acc, codes, x);
  return V::DotSmall(acc, codes, x);
}

inline typename V::U WordOf(const int8_t* x) {
  uint32_t word;
  __builtin_memcpy(&word, x, sizeof(word));
  return V::SetWord(word);
}

// Few rows: codes meet x in registers.
template <DType kType, int kRows, int kVecs>
struct Int8Few {
  typename V::F y[kRows][kVecs];

  // scale, total: [kRows] of x's 32 values. Q6_K starts each half by itself.
  void Block(const std::byte* panel, int64_t block, int32_t col, const int8_t* x,
             const float* scale, const int32_t* total) {
    typename V::U acc[kRows][kVecs];
    Decoder<kType> column[kVecs];
    QUIRE_UNROLL
    for (int v = 0; v < kVecs; ++v) column[v].Begin(panel, block, col + v * V::kLanes);
    Start(x, 0, total, acc);
    for (int32_t g = 0; g < 4; ++g) {
      if (g % 2 == 0) {
        if (PartsOf(kType) == 2 && g == 2) {
          Add(column, scale, acc);
          Start(x, 1, total, acc);
        }
        QUIRE_UNROLL
        for (int v = 0; v < kVecs; ++v) column[v].Half(g / 2);
      }
      if (col == 0) PrefetchAhead<kType, 4>(panel, block, g);
      QUIRE_UNROLL
      for (int v = 0; v < kVecs; ++v) {
        column[v].Group(g);
        const typename V::U first = ForDots<kType>()(CodesOf<kType, 0>(column[v]));
        const typename V::U second = ForDots<kType>()(CodesOf<kType, 1>(column[v]));
        QUIRE_UNROLL
        for (int r = 0; r < kRows; ++r) {
          const int8_t* group = x + r * kDotBlock + 8 * g;
          acc[r][v] = DotCodes<kType>(acc[r][v], first, WordOf(group));
          acc[r][v] = DotCodes<kType>(acc[r][v], second, WordOf(group + 4));
        }
      }
    }
    Add(column, scale, acc);
  }

 private:
  void Start(const int8_t* x, int part, const int32_t* total, typename V::U (*acc)[kVecs]) {
    QUIRE_UNROLL
    for (int r = 0; r < kRows; ++r) {
      int32_t sum = total[r];
      if constexpr (PartsOf(kType) == 2) {
        sum = 0;
        for (int i = 16 * part; i < 16 * part + 16; ++i) sum += x[r * kDotBlock + i];
      }
      const typename V::U start = V::SetWord(static_cast<uint32_t>(StartOf<kType>() * sum));
      QUIRE_UNROLL
      for (int v = 0; v < kVecs; ++v) acc[r][v] = start;
    }
  }

  void Add(const Decoder<kType>* column, const float* scale, typename V::U (*acc)[kVecs]) {
    QUIRE_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const typename V::F dx = V::Set1(scale[r]);
      QUIRE_UNROLL
      for (int v = 0; v < kVecs; ++v) {
        y[r][v] = V::Fma(V::Mul(V::ToFloat(acc[r][v]), dx), column[v].scale_, y[r][v]);
      }
    }
  }
};

// The rows from `row` on of a tile, which are kRows; c: their first.
template <DType kType, int kRows>
void Int8FewRows(const std::byte* panel, const Int8Rows& x, int64_t tile, int64_t row, int64_t b0,
                 int64_t num_blocks, float* c) {
  constexpr int kVecs = kRows > 2 && V::kFewVecs > 2 ? V::kFewVecs / 2 : V::kFewVecs;
  const int64_t rows = x.RowsOfTile(tile);
  for (int32_t col = 0; col < kPanel; col += kVecs * V::kLanes) {
    Int8Few<kType, kRows, kVecs> few;
    QUIRE_UNROLL
    for (int r = 0; r < kRows; ++r) {
      QUIRE_UNROLL
      for (int v = 0; v < kVecs; ++v) few.y[r][v] = V::Load(c + r * kPanel + col + v * V::kLanes);
    }
    const int8_t* q = x.Tile(tile) + (b0 * rows + row) * kDotBlock;
    const float* scale = x.scales + x.At(tile, b0, row);
    const int32_t* total = x.totals + x.At(tile, b0, row);
    for (int64_t b = b0; b < b0 + num_blocks; ++b) {
      few.Block(panel, b, col, q, scale, total);
      q += rows * kDotBlock;
      scale += rows;
      total += rows;
    }
    QUIRE_UNROLL
    for (int r = 0; r < kRows; ++r) {
      QUIRE_UNROLL
      for (int v = 0; v < kVecs; ++v) V::Store(c + r * kPanel + col + v * V::kLanes, few.y[r][v]);
    }
  }
}

// Many rows: a block's codes as words in L1.
struct Int8Block {
  alignas(64) uint32_t codes[8][kPanel];
  alignas(64) float scale[2][kPanel];
};

template <DType kType, typename Change = ForDots<kType>>
void FillInt8Block(const std::byte* panel, int64_t block, Int8Block& out, Change change = {}) {
  for (int32_t col = 0; col < kPanel; col += V::kLanes) {
    PrefetchAhead<kType, kPanel / V::kLanes>(panel, block, col / V::kLanes);
    Decoder<kType> d;
    d.Begin(panel, block, col);
    for (int32_t g = 0; g < 4; ++g) {
      if (g % 2 == 0) {
        d.Half(g / 2);
        if (g < 2 * PartsOf(kType)) V::Store(out.scale[g / 2] + col, d.scale_);
      }
      d.Group(g);
      V::StoreU32(out.codes[2 * g] + col, change(CodesOf<kType, 0>(d)));
      V::StoreU32(out.codes[2 * g + 1] + col, change(CodesOf<kType, 1>(d)));
    }
  }
}

// c[kRows][kPanel] continues over one block. Not inlined: gcc would lift the loads of all codes out
// of the caller's loop over groups, and spill the sums.
template <DType kType, int kRows>
__attribute__((noinline)) void Int8BlockRows(const Int8Block& w, const int8_t* x,
                                             const float* scale, const int32_t* total, float* c) {
  constexpr int kParts = PartsOf(kType);
  for (int32_t col = 0; col < kPanel; col += V::kTileVecs * V::kLanes) {
    for (int part = 0; part < kParts; ++part) {
      typename V::U acc[kRows][V::kTileVecs];
      QUIRE_UNROLL
      for (int r = 0; r < kRows; ++r) {
        int32_t sum = total[r];
        if constexpr (kParts == 2) {
          sum = 0;
          for (int i = 16 * part; i < 16 * part + 16; ++i) sum += x[r * kDotBlock + i];
        }
        const typename V::U start = V::SetWord(static_cast<uint32_t>(StartOf<kType>() * sum));
        QUIRE_UNROLL
        for (int v = 0; v < V::kTileVecs; ++v) acc[r][v] = start;
      }
      QUIRE_UNROLL
      for (int i = 8 / kParts * part; i < 8 / kParts * (part + 1); ++i) {
        typename V::U codes[V::kTileVecs];
        QUIRE_UNROLL
        for (int v = 0; v < V::kTileVecs; ++v) {
          codes[v] =
              V::LoadU32(reinterpret_cast<const std::byte*>(w.codes[i] + col + v * V::kLanes));
        }
        QUIRE_UNROLL
        for (int r = 0; r < kRows; ++r) {
          const typename V::U word = WordOf(x + r * kDotBlock + 4 * i);
          QUIRE_UNROLL
          for (int v = 0; v < V::kTileVecs; ++v) {
            acc[r][v] = DotCodes<kType>(acc[r][v], codes[v], word);
          }
        }
      }
      QUIRE_UNROLL
      for (int r = 0; r < kRows; ++r) {
        const typename V::F dx = V::Set1(scale[r]);
        QUIRE_UNROLL
        for (int v = 0; v < V::kTileVecs; ++v) {
          float* at = c + r * kPanel + col + v * V::kLanes;
          const typename V::F s = V::Load(w.scale[part] + col + v * V::kLanes);
          V::Store(at, V::Fma(V::Mul(V::ToFloat(acc[r][v]), dx), s, V::Load(at)));
        }
      }
    }
  }
}

template <DType kType>
void Int8AnyRows(int64_t rows, const Int8Block& w, const int8_t* x, const float* scale,
                 const int32_t* total, float* c) {
  switch (rows) {
    case 1:
      return Int8BlockRows<kType, 1>(w, x, scale, total, c);
    case 2:
      return Int8BlockRows<kType, 2>(w, x, scale, total, c);
    case 3:
      return Int8BlockRows<kType, 3>(w, x, scale, total, c);
    case 4:
      return Int8BlockRows<kType, 4>(w, x, scale, total, c);
    case 5:
      return Int8BlockRows<kType, 5>(w, x, scale, total, c);
    default:
      return Int8BlockRows<kType, 6>(w, x, scale, total, c);
  }
}

// What comes before the blocks of a run: the means' part, or zeros.
template <DType kType>
void Int8Means(const std::byte* panel, const Int8Rows& x, int64_t first_row, int64_t rows,
               int64_t b0, int64_t num_blocks, float* c) {
  if constexpr (HasMean(kType)) {
    alignas(64) float means[kDotRun * kPanel];
    FillMeans<kType>(panel, b0, num_blocks, means);
    for (int64_t r = 0; r < rows; r += V::kTileRows) {
      TileAnyRows(rows - r, means, num_blocks, x.sums + (first_row + r) * x.blocks + b0, x.blocks,
                  b0 == 0, c + r * kPanel);
    }
  } else if (b0 == 0) {
    for (int64_t i = 0; i < rows * kPanel; ++i) c[i] = 0.0f;
  }
}

template <DType kType>
void Int8Panel(const std::byte* panel, const Int8Rows& x, int64_t first_tile, int64_t num_tiles,
               float* c) {
  const int64_t first_row = first_tile * kTileRows;
  const int64_t rows = (num_tiles - 1) * kTileRows + x.RowsOfTile(first_tile + num_tiles - 1);
  for (int64_t b0 = 0; b0 < x.blocks; b0 += kDotRun) {
    const int64_t num_blocks = x.blocks - b0 < kDotRun ? x.blocks - b0 : kDotRun;
    Int8Means<kType>(panel, x, first_row, rows, b0, num_blocks, c);
    if (rows == 1) {
      Int8FewRows<kType, 1>(panel, x, first_tile, 0, b0, num_blocks, c);
      continue;
    }
    if (rows == 2) {
      Int8FewRows<kType, 2>(panel, x, first_tile, 0, b0, num_blocks, c);
      continue;
    }
    for (int64_t b = b0; b < b0 + num_blocks; ++b) {
      Int8Block w;
      FillInt8Block<kType>(panel, b, w);
      for (int64_t t = 0; t < num_tiles; ++t) {
        const int64_t n = x.RowsOfTile(first_tile + t);
        const int8_t* tile = x.Tile(first_tile + t) + b * n * kDotBlock;
        // Nearly equal groups of at most six rows.
        const int64_t groups = (n + 5) / 6;
        for (int64_t g = 0; g < groups; ++g) {
          const int64_t r = n * g / groups;
          const int64_t at = x.At(first_tile + t, b, r);
          Int8AnyRows<kType>(n * (g + 1) / groups - r, w, tile + r * kDotBlock, x.scales + at,
                             x.totals + at, c + (t * kTileRows + r) * kPanel);
        }
      }
    }
  }
}

inline void Int8PanelOf(DType type, const std::byte* panel, const Int8Rows& x, int64_t first_tile,
                        int64_t num_tiles, float* c) {
  switch (type) {
    case DType::kQ4_0:
      return Int8Panel<DType::kQ4_0>(panel, x, first_tile, num_tiles, c);
    case DType::kQ4_1:
      return Int8Panel<DType::kQ4_1>(panel, x, first_tile, num_tiles, c);
    case DType::kQ5_0:
      return Int8Panel<DType::kQ5_0>(panel, x, first_tile, num_tiles, c);
    case DType::kQ5_1:
      return Int8Panel<DType::kQ5_1>(panel, x, first_tile, num_tiles, c);
    case DType::kQ8_0:
      return Int8Panel<DType::kQ8_0>(panel, x, first_tile, num_tiles, c);
    case DType::kQ4_K:
      return Int8Panel<DType::kQ4_K>(panel, x, first_tile, num_tiles, c);
    case DType::kQ5_K:
      return Int8Panel<DType::kQ5_K>(panel, x, first_tile, num_tiles, c);
    case DType::kQ6_K:
      return Int8Panel<DType::kQ6_K>(panel, x, first_tile, num_tiles, c);
    default:
      break;  // PackedWeight::Pack turns plain types into Q8_0
  }
}
