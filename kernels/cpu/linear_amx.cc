// The AMX row of RunLinear in bfloat16 (linear_dot.h). W is a tile instruction's first operand, x
// its second, so that sums come out as [columns][rows of x]: a tile row of W is 32 values of one
// column, and for 4 and 5 bits all of them are one look-up in the column's 16 or 32 rounded values.
#if defined(__x86_64__)
#include "kernels/cpu/isa_target.h"

// After isa_target.h, which silences a warning in it.
#include <immintrin.h>

#include <cstring>

#include "kernels/block_format.h"
#include "kernels/cpu/linear_dot.h"
#include "kernels/cpu/linear_kernels.h"
#include "kernels/cpu/tile_config.h"

QUIRE_BEGIN_AMX
namespace quire::kernels {
namespace amx {
namespace {

// clang-format off
#include "kernels/cpu/linear_vec_avx512-inl.h"
#include "kernels/cpu/linear-inl.h"
#include "kernels/cpu/transpose_avx512-inl.h"
// clang-format on

constexpr int32_t kStrip = 16;  // columns of a tile
constexpr int32_t kStrips = kDotColumns / kStrip;
static_assert(kStrips == 2);
constexpr int64_t kSums = kStrip * kTileRows;

using Tile = uint16_t[kStrip][kDotBlock];

// The compiler does not see what a tile load reads.
inline void MemoryBarrier() { asm volatile("" ::: "memory"); }

inline __m512i Rounded(__m512 low, __m512 high) {
  return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low));
}
template <int kBits>
__m512i ShiftRight(__m512i x) {
  if constexpr (kBits == 0) return x;
  if constexpr (kBits > 0) return _mm512_srli_epi16(x, kBits);
  if constexpr (kBits < 0) return _mm512_slli_epi16(x, -kBits);
}
// (x & mask) | rest
inline __m512i AndOr(__m512i x, int16_t mask, __m512i rest) {
  return _mm512_ternarylogic_epi32(x, _mm512_set1_epi16(mask), rest, 0xea);
}
inline __m512i And(__m512i x, int16_t mask) { return _mm512_and_si512(x, _mm512_set1_epi16(mask)); }

// Scale and min of each column of a strip, in memory: from there a broadcast is part of the fma.
template <DType kType>
struct StripScales {
  static constexpr BlockFormat kFormat = FormatOf(kType);
  static constexpr int kParts = kType == DType::kQ6_K ? 2 : 1;
  alignas(64) float scale[kParts][kStrip];
  alignas(64) float min[kStrip];

