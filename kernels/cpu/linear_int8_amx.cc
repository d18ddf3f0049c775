// The AMX row of RunLinear in int8 (linear_int8.h): a tile instruction gives the exact dots of
// sixteen rows of x with sixteen columns over one block, or half a one for Q6_K. What follows, a
// multiply and an fma for each dot, is the larger part of the work, so a strip's sums stay in
// registers over a run of blocks.
#if defined(__x86_64__)
#include "kernels/cpu/isa_target.h"

// After isa_target.h, which silences a warning in it.
#include <immintrin.h>

#include <cstring>

#include "kernels/block_format.h"
#include "kernels/cpu/linear_int8.h"
#include "kernels/cpu/linear_kernels.h"
#include "kernels/cpu/tile_config.h"

#define QUIRE_VNNI
QUIRE_BEGIN_AMX
namespace quire::kernels {
namespace amx_int8 {
namespace {

// clang-format off
#include "kernels/cpu/linear_vec_avx512-inl.h"
#include "kernels/cpu/linear-inl.h"
#include "kernels/cpu/linear_int8-inl.h"
// clang-format on

constexpr int32_t kStrip = 16;  // columns of a tile
// Below, setting up a run costs more than tiles save.
constexpr int64_t kFewestAmxRows = 28;

// Dots of 16 rows of x with 16 columns.
using Dots = int32_t[kTileRows][kStrip];

// The compiler does not see what a tile load reads.
inline void MemoryBarrier() { asm volatile("" ::: "memory"); }

// Tile products take signed codes; those of 8 bits are already.
template <DType kType>
struct LessCentre {
  __m512i operator()(__m512i codes) const {
    if constexpr (FormatOf(kType).bits == 8) return codes;
    return _mm512_sub_epi8(codes, _mm512_set1_epi8(static_cast<int8_t>(CentreOf(kType))));
  }
};

// Sixteen rows of x over the blocks of a run, wherever they lie.
struct SixteenRows {
  const int8_t* q;      // [blocks of the run][16][32]
  const float* scales;  // [blocks of the run][16]
  const float* sums;    // of row 0 and the run's first block
  int64_t sums_stride;  // floats from row to row
  float* c;             // [16][kPanel]
};

// A run of blocks, ready for any number of rows, and the order in which its dots are made: strip
// after strip, block after block in each.
template <DType kType>
struct Run {
  static constexpr int64_t kParts = PartsOf(kType);
  static constexpr int64_t kStrips = kPanel / kStrip;
  // Offsets: into SixteenRows::q, .scales, and words of `blocks`.
  struct Step {
    int32_t q, dx, codes, scale;
  };

  Int8Block blocks[kDotRun];
  alignas(64) float means[kDotRun * kPanel];
  int64_t num_blocks = 0;
  int64_t num_steps = 0;  // of a strip
  Step steps[kStrips * kDotRun * kParts + 4];

  void Fill(const std::byte* panel, int64_t b0, int64_t count) {
    if (count != num_blocks) Plan(count);
    FillMeans<kType>(panel, b0, count, means);
    for (int64_t b = 0; b < count; ++b)
      FillInt8Block<kType>(panel, b0 + b, blocks[b], LessCentre<kType>());
    MemoryBarrier();
  }
  const float* words() const { return reinterpret_cast<const float*>(blocks); }

 private:
  void Plan(int64_t count) {
    constexpr auto kBlock = static_cast<int32_t>(sizeof(Int8Block) / sizeof(float));
    constexpr auto kCodes = static_cast<int32_t>(sizeof(Int8Block::codes) / sizeof(float));
    num_blocks = count;
    num_steps = count * kParts;
    Step* to = steps;
    for (int32_t col = 0; col < kPanel; col += kStrip) {
      for (int32_t i = 0; i < num_steps; ++i) {
        constexpr auto kP = static_cast<int32_t>(kParts);
        const int32_t b = i / kP;
        const int32_t part = i % kP;
        *to++ = {.q = b * 16 * 32 + part * (32 / kP),
                 .dx = b * 16,
                 .codes = b * kBlock + part * (8 / kP) * kPanel + col,
                 .scale = b * kBlock + kCodes + part * kPanel + col};
      }
    }
    for (int i = 0; i < 4; ++i) *to++ = steps[0];  // made, never used
  }
};

// Sums of a strip, in registers.
struct Sums {
  __m512 y[kTileRows];

