// kernels/cpu/linear-inl.h -- the loops of a packed product, over a vector type V.
//
// Included by linear_{portable,avx2,avx512}.cc, each inside its own namespace and target region,
// after the definition of
//   struct V: F (kLanes float32), U (kLanes uint32), kFewRows, kFewVecs, kTileRows, kTileVecs and
//   the operations used below.
// Few rows: a weight is expanded in registers and used at once, so a decode step reads the packed
// bytes and nothing else. Many rows: [kTileK][64] weights are expanded into a tile that stays in
// L1, then multiplied by the rows in register blocks. Either way a sum is one chain of fma over
// ascending k, so which loop ran, and where its blocks ended, does not show in the result.
// No include guard and no includes: see isa_target.h.

// One vector's worth of columns of a packed panel, expanded value by value in order of k.
// Begin at every 32 values, Half at every 16, Group at every 8, Value<0> .. Value<7> in between.
template <DType kType, PanelLayout kLayout = PanelLayout::kColumns>
struct Decoder {
  static constexpr BlockFormat kFormat = FormatOf(kType, kLayout);
  static constexpr int32_t kColumns = kFormat.columns;
  static constexpr int64_t kRecordSubs = kFormat.sub_blocks;

  // sub: index of the 32 values from the panel's start; col: first of the kLanes columns.
  void Begin(const std::byte* panel, int64_t sub, int32_t col) {
    const std::byte* record =
        panel + static_cast<size_t>(sub / kRecordSubs) * kFormat.record_bytes();
    sub_ = record + kFormat.header_bytes() +
           static_cast<size_t>(sub % kRecordSubs) * kFormat.sub_block_bytes();
    col_ = col;
    d_ = V::LoadF16(record + 2 * col);
    scale_ = d_;
    if constexpr (kFormat.num_scales == 1) scale_ = V::Mul(d_, V::LoadI8(sub_ + col));
    if constexpr (kFormat.has_min) min_ = V::LoadF16(record + 2 * (kColumns + col));
    if constexpr (kFormat.has_min && kFormat.num_scales > 0) {
      min_ = V::Neg(V::Mul(min_, V::LoadI8(sub_ + kFormat.mins_offset() + col)));
    }
    if constexpr (kFormat.bits == 5) high_ = V::LoadU32(sub_ + kFormat.high_offset() + 4 * col);
  }

  void Half(int32_t h) {
    if constexpr (kFormat.bits == 6) {
      high_ = V::LoadU32(sub_ + kFormat.high_offset() + 4 * (kColumns * h + col_));
      Scale(h);
    }
  }

  // Half's scale alone: kValues has its high bits elsewhere.
  void Scale(int32_t h) {
    if constexpr (kFormat.bits == 6) scale_ = V::Mul(d_, V::LoadI8(sub_ + kColumns * h + col_));
  }

  void Group(int32_t g) {
    if constexpr (kFormat.bits == 8) {
      low_ = V::LoadU32(sub_ + kFormat.codes_offset() + 4 * (kColumns * 2 * g + col_));
      next_low_ = V::LoadU32(sub_ + kFormat.codes_offset() + 4 * (kColumns * (2 * g + 1) + col_));
    } else {
      low_ = V::LoadU32(sub_ + kFormat.codes_offset() + 4 * (kColumns * g + col_));
    }
    // Bits of this group's values at the bottom of each half.
    if constexpr (kFormat.bits == 5) {
      if (g > 0) high_ = V::template Shr<4>(high_);
    }
    if constexpr (kFormat.bits == 6) {
      if (g % 2 == 1) high_ = V::template Shr<8>(high_);
    }
  }

  // Value j of the group of eight.
  template <int j>
  typename V::F Value() const {
    constexpr int kHalf = j % 2 * 16;
    typename V::F q;
    if constexpr (kFormat.bits == 8) {
      q = V::template ByteI8<j % 2 * 2 + j / 4>(j / 2 % 2 == 0 ? low_ : next_low_);
    } else {
      q = V::template Nibble<kFormat.offset>(V::template Shr<kHalf + j / 2 * 4>(low_));
    }
    if constexpr (kFormat.bits == 5) {
      q = V::Add(q, V::HighBit(V::template Shr<kHalf + j / 2>(high_)));
    }
    if constexpr (kFormat.bits == 6) {
      q = V::Add(q, V::HighPair(V::template Shr<kHalf + j / 2 * 2>(high_)));
    }
    if constexpr (kFormat.has_min) return V::Fma(scale_, q, min_);
    return V::Mul(scale_, q);
  }

  const std::byte* sub_;
  int32_t col_;
  typename V::F d_, scale_, min_;
  typename V::U low_, next_low_, high_;
};

