// RunLinear: cuts all jobs of a call into panels x row chunks, one fork-join, and adds bias and
// residual when a chunk's chains are complete. The chains themselves are in cpu/linear-inl.h.
#include "kernels/linear.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/status.h"
#include "kernels/block_format.h"
#include "kernels/cpu/flush_subnormals.h"
#include "kernels/cpu/linear_dot.h"
#include "kernels/cpu/linear_int8.h"
#include "kernels/cpu/linear_kernels.h"
#include "kernels/cpu_isa.h"
#include "kernels/for_rows.h"

#define QUIRE_BODY "kernels/cpu/linear_prepare-inl.h"
#include "kernels/cpu/foreach_isa-inl.h"

namespace quire::kernels {
namespace {

PanelFn ActivePanelFn() {
  switch (ActiveIsa()) {
#if defined(__x86_64__)
    case CpuIsa::kAmx:
    case CpuIsa::kAvx512:
      return PanelAvx512;
    case CpuIsa::kAvx2:
      return PanelAvx2;
#endif
    default:
      return PanelPortable;
  }
}

DotPanelFn ActiveDotPanelFn() {
  switch (ActiveIsa()) {
#if defined(__x86_64__)
    case CpuIsa::kAmx:
      return DotPanelAmx;
    case CpuIsa::kAvx512:
      return DotPanelAvx512;
    case CpuIsa::kAvx2:
      return DotPanelAvx2;
#endif
    default:
      return DotPanelPortable;
  }
}

Int8PanelFn ActiveInt8PanelFn() {
  switch (ActiveIsa()) {
#if defined(__x86_64__)
    case CpuIsa::kAmx:
      return Int8PanelAmx;
    case CpuIsa::kAvx512:
      return UseVnni() ? Int8PanelVnni : Int8PanelAvx2;
    case CpuIsa::kAvx2:
      return Int8PanelAvx2;
#endif
    default:
      return Int8PanelPortable;
  }
}

int64_t WidthOf(const PackedWeight& w) { return ColumnsOf(LayoutOf(w.compute())); }
int64_t PanelsOf(const PackedWeight& w) { return (w.n() + WidthOf(w) - 1) / WidthOf(w); }

// How many chunks to cut m rows into, so that panels x chunks fill the threads evenly: 9 cost two
// threads 5 turns instead of 4.5, 18 halves 9. And so that each thread can have rows of its own
// (see by_rows below), which is worth a tenth. Small chunks expand a panel's weights for too few
// rows, so a chunk keeps at least 48, or 32 for rows of one's own; tiles are done with rows sooner.
int64_t NumRowChunks(int64_t m, int64_t panels, int64_t threads) {
  // A chunk is whole tiles of rows.
  const int64_t least = (m + kMaxRows - 1) / kMaxRows;
  const int64_t own = ActiveIsa() >= CpuIsa::kAmx ? 96 : 32;
  const int64_t most = std::max(least, m / std::min<int64_t>(own, 48));
  int64_t best = least;
  double best_loss = 1e9;
  for (int64_t chunks = least; chunks <= most; ++chunks) {
    const int64_t tasks = panels * chunks;
    const int64_t turns = (tasks + threads - 1) / threads;
    double loss = static_cast<double>(turns * threads) / static_cast<double>(tasks);
    if (chunks % threads != 0 && m >= own * ((chunks + threads - 1) / threads * threads)) {
      loss += 0.1;
    }
    if (loss < best_loss - 0.02) {
      best = chunks;
      best_loss = loss;
    }
  }
  return best;
}

// c: [rows][width] finished sums; writes columns col .. col + width - 1 of rows first .. first +
// rows - 1.
void Finish(const LinearJob& job, int64_t col, int64_t width, int64_t first, int64_t rows,
            const float* c) {
  const int64_t cols = std::min<int64_t>(width, job.w->n() - col);
  const float* bias = job.bias != nullptr ? job.bias + col : nullptr;
  const auto finish = QUIRE_FOR_ISA(FinishRow);
  for (int64_t r = 0; r < rows; ++r, c += width) {
    const int64_t at = (first + r) * job.ldy + col;
    finish(c, bias, job.residual != nullptr ? job.residual + at : nullptr, cols, job.y + at);
  }
}

int64_t BlocksOf(int64_t k) { return (k + kDotBlock - 1) / kDotBlock; }

constexpr size_t RoundUp64(size_t n) { return (n + 63) / 64 * 64; }
size_t RowBytes(int64_t m, int64_t k) {
  return static_cast<size_t>(m * BlocksOf(k) * kDotBlock) * sizeof(uint16_t) + 64;
}

// The distinct inputs of a call that are not multiplied in float32, prepared in scratch.
class PreparedInputs {
 public:
  struct Input {
    const float* x;
    int64_t ldx, k;
    ComputeType compute;
    DotRows bf16;
    Int8Rows int8;
  };