  void Set(Decoder<kType, PanelLayout::kValues>& d) {
    for (int part = 0; part < kParts; ++part) {
      d.Scale(part);
      V::Store(scale[part], d.scale_);
    }
    if constexpr (kFormat.has_min) V::Store(min, d.min_);
  }
  // Values of codes, which are whole numbers.
  __m512 Values(__m512 codes, int c, int part = 0) const {
    const __m512 s = _mm512_set1_ps(scale[part][c]);
    if constexpr (kFormat.has_min) return _mm512_fmadd_ps(codes, s, _mm512_set1_ps(min[c]));
    return _mm512_mul_ps(codes, s);
  }
};

template <int kFirst>
__m512 CountFrom() {
  constexpr float kF = kFirst;
  return _mm512_setr_ps(kF, kF + 1, kF + 2, kF + 3, kF + 4, kF + 5, kF + 6, kF + 7, kF + 8, kF + 9,
                        kF + 10, kF + 11, kF + 12, kF + 13, kF + 14, kF + 15);
}

// Columns 4 q .. 4 q + 3 of a strip. nibbles: their row of codes; high: the strip's or octet's
// bits.
template <DType kType, int q>
void ExpandFour(const StripScales<kType>& s, __m512i nibbles, __m512i high, Tile& out);

// Two columns share a register of sixteen values each, and bit 4 of an index says which.
template <DType kType, int c, int kShift>
void LookUpTwo(const StripScales<kType>& s, __m512i nibbles, Tile& out) {
  const __m512 codes = CountFrom<-FormatOf(kType).offset>();
  const __m512i table = Rounded(s.Values(codes, c), s.Values(codes, c + 1));
  const __m512i first = And(ShiftRight<kShift>(nibbles), 15);
  const __m512i second = AndOr(ShiftRight<kShift + 4>(nibbles), 15, _mm512_set1_epi16(16));
  _mm512_store_si512(out[c], _mm512_permutexvar_epi16(first, table));
  _mm512_store_si512(out[c + 1], _mm512_permutexvar_epi16(second, table));
}

template <DType kType, int c, int kShift>
void LookUpFive(const StripScales<kType>& s, __m512i nibbles, __m512i high, Tile& out) {
  constexpr int kOffset = FormatOf(kType).offset;
  const __m512i table =
      Rounded(s.Values(CountFrom<-kOffset>(), c), s.Values(CountFrom<16 - kOffset>(), c));
  const __m512i bit = And(ShiftRight<c - 4>(high), 16);
  const __m512i index = AndOr(ShiftRight<kShift>(nibbles), 15, bit);
  _mm512_store_si512(out[c], _mm512_permutexvar_epi16(index, table));
}

inline __m512 ToFloats(__m256i words) { return _mm512_cvtepi32_ps(_mm512_cvtepi16_epi32(words)); }

template <DType kType, int c, int kShift>
void ConvertSix(const StripScales<kType>& s, __m512i nibbles, __m512i high, Tile& out) {
  const __m512i pair = And(ShiftRight<c % 8 * 2 - 4>(high), 0x30);
  const __m512i code = _mm512_sub_epi16(AndOr(ShiftRight<kShift>(nibbles), 15, pair),
                                        _mm512_set1_epi16(FormatOf(kType).offset));
  const __m512 low = ToFloats(_mm512_castsi512_si256(code));
  const __m512 upper = ToFloats(_mm512_extracti64x4_epi64(code, 1));
  _mm512_store_si512(out[c], Rounded(s.Values(low, c, 0), s.Values(upper, c, 1)));
}

template <DType kType, int q>
void ExpandFour(const StripScales<kType>& s, __m512i nibbles, __m512i high, Tile& out) {
  constexpr int kBits = FormatOf(kType).bits;
  constexpr int kC = 4 * q;
  if constexpr (kBits == 4) {
    LookUpTwo<kType, kC, 0>(s, nibbles, out);
    LookUpTwo<kType, kC + 2, 8>(s, nibbles, out);
  }
  if constexpr (kBits == 5) {
    LookUpFive<kType, kC, 0>(s, nibbles, high, out);
    LookUpFive<kType, kC + 1, 4>(s, nibbles, high, out);
    LookUpFive<kType, kC + 2, 8>(s, nibbles, high, out);
    LookUpFive<kType, kC + 3, 12>(s, nibbles, high, out);
  }
  if constexpr (kBits == 6) {
    ConvertSix<kType, kC, 0>(s, nibbles, high, out);
    ConvertSix<kType, kC + 1, 4>(s, nibbles, high, out);
    ConvertSix<kType, kC + 2, 8>(s, nibbles, high, out);
    ConvertSix<kType, kC + 3, 12>(s, nibbles, high, out);
  }
}

// The sixteen columns of strip `strip` of the sub-block at `sub`.
template <DType kType>
void Expand(const std::byte* sub, int32_t strip, const StripScales<kType>& s, Tile& out) {
  constexpr BlockFormat kFormat = FormatOf(kType, PanelLayout::kValues);
  const std::byte* codes = sub + kFormat.codes_offset();
  if constexpr (kFormat.bits == 8) {
    const std::byte* bytes = codes + strip * kStrip * kDotBlock;
    for (int c = 0; c < kStrip; ++c, bytes += kDotBlock) {
      const __m256i word = _mm256_load_si256(reinterpret_cast<const __m256i*>(bytes));
      const __m512i low = _mm512_cvtepi8_epi32(_mm256_castsi256_si128(word));
      const __m512i upper = _mm512_cvtepi8_epi32(_mm256_extracti128_si256(word, 1));
      _mm512_store_si512(out[c], Rounded(s.Values(_mm512_cvtepi32_ps(low), c),
                                         s.Values(_mm512_cvtepi32_ps(upper), c)));
    }
  } else {
    const std::byte* rows = codes + 64 * 4 * strip;
    const std::byte* more = sub + kFormat.high_offset();
    __m512i high[2] = {};
    if constexpr (kFormat.bits == 5) high[0] = high[1] = V::LoadU32(more + 64 * strip);
    if constexpr (kFormat.bits == 6) {
      high[0] = V::LoadU32(more + 64 * 2 * strip);
      high[1] = V::LoadU32(more + 64 * (2 * strip + 1));
    }
    ExpandFour<kType, 0>(s, V::LoadU32(rows), high[0], out);
    ExpandFour<kType, 1>(s, V::LoadU32(rows + 64), high[0], out);
    ExpandFour<kType, 2>(s, V::LoadU32(rows + 128), high[1], out);
    ExpandFour<kType, 3>(s, V::LoadU32(rows + 192), high[1], out);
  }
}

// A panel's strips of 16 columns and 32 k, k ascending, one after the other. Scales are read a step
// ahead: their way through memory takes as long as half an expansion.
template <DType kType>
class Expander {
 public:
  explicit Expander(const std::byte* panel, int64_t blocks)
      : panel_(panel), num_strips_(blocks * kStrips) {
    Prepare(0);
  }
  void Next(Tile& out) {
    const std::byte* sub = sub_;
    const int64_t i = next_++;
    const auto strip = static_cast<int32_t>(i % kStrips);
    PrefetchAhead<kType, kStrips, PanelLayout::kValues>(panel_, i / kStrips, strip);
    if (next_ < num_strips_) Prepare(next_);
    MemoryBarrier();
    Expand<kType>(sub, strip, scales_[i % 2], out);
  }