// Plain types: the element itself.
template <DType kType>
requires(!FormatOf(kType).is_block()) struct Decoder<kType, PanelLayout::kColumns> {
  static constexpr size_t kBytes = static_cast<size_t>(InfoOf(kType).block_bytes);

  void Begin(const std::byte* panel, int64_t sub, int32_t col) {
    panel_ = panel;
    sub_ = sub;
    col_ = col;
  }
  void Half(int32_t) {}
  void Group(int32_t g) { first_ = sub_ * kSubBlock + 8 * g; }
  template <int j>
  typename V::F Value() const {
    return At(first_ + j);
  }
  // Value k of the panel.
  typename V::F At(int64_t k) const {
    if constexpr (kType == DType::kBF16) {
      const typename V::U pair =
          V::LoadU32(panel_ + static_cast<size_t>(k / 2 * kPanel + col_) * 2 * kBytes);
      return k % 2 == 0 ? V::LowBF16(pair) : V::HighBF16(pair);
    }
    const std::byte* p = panel_ + static_cast<size_t>(k * kPanel + col_) * kBytes;
    if constexpr (kType == DType::kF32) return V::LoadF32(p);
    if constexpr (kType == DType::kF16) return V::LoadF16(p);
  }

  const std::byte* panel_;
  int64_t sub_, first_;
  int32_t col_;
};

// Bytes of a panel's 32 values of k.
template <DType kType, PanelLayout kLayout = PanelLayout::kColumns>
constexpr int64_t StepBytes() {
  constexpr BlockFormat kFormat = FormatOf(kType, kLayout);
  if (!kFormat.is_block()) return int64_t{kSubBlock} * kFormat.columns * InfoOf(kType).block_bytes;
  return static_cast<int64_t>(kFormat.record_bytes()) / kFormat.sub_blocks;
}

// Part `part` of kParts of the bytes that 32 values take, 4 KiB ahead. A line of packed codes is 30
// or more operations, so the out-of-order window alone looks only a kilobyte ahead: from last-level
// cache one row of Q4_1 ran at 10 GB/s a core without this, at 17 with it.
template <DType kType, int32_t kParts, PanelLayout kLayout = PanelLayout::kColumns>
void PrefetchAhead(const std::byte* panel, int64_t sub, int32_t part) {
  constexpr int64_t kBytes = StepBytes<kType, kLayout>();
  const std::byte* ahead = panel + kBytes * sub + kBytes / kParts * part + 4096;
  QUIRE_UNROLL
  for (int64_t i = 0; i < kBytes / kParts; i += 64) __builtin_prefetch(ahead + i);
}

// Few rows: kRows x kVecs vectors of sums, starting at column col.
template <DType kType, int kRows, int kVecs>
struct Few {
  typename V::F sum[kRows][kVecs];
  Decoder<kType> column[kVecs];
  const float* x[kRows];

  template <int j>
  void Step(int64_t group) {
    typename V::F w[kVecs];
    QUIRE_UNROLL
    for (int v = 0; v < kVecs; ++v) w[v] = column[v].template Value<j>();
    Add(w, group + j);
  }

  void Add(const typename V::F* w, int64_t k) {
    QUIRE_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const typename V::F xr = V::Set1(x[r][k]);
      QUIRE_UNROLL
      for (int v = 0; v < kVecs; ++v) sum[r][v] = V::Fma(xr, w[v], sum[r][v]);
    }
  }

  void Run(const std::byte* panel, int64_t k_total, int32_t col) {
    QUIRE_UNROLL
    for (int r = 0; r < kRows; ++r) {
      QUIRE_UNROLL
      for (int v = 0; v < kVecs; ++v) sum[r][v] = V::Zero();
    }
    for (int64_t k = 0; k < k_total; k += kSubBlock) {
      QUIRE_UNROLL
      for (int v = 0; v < kVecs; ++v) column[v].Begin(panel, k / kSubBlock, col + v * V::kLanes);
      if (k_total - k >= kSubBlock) {
        for (int32_t h = 0; h < 2; ++h) {
          QUIRE_UNROLL
          for (int v = 0; v < kVecs; ++v) column[v].Half(h);
          for (int32_t g = 2 * h; g < 2 * h + 2; ++g) {
            if constexpr (FormatOf(kType).is_block()) {
              if (col == 0) PrefetchAhead<kType, 4>(panel, k / kSubBlock, g);
            }
            QUIRE_UNROLL
            for (int v = 0; v < kVecs; ++v) column[v].Group(g);
            const int64_t group = k + 8 * g;
            Step<0>(group);
            Step<1>(group);
            Step<2>(group);
            Step<3>(group);
            Step<4>(group);
            Step<5>(group);
            Step<6>(group);
            Step<7>(group);
          }
        }
      } else if constexpr (!FormatOf(kType).is_block()) {
        for (int64_t j = k; j < k_total; ++j) {
          typename V::F w[kVecs];
          QUIRE_UNROLL
          for (int v = 0; v < kVecs; ++v) w[v] = column[v].At(j);
          Add(w, j);
        }
      }
    }
  }
};