  PreparedInputs(std::span<const LinearJob> jobs, int64_t m, std::span<std::byte> scratch,
                 RowMaker maker, ThreadPool& pool) {
    for (const LinearJob& job : jobs) {
      if (job.w->compute() == ComputeType::kF32 || Find(job) != nullptr) continue;
      const int64_t k = job.w->k();
      const size_t bytes = LinearScratchBytes(m, k);
      CHECK(num_ < kMost && bytes <= scratch.size(), "input {}: {} bytes of scratch, {} left", num_,
            bytes, scratch.size());
      Input& in = inputs_[num_++];
      in.x = job.x;
      in.ldx = job.ldx;
      in.k = k;
      in.compute = job.w->compute();
      const int64_t blocks = BlocksOf(k);
      std::byte* const rest = scratch.data() + RowBytes(m, k);
      auto* const floats = reinterpret_cast<float*>(rest);
      if (in.compute == ComputeType::kBF16) {
        in.bf16 = {
            .num_rows = m, .blocks = blocks, .x = reinterpret_cast<uint16_t*>(scratch.data())};
      } else {
        // Half of the room for rows is free for two of the three arrays.
        auto* const more = reinterpret_cast<float*>(scratch.data() + RowBytes(m, k) / 2);
        in.int8 = {.num_rows = m,
                   .blocks = blocks,
                   .q = reinterpret_cast<int8_t*>(scratch.data()),
                   .scales = more,
                   .totals = reinterpret_cast<int32_t*>(more + m * blocks),
                   .sums = floats};
      }
      scratch = scratch.subspan(bytes);
      Prepare(in, m, maker, pool);
      maker = {};  // has made them
    }
    if (maker.make == nullptr) return;
    ForRows(m, jobs[0].w->k(), pool,
            [&](int64_t first, int64_t count) { maker.make(maker.state, first, count); });
  }

  const Input* Find(const LinearJob& job) const {
    for (size_t i = 0; i < num_; ++i) {
      const Input& in = inputs_[i];
      if (in.x == job.x && in.ldx == job.ldx && in.k == job.w->k() &&
          in.compute == job.w->compute()) {
        return &in;
      }
    }
    return nullptr;
  }

 private:
  static constexpr size_t kMost = 4;

  static void Prepare(const Input& in, int64_t m, const RowMaker& maker, ThreadPool& pool) {
    const auto round = QUIRE_FOR_ISA(PrepareTile);
    const auto quantize = QUIRE_FOR_ISA(QuantizeRow);
    const auto tile = [&](int64_t t, int32_t) {
      const int64_t n = std::min(kTileRows, m - t * kTileRows);
      if (maker.make != nullptr) maker.make(maker.state, t * kTileRows, n);
      if (in.compute == ComputeType::kBF16) {
        return round(in.x + t * kTileRows * in.ldx, in.ldx, in.k, n, in.bf16.Tile(t));
      }
      for (int64_t r = 0; r < n; ++r) {
        const int64_t row = t * kTileRows + r;
        const float* x = in.x + row * in.ldx;
        const int64_t at = in.int8.At(t, 0, r);
        quantize(x, in.k,
                 {.n = n,
                  .q = in.int8.Tile(t) + r * kDotBlock,
                  .scales = in.int8.scales + at,
                  .totals = in.int8.totals + at,
                  .sums = in.int8.sums + row * BlocksOf(in.k)});
      }
    };
    const int64_t tiles = (m + kTileRows - 1) / kTileRows;
    if (m * in.k > kSerialValues) return pool.ParallelFor(tiles, tile);
    for (int64_t t = 0; t < tiles; ++t) tile(t, 0);
  }