 private:
  void Prepare(int64_t i) {
    Decoder<kType, PanelLayout::kValues> d;
    d.Begin(panel_, i / kStrips, static_cast<int32_t>(i % kStrips) * kStrip);
    sub_ = d.sub_;
    scales_[i % 2].Set(d);
  }

  const std::byte* panel_;
  const std::byte* sub_ = nullptr;  // of strip next_
  int64_t num_strips_;
  int64_t next_ = 0;
  StripScales<kType> scales_[2];
};
template <>
class Expander<DType::kBF16> {
 public:
  Expander(const std::byte*, int64_t) {}
  void Next(Tile&) {}
};

// c[r][..] of the tile's rows, sixteen columns, and add's.
void PutSums(const float* sums, int64_t rows, float* c, int64_t ldc, const float* add) {
  if (rows <= 4) {
    const __m512i column =
        _mm512_setr_epi32(0, 16, 32, 48, 64, 80, 96, 112, 128, 144, 160, 176, 192, 208, 224, 240);
    for (int64_t r = 0; r < rows; ++r) {
      __m512 sum = _mm512_i32gather_ps(column, sums + r, 4);
      if (add != nullptr) sum = _mm512_add_ps(sum, _mm512_loadu_ps(add + r * ldc));
      _mm512_storeu_ps(c + r * ldc, sum);
    }
    return;
  }
  if (rows == kTileRows && add == nullptr) return Transpose16(sums, kStrip, c, ldc);
  alignas(64) float out[kTileRows][kStrip];
  Transpose16(sums, kStrip, out[0], kStrip);
  for (int64_t r = 0; r < rows; ++r) {
    __m512 sum = _mm512_load_ps(out[r]);
    if (add != nullptr) sum = _mm512_add_ps(sum, _mm512_loadu_ps(add + r * ldc));
    _mm512_storeu_ps(c + r * ldc, sum);
  }
}

// A tile of rows of x, block by block.
struct TileOfX {
  const uint16_t* x;
  int64_t size;    // values of a block
  int64_t stride;  // bytes from pair to pair
  explicit TileOfX(const DotRows& rows, int64_t tile)
      : x(rows.Tile(tile)),
        size(rows.RowsOfTile(tile) * kDotBlock),
        stride(rows.RowsOfTile(tile) * 4) {}
  const uint16_t* Block(int64_t b) const { return x + b * size; }
};

// One tile of rows: a strip is expanded while the same strip of two blocks before is multiplied,
// whose stores have arrived by then.
template <DType kType>
void OneTile(const std::byte* panel, const DotRows& x, int64_t tile, float* c, int64_t ldc,
             const float* add) {
  constexpr bool kPlain = kType == DType::kBF16;
  constexpr int64_t kBehind = kPlain ? 0 : 2;
  alignas(64) Tile ring[kPlain ? 1 : 4][kStrips];
  alignas(64) float sums[kStrips][kSums];
  const TileOfX rows(x, tile);
  const auto* plain = reinterpret_cast<const Tile*>(panel);
  Expander<kType> expander(panel, x.blocks);
  _tile_zero(0);
  _tile_zero(1);
  MemoryBarrier();
  for (int64_t b = 0; b < x.blocks + kBehind; ++b) {
    const bool expand = !kPlain && b < x.blocks;
    const int64_t done = b - kBehind;
    const bool multiply = done >= 0;
    const Tile* w = kPlain ? plain + done * kStrips : ring[done & 3];
    if constexpr (!kPlain) {
      if (expand) expander.Next(ring[b & 3][0]);
      MemoryBarrier();
    }
    if (multiply) {
      _tile_loadd(4, rows.Block(done), rows.stride);
      _tile_loadd(6, w[0], 64);
      _tile_dpbf16ps(0, 6, 4);
    }
    if constexpr (!kPlain) {
      if (expand) expander.Next(ring[b & 3][1]);
      MemoryBarrier();
    }
    if (multiply) {
      _tile_loadd(7, w[1], 64);
      _tile_dpbf16ps(1, 7, 4);
    }
  }
  _tile_stored(0, sums[0], 64);
  _tile_stored(1, sums[1], 64);
  MemoryBarrier();
  for (int32_t s = 0; s < kStrips; ++s) {
    PutSums(sums[s], x.RowsOfTile(tile), c + s * kStrip, ldc,
            add != nullptr ? add + s * kStrip : nullptr);
  }
}

// Blocks that are expanded together, and kept in L1 beside those of the next run.
constexpr int64_t kRunBlocks = 8;

// A run's tiles that are expanded bit by bit, between the products of the run before.
template <DType kType>
struct RunAhead {
  Expander<kType> expander;
  Tile* to = nullptr;
  int64_t left = 0;