template <DType kType, int kRows>
void RunFew(const std::byte* panel, int64_t k, const float* x, int64_t ldx, float* c) {
  for (int32_t col = 0; col < kPanel; col += V::kFewVecs * V::kLanes) {
    Few<kType, kRows, V::kFewVecs> few;
    for (int r = 0; r < kRows; ++r) few.x[r] = x + r * ldx;
    few.Run(panel, k, col);
    QUIRE_UNROLL
    for (int r = 0; r < kRows; ++r) {
      QUIRE_UNROLL
      for (int v = 0; v < V::kFewVecs; ++v) {
        V::Store(c + r * kPanel + col + v * V::kLanes, few.sum[r][v]);
      }
    }
  }
}

// tile: [num_k][kPanel] float32, the panel's values k0 .. k0 + num_k - 1; k0 is a multiple of 32.
template <DType kType>
void ExpandTile(const std::byte* panel, int64_t k0, int64_t num_k, float* tile) {
  for (int64_t k = 0; k < num_k; k += kSubBlock) {
    for (int32_t col = 0; col < kPanel; col += V::kLanes) {
      Decoder<kType> column;
      column.Begin(panel, (k0 + k) / kSubBlock, col);
      PrefetchAhead<kType, kPanel / V::kLanes>(panel, (k0 + k) / kSubBlock, col / V::kLanes);
      float* out = tile + k * kPanel + col;
      if (num_k - k >= kSubBlock) {
        for (int32_t h = 0; h < 2; ++h) {
          column.Half(h);
          for (int32_t g = 2 * h; g < 2 * h + 2; ++g) {
            column.Group(g);
            float* group = out + 8 * g * kPanel;
            V::Store(group, column.template Value<0>());
            V::Store(group + kPanel, column.template Value<1>());
            V::Store(group + 2 * kPanel, column.template Value<2>());
            V::Store(group + 3 * kPanel, column.template Value<3>());
            V::Store(group + 4 * kPanel, column.template Value<4>());
            V::Store(group + 5 * kPanel, column.template Value<5>());
            V::Store(group + 6 * kPanel, column.template Value<6>());
            V::Store(group + 7 * kPanel, column.template Value<7>());
          }
        }
      } else if constexpr (!FormatOf(kType).is_block()) {
        for (int64_t j = 0; j < num_k - k; ++j) V::Store(out + j * kPanel, column.At(k0 + k + j));
      }
    }
  }
}

// c[kRows][kPanel] continues its chains over num_k values, or starts them.
template <int kRows>
void TileRows(const float* tile, int64_t num_k, const float* x, int64_t ldx, bool start, float* c) {
  for (int32_t col = 0; col < kPanel; col += V::kTileVecs * V::kLanes) {
    typename V::F sum[kRows][V::kTileVecs];
    QUIRE_UNROLL
    for (int r = 0; r < kRows; ++r) {
      QUIRE_UNROLL
      for (int v = 0; v < V::kTileVecs; ++v) {
        sum[r][v] = start ? V::Zero() : V::Load(c + r * kPanel + col + v * V::kLanes);
      }
    }
    const float* w_row = tile + col;
    for (int64_t k = 0; k < num_k; ++k, w_row += kPanel) {
      typename V::F w[V::kTileVecs];
      QUIRE_UNROLL
      for (int v = 0; v < V::kTileVecs; ++v) w[v] = V::Load(w_row + v * V::kLanes);
      QUIRE_UNROLL
      for (int r = 0; r < kRows; ++r) {
        const typename V::F xr = V::Set1(x[r * ldx + k]);
        QUIRE_UNROLL
        for (int v = 0; v < V::kTileVecs; ++v) sum[r][v] = V::Fma(xr, w[v], sum[r][v]);
      }
    }
    QUIRE_UNROLL
    for (int r = 0; r < kRows; ++r) {
      QUIRE_UNROLL
      for (int v = 0; v < V::kTileVecs; ++v)
        V::Store(c + r * kPanel + col + v * V::kLanes, sum[r][v]);
    }
  }
}