  Input inputs_[kMost];
  size_t num_ = 0;
};

}  // namespace

size_t LinearScratchBytes(int64_t m, int64_t k) {
  return RowBytes(m, k) + RoundUp64(static_cast<size_t>(m * BlocksOf(k)) * sizeof(float));
}

void RunLinear(std::span<const LinearJob> jobs, int64_t m, ThreadPool& pool,
               std::span<std::byte> scratch, RowMaker maker) {
  if (m <= 0) return;
  int64_t panels = 0;
  for (const LinearJob& job : jobs) panels += PanelsOf(*job.w);
  const PreparedInputs inputs(jobs, m, scratch, maker, pool);
  const int64_t tiles = (m + kTileRows - 1) / kTileRows;
  const int64_t chunks = NumRowChunks(m, panels, pool.num_threads());
  const PanelFn run = ActivePanelFn();
  const DotPanelFn run_bf16 = ActiveDotPanelFn();
  const Int8PanelFn run_int8 = ActiveInt8PanelFn();
  // A thread begins with neighbouring tasks. Where each can have rows of its own, those stay in its
  // caches from one product to the next; else chunks of one panel are neighbours, so that the
  // second finds the panel's bytes in cache.
  const bool by_rows = chunks % pool.num_threads() == 0;
  pool.ParallelFor(panels * chunks, [&](int64_t task, int32_t) {
    const int64_t chunk = by_rows ? task / panels : task % chunks;
    int64_t panel = by_rows ? task % panels : task / chunks;
    const LinearJob* job = jobs.data();
    for (; panel >= PanelsOf(*job->w); ++job) panel -= PanelsOf(*job->w);
    const PackedWeight& w = *job->w;
    const int64_t width = WidthOf(w);
    const int64_t first_tile = tiles * chunk / chunks;
    const int64_t end_tile = tiles * (chunk + 1) / chunks;
    const int64_t first = first_tile * kTileRows;
    const int64_t rows = std::min(m, end_tile * kTileRows) - first;
    const std::byte* packed =
        w.data() + static_cast<size_t>(panel) * (w.bytes() / static_cast<size_t>(PanelsOf(w)));
    alignas(64) std::array<float, static_cast<size_t>(kMaxRows * kPanel)> c;
    const int64_t num_tiles = end_tile - first_tile;
    // No bias, and all columns are there: sums go to y at once.
    const bool direct =
        w.compute() == ComputeType::kBF16 && job->bias == nullptr && (panel + 1) * width <= w.n();
    const int64_t at = first * job->ldy + panel * width;
    float* const sums = direct ? job->y + at : c.data();
    const float* const add = direct && job->residual != nullptr ? job->residual + at : nullptr;
    if (w.compute() == ComputeType::kF32) {
      run(w.dtype(), packed, w.k(), job->x + first * job->ldx, job->ldx, rows, c.data());
    } else {
      const FlushSubnormals flush;
      const PreparedInputs::Input& in = *inputs.Find(*job);
      if (w.compute() == ComputeType::kBF16) {
        run_bf16(w.dtype(), packed, in.bf16, first_tile, num_tiles, sums, direct ? job->ldy : width,
                 add);
      } else {
        run_int8(w.dtype(), packed, in.int8, first_tile, num_tiles, c.data());
      }
    }
    if (!direct) Finish(*job, panel * width, width, first, rows, c.data());
  });
}

}  // namespace quire::kernels