  void Next() {
    if (left == 0) return;
    expander.Next(*to++);
    --left;
  }
  void Finish() {
    while (left > 0) Next();
    MemoryBarrier();
  }
};

// Rows of the result that are written soon, asked for bit by bit: a store to a line that is not
// there yet waits for memory, and few can.
struct ResultRows {
  float* c = nullptr;
  int64_t ldc = 0;
  int64_t left = 0;
  int64_t at_once = 0;
  ResultRows() = default;
  ResultRows(float* c_, int64_t ldc_, int64_t rows, int64_t times)
      : c(c_), ldc(ldc_), left(rows), at_once((rows + times - 1) / times) {}
  void Next() {
    for (int64_t i = 0; i < at_once && left > 0; ++i, --left, c += ldc) {
      __builtin_prefetch(c, 1);
      __builtin_prefetch(c + kStrip, 1);
    }
  }
};

// sums of two strips and one or two tiles of rows, over num_blocks blocks; c1 and c0 are sums of a
// strip's first tile. w: tiles of the first strip, the second's beside them. Every `every` blocks a
// tile of the next run is expanded.
template <DType kType, int kTiles>
void MultiplyRun(const Tile* w, int64_t num_blocks, const TileOfX& xa, const TileOfX& xb,
                 int64_t b0, bool first, float* c0, float* c1, int64_t every, RunAhead<kType>& next,
                 ResultRows y) {
  if (first) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  } else {
    _tile_loadd(0, c0, 64);
    _tile_loadd(1, c1, 64);
    if constexpr (kTiles == 2) {
      _tile_loadd(2, c0 + kSums, 64);
      _tile_loadd(3, c1 + kSums, 64);
    }
  }
  int64_t until = every;
  for (int64_t b = 0; b < num_blocks; ++b, w += kStrips) {
    _tile_loadd(4, xa.Block(b0 + b), xa.stride);
    _tile_loadd(6, w[0], 64);
    _tile_dpbf16ps(0, 6, 4);
    _tile_loadd(7, w[1], 64);
    _tile_dpbf16ps(1, 7, 4);
    if constexpr (kTiles == 2) {
      _tile_loadd(5, xb.Block(b0 + b), xb.stride);
      _tile_dpbf16ps(2, 6, 5);
      _tile_dpbf16ps(3, 7, 5);
    }
    y.Next();
    if (--until == 0) {
      next.Next();
      until = every;
    }
  }
  _tile_stored(0, c0, 64);
  _tile_stored(1, c1, 64);
  if constexpr (kTiles == 2) {
    _tile_stored(2, c0 + kSums, 64);
    _tile_stored(3, c1 + kSums, 64);
  }
}

using TileSums = float[kStrips][kMaxRows / kTileRows][kSums];

void PutTile(const TileSums& sums, const DotRows& x, int64_t first_tile, int64_t t, float* c,
             int64_t ldc, const float* add) {
  const int64_t rows = x.RowsOfTile(first_tile + t);
  MemoryBarrier();
  for (int32_t strip = 0; strip < kStrips; ++strip) {
    const int64_t at = t * kTileRows * ldc + strip * kStrip;
    PutSums(sums[strip][t], rows, c + at, ldc, add != nullptr ? add + at : nullptr);
  }
}