inline void TileAnyRows(int64_t rows, const float* tile, int64_t num_k, const float* x, int64_t ldx,
                        bool start, float* c) {
  static_assert(V::kTileRows == 6);
  switch (rows) {
    case 1:
      return TileRows<1>(tile, num_k, x, ldx, start, c);
    case 2:
      return TileRows<2>(tile, num_k, x, ldx, start, c);
    case 3:
      return TileRows<3>(tile, num_k, x, ldx, start, c);
    case 4:
      return TileRows<4>(tile, num_k, x, ldx, start, c);
    case 5:
      return TileRows<5>(tile, num_k, x, ldx, start, c);
    default:
      return TileRows<6>(tile, num_k, x, ldx, start, c);
  }
}

// 128 x 64 float32 = 32 KiB: with six rows of x it fits a 48 KiB L1.
inline constexpr int64_t kTileK = 128;

template <DType kType>
void RunMany(const std::byte* panel, int64_t k, const float* x, int64_t ldx, int64_t rows,
             float* c) {
  alignas(64) float scratch[kTileK * kPanel];
  // Rows in nearly equal groups of at most kTileRows: 7 is 4 + 3, not 6 + 1.
  const int64_t groups = (rows + V::kTileRows - 1) / V::kTileRows;
  for (int64_t k0 = 0; k0 < k; k0 += kTileK) {
    const int64_t num_k = k - k0 < kTileK ? k - k0 : kTileK;
    const float* tile = scratch;
    if constexpr (kType == DType::kF32) {
      tile = reinterpret_cast<const float*>(panel) + k0 * kPanel;
    } else {
      ExpandTile<kType>(panel, k0, num_k, scratch);
    }
    // Beside each group of rows, its share of the next tile's packed bytes; for two groups or fewer
    // that is a burst which costs more than it hides.
    constexpr int64_t kTileBytes = kTileK / kSubBlock * StepBytes<kType>();
    const std::byte* next = panel + (k0 / kTileK + 1) * kTileBytes;
    for (int64_t g = 0; g < groups; ++g) {
      if (groups > 2) {
        for (int64_t i = kTileBytes * g / groups; i < kTileBytes * (g + 1) / groups; i += 64) {
          __builtin_prefetch(next + i);
        }
      }
      const int64_t first = rows * g / groups;
      const int64_t end = rows * (g + 1) / groups;
      TileAnyRows(end - first, tile, num_k, x + first * ldx + k0, ldx, k0 == 0, c + first * kPanel);
    }
  }
}

template <DType kType>
void Panel(const std::byte* panel, int64_t k, const float* x, int64_t ldx, int64_t rows, float* c) {
  static_assert(V::kFewRows <= 4);
  if (rows > V::kFewRows) return RunMany<kType>(panel, k, x, ldx, rows, c);
  switch (rows) {
    case 1:
      return RunFew<kType, 1>(panel, k, x, ldx, c);
    case 2:
      return RunFew<kType, 2>(panel, k, x, ldx, c);
    case 3:
      return RunFew<kType, 3>(panel, k, x, ldx, c);
    default:
      return RunFew<kType, 4>(panel, k, x, ldx, c);
  }
}

inline void PanelOf(DType type, const std::byte* panel, int64_t k, const float* x, int64_t ldx,
                    int64_t rows, float* c) {
  switch (type) {
    case DType::kF32:
      return Panel<DType::kF32>(panel, k, x, ldx, rows, c);
    case DType::kF16:
      return Panel<DType::kF16>(panel, k, x, ldx, rows, c);
    case DType::kBF16:
      return Panel<DType::kBF16>(panel, k, x, ldx, rows, c);
    case DType::kQ4_0:
      return Panel<DType::kQ4_0>(panel, k, x, ldx, rows, c);
    case DType::kQ4_1:
      return Panel<DType::kQ4_1>(panel, k, x, ldx, rows, c);
    case DType::kQ5_0:
      return Panel<DType::kQ5_0>(panel, k, x, ldx, rows, c);
    case DType::kQ5_1:
      return Panel<DType::kQ5_1>(panel, k, x, ldx, rows, c);
    case DType::kQ8_0:
      return Panel<DType::kQ8_0>(panel, k, x, ldx, rows, c);
    case DType::kQ4_K:
      return Panel<DType::kQ4_K>(panel, k, x, ldx, rows, c);
    case DType::kQ5_K:
      return Panel<DType::kQ5_K>(panel, k, x, ldx, rows, c);
    case DType::kQ6_K:
      return Panel<DType::kQ6_K>(panel, k, x, ldx, rows, c);
    case DType::kI8:
    case DType::kI32:
    case DType::kI64:
      break;  // PackedWeight::Pack refuses them
  }
}