  // What comes before the dots of a run's blocks.
  template <DType kType>
  void Begin(const Run<kType>& run, const SixteenRows& x, int32_t col, bool first) {
    QUIRE_UNROLL
    for (int r = 0; r < kTileRows; ++r) {
      y[r] = first ? _mm512_setzero_ps() : _mm512_load_ps(x.c + r * kPanel + col);
    }
    if constexpr (HasMean(kType)) {
      for (int64_t b = 0; b < run.num_blocks; ++b) {
        const __m512 mean = _mm512_load_ps(run.means + b * kPanel + col);
        QUIRE_UNROLL
        for (int r = 0; r < kTileRows; ++r) {
          y[r] = _mm512_fmadd_ps(_mm512_set1_ps(x.sums[r * x.sums_stride + b]), mean, y[r]);
        }
      }
    }
  }
  void Add(const Dots& dots, const float* dx, const float* scales) {
    const __m512 scale = _mm512_load_ps(scales);
    QUIRE_UNROLL
    for (int r = 0; r < kTileRows; ++r) {
      const __m512 dot = _mm512_cvtepi32_ps(_mm512_load_si512(dots[r]));
      y[r] = _mm512_fmadd_ps(_mm512_mul_ps(dot, _mm512_set1_ps(dx[r])), scale, y[r]);
    }
  }
  void End(float* c) const {
    QUIRE_UNROLL
    for (int r = 0; r < kTileRows; ++r) _mm512_store_ps(c + r * kPanel, y[r]);
  }
};

// Tile instructions run in their order, and a store waits for its dots: so tile kTile is filled
// while the dots of three steps before are stored, and those of four before are used.
#define QUIRE_STEP(kTile, kFactor, kOld)                                   \
  _tile_loadd(4, x.q + step[kTile].q, kDotBlock);                          \
  _tile_loadd(kFactor, words + step[kTile].codes, kPanel * sizeof(float)); \
  _tile_zero(kTile);                                                       \
  _tile_dpbssd(kTile, 4, kFactor);                                         \
  _tile_stored(kOld, ring[kOld], kStrip * sizeof(int32_t));                \
  MemoryBarrier();                                                         \
  if (step != run.steps) {                                                 \
    const auto& used = *(step + kTile - 4);                                \
    sums.Add(ring[kTile], x.scales + used.dx, words + used.scale);         \
    if (--left == 0) {                                                     \
      left = run.num_steps;                                                \
      sums.End(x.c + col);                                                 \
      col += kStrip;                                                       \
      if (col < kPanel) sums.Begin(run, x, col, first);                    \
    }                                                                      \
  }

// x.c is, or continues, over the run's blocks, all columns.
template <DType kType>
void RunTile(const Run<kType>& run, const SixteenRows& x, bool first) {
  alignas(64) Dots ring[4];
  const float* const words = run.words();
  const auto* const end = run.steps + run.num_steps * Run<kType>::kStrips;
  int64_t left = run.num_steps;
  int32_t col = 0;
  Sums sums;
  sums.Begin(run, x, col, first);
  for (const auto* step = run.steps; step <= end; step += 4) {
    QUIRE_STEP(0, 5, 1)
    QUIRE_STEP(1, 6, 2)
    QUIRE_STEP(2, 5, 3)
    QUIRE_STEP(3, 6, 0)
  }
}
#undef QUIRE_STEP

// A tile of fewer rows, beside zeros.
struct Padded {
  alignas(64) int8_t q[kDotRun][kTileRows][kDotBlock];
  alignas(64) float scales[kDotRun][kTileRows];
  alignas(64) float sums[kTileRows][kDotRun];
  alignas(64) float c[kTileRows][kPanel];
};

template <DType kType>
void RunFewer(const Run<kType>& run, int64_t rows, const SixteenRows& x, bool first) {
  Padded p;
  std::memset(&p, 0, sizeof(p));
  const auto n = static_cast<size_t>(rows);
  const int64_t blocks = run.num_blocks;
  for (int64_t b = 0; b < blocks; ++b) {
    std::memcpy(p.q[b], x.q + b * rows * kDotBlock, n * kDotBlock);
    std::memcpy(p.scales[b], x.scales + b * rows, n * sizeof(float));
  }
  for (int64_t r = 0; r < rows; ++r) {
    std::memcpy(p.sums[r], x.sums + r * x.sums_stride, static_cast<size_t>(blocks) * sizeof(float));
  }
  if (!first) std::memcpy(p.c, x.c, n * sizeof(p.c[0]));
  RunTile<kType>(run, {p.q[0][0], p.scales[0], p.sums[0], kDotRun, p.c[0]}, first);
  std::memcpy(x.c, p.c, n * sizeof(p.c[0]));
}

template <DType kType>
void Panel(const std::byte* panel, const Int8Rows& x, int64_t first_tile, int64_t num_tiles,
           float* c) {
  const int64_t first_row = first_tile * kTileRows;
  ConfigureInt8Tiles(static_cast<int32_t>(kDotBlock / PartsOf(kType)));
  Run<kType> run;
  for (int64_t b0 = 0; b0 < x.blocks; b0 += kDotRun) {
    run.Fill(panel, b0, x.blocks - b0 < kDotRun ? x.blocks - b0 : kDotRun);
    for (int64_t t = 0; t < num_tiles; ++t) {
      const int64_t tile = first_tile + t;
      const int64_t n = x.RowsOfTile(tile);
      const SixteenRows of_tile{x.Tile(tile) + b0 * n * kDotBlock, x.scales + x.At(tile, b0, 0),
                                x.sums + (first_row + t * kTileRows) * x.blocks + b0, x.blocks,
                                c + t * kTileRows * kPanel};
      if (n == kTileRows) {
        RunTile<kType>(run, of_tile, b0 == 0);
      } else {
        RunFewer<kType>(run, n, of_tile, b0 == 0);
      }
    }
  }
}

void PanelOfType(DType type, const std::byte* panel, const Int8Rows& x, int64_t first_tile,
                 int64_t num_tiles, float* c) {
  switch (type) {
    case DType::kQ4_0:
      return Panel<DType::kQ4_0>(panel, x, first_tile, num_tiles, c);
    case DType::kQ4_1:
      return Panel<DType::kQ4_1>(panel, x, first_tile, num_tiles, c);
    case DType::kQ5_0:
      return Panel<DType::kQ5_0>(panel, x, first_tile, num_tiles, c);
    case DType::kQ5_1:
      return Panel<DType::kQ5_1>(panel, x, first_tile, num_tiles, c);
    case DType::kQ8_0:
      return Panel<DType::kQ8_0>(panel, x, first_tile, num_tiles, c);
    case DType::kQ4_K:
      return Panel<DType::kQ4_K>(panel, x, first_tile, num_tiles, c);
    case DType::kQ5_K:
      return Panel<DType::kQ5_K>(panel, x, first_tile, num_tiles, c);
    case DType::kQ6_K:
      return Panel<DType::kQ6_K>(panel, x, first_tile, num_tiles, c);
    default:
      break;  // PackedWeight::Pack turns plain types into Q8_0
  }
}

}  // namespace
}  // namespace amx_int8

void Int8PanelAmx(DType type, const std::byte* panel, const Int8Rows& x, int64_t first_tile,
                  int64_t num_tiles, float* c) {
  const int64_t last = x.RowsOfTile(first_tile + num_tiles - 1);
  if ((num_tiles - 1) * kTileRows + last < amx_int8::kFewestAmxRows) {
    return Int8PanelVnni(type, panel, x, first_tile, num_tiles, c);
  }
  amx_int8::PanelOfType(type, panel, x, first_tile, num_tiles, c);
}

}  // namespace quire::kernels
QUIRE_END_ISA
#endif