template <DType kType>
void ManyTiles(const std::byte* panel, const DotRows& x, int64_t first_tile, int64_t num_tiles,
               float* c, int64_t ldc, const float* add) {
  constexpr bool kPlain = kType == DType::kBF16;
  alignas(64) Tile room[2][kPlain ? 1 : kRunBlocks * kStrips];
  alignas(64) TileSums sums;
  const int64_t num_runs = (x.blocks + kRunBlocks - 1) / kRunBlocks;
  const int64_t pairs = (num_tiles + 1) / 2;
  // Products of a run have pairs * kRunBlocks places for its successor's 2 * kRunBlocks tiles.
  const int64_t every = pairs / kStrips < 1 ? 1 : pairs / kStrips;
  RunAhead<kType> next{Expander<kType>(panel, x.blocks)};
  if constexpr (!kPlain) {
    next.to = room[0];
    next.left = x.blocks / num_runs * kStrips;
  }
  for (int64_t run = 0; run < num_runs; ++run) {
    const int64_t b0 = x.blocks * run / num_runs;
    const int64_t end = x.blocks * (run + 1) / num_runs;
    const Tile* w = room[run % 2];
    if constexpr (kPlain) {
      w = reinterpret_cast<const Tile*>(panel) + b0 * kStrips;
    } else {
      next.Finish();
      const int64_t after = run + 1 < num_runs ? x.blocks * (run + 2) / num_runs : end;
      next.to = room[(run + 1) % 2];
      next.left = (after - end) * kStrips;
    }
    MemoryBarrier();
    const bool last_run = run + 1 == num_runs;
    int64_t t = 0, put = 0;
    for (; t < num_tiles; t += 2) {
      const int64_t rows = (t + 1 < num_tiles ? kTileRows : 0) +
                           x.RowsOfTile(first_tile + (t + 1 < num_tiles ? t + 1 : t));
      ResultRows y;
      if (last_run) y = ResultRows(c + t * kTileRows * ldc, ldc, rows, end - b0);
      const TileOfX xa(x, first_tile + t);
      if (t + 1 < num_tiles) {
        MultiplyRun<kType, 2>(w, end - b0, xa, TileOfX(x, first_tile + t + 1), b0, run == 0,
                              sums[0][t], sums[1][t], every, next, y);
      } else {
        MultiplyRun<kType, 1>(w, end - b0, xa, xa, b0, run == 0, sums[0][t], sums[1][t], every,
                              next, y);
      }
      // The tiles before have arrived in memory by now.
      for (; last_run && put < t; ++put) PutTile(sums, x, first_tile, put, c, ldc, add);
    }
    MemoryBarrier();
    for (; last_run && put < num_tiles; ++put) PutTile(sums, x, first_tile, put, c, ldc, add);
  }
}

template <DType kType>
void Panel(const std::byte* panel, const DotRows& x, int64_t first_tile, int64_t num_tiles,
           float* c, int64_t ldc, const float* add) {
  if (num_tiles == 1) return OneTile<kType>(panel, x, first_tile, c, ldc, add);
  ManyTiles<kType>(panel, x, first_tile, num_tiles, c, ldc, add);
}

void PanelOfType(DType type, const std::byte* panel, const DotRows& x, int64_t first_tile,
                 int64_t num_tiles, float* c, int64_t ldc, const float* add) {
  switch (type) {
    case DType::kBF16:
      return Panel<DType::kBF16>(panel, x, first_tile, num_tiles, c, ldc, add);
    case DType::kQ4_0:
      return Panel<DType::kQ4_0>(panel, x, first_tile, num_tiles, c, ldc, add);
    case DType::kQ4_1:
      return Panel<DType::kQ4_1>(panel, x, first_tile, num_tiles, c, ldc, add);
    case DType::kQ5_0:
      return Panel<DType::kQ5_0>(panel, x, first_tile, num_tiles, c, ldc, add);
    case DType::kQ5_1:
      return Panel<DType::kQ5_1>(panel, x, first_tile, num_tiles, c, ldc, add);
    case DType::kQ8_0:
      return Panel<DType::kQ8_0>(panel, x, first_tile, num_tiles, c, ldc, add);
    case DType::kQ4_K:
      return Panel<DType::kQ4_K>(panel, x, first_tile, num_tiles, c, ldc, add);
    case DType::kQ5_K:
      return Panel<DType::kQ5_K>(panel, x, first_tile, num_tiles, c, ldc, add);
    case DType::kQ6_K:
      return Panel<DType::kQ6_K>(panel, x, first_tile, num_tiles, c, ldc, add);
    default:
      break;
  }
}

}  // namespace
}  // namespace amx

void DotPanelAmx(DType type, const std::byte* panel, const DotRows& x, int64_t first_tile,
                 int64_t num_tiles, float* c, int64_t ldc, const float* add) {
  ConfigureTiles();
  amx::PanelOfType(type, panel, x, first_tile, num_tiles, c, ldc, add);
}

}  // namespace quire::kernels
QUIRE_END_ISA
#endif
