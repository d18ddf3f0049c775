// RunLinear: cuts all jobs of a call into panels x row chunks, one fork-join, and adds bias and
// residual when a chunk's chains are complete. The chains themselves are in cpu/linear-inl.h.
#include "kernels/linear.h"

#include <algorithm>
#include <array>

#include "kernels/cpu/linear_kernels.h"
#include "kernels/cpu_isa.h"

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

int64_t PanelsOf(const PackedWeight& w) { return (w.n() + kPanel - 1) / kPanel; }

// How many chunks to cut m rows into, so that panels x chunks fill the threads evenly: 9 panels
// cost two threads 5 turns instead of 4.5, 18 half panels 9. Small chunks expand a panel's weights
// for too few rows, so a chunk keeps at least 48.
int64_t NumRowChunks(int64_t m, int64_t panels, int64_t threads) {
  const int64_t least = (m + kMaxRows - 1) / kMaxRows;
  const int64_t most = std::max(least, m / 48);
  int64_t best = least;
  double best_loss = 1e9;
  for (int64_t chunks = least; chunks <= most; ++chunks) {
    const int64_t tasks = panels * chunks;
    const int64_t turns = (tasks + threads - 1) / threads;
    const double loss = static_cast<double>(turns * threads) / static_cast<double>(tasks);
    if (loss < best_loss - 0.02) {
      best = chunks;
      best_loss = loss;
    }
  }
  return best;
}

// c: [rows][kPanel] finished chains; writes the panel's columns of rows first .. first + rows - 1.
void Finish(const LinearJob& job, int64_t panel, int64_t first, int64_t rows, const float* c) {
  const int64_t col = panel * kPanel;
  const int64_t cols = std::min<int64_t>(kPanel, job.w->n() - col);
  for (int64_t r = 0; r < rows; ++r, c += kPanel) {
    const int64_t at = (first + r) * job.ldy + col;
    float* y = job.y + at;
    const float* residual = job.residual != nullptr ? job.residual + at : nullptr;
    if (job.bias != nullptr && residual != nullptr) {
      for (int64_t j = 0; j < cols; ++j) y[j] = c[j] + job.bias[col + j] + residual[j];
    } else if (job.bias != nullptr) {
      for (int64_t j = 0; j < cols; ++j) y[j] = c[j] + job.bias[col + j];
    } else if (residual != nullptr) {
      for (int64_t j = 0; j < cols; ++j) y[j] = c[j] + residual[j];
    } else {
      std::copy_n(c, cols, y);
    }
  }
}

}  // namespace

void RunLinear(std::span<const LinearJob> jobs, int64_t m, ThreadPool& pool) {
  if (m <= 0) return;
  int64_t panels = 0;
  for (const LinearJob& job : jobs) panels += PanelsOf(*job.w);
  const int64_t chunks = NumRowChunks(m, panels, pool.num_threads());
  const PanelFn run = ActivePanelFn();
  // Chunks of one panel are neighbours: the second finds the panel's bytes in cache.
  pool.ParallelFor(panels * chunks, [&](int64_t task, int32_t) {
    const int64_t chunk = task % chunks;
    int64_t panel = task / chunks;
    const LinearJob* job = jobs.data();
    for (; panel >= PanelsOf(*job->w); ++job) panel -= PanelsOf(*job->w);
    const PackedWeight& w = *job->w;
    const int64_t first = m * chunk / chunks;
    const int64_t rows = m * (chunk + 1) / chunks - first;
    const size_t panel_bytes = w.bytes() / static_cast<size_t>(PanelsOf(w));
    alignas(64) std::array<float, static_cast<size_t>(kMaxRows * kPanel)> c;
    run(w.dtype(), w.data() + static_cast<size_t>(panel) * panel_bytes, w.k(),
        job->x + first * job->ldx, job->ldx, rows, c.data());
    Finish(*job, panel, first, rows, c.data());
  });
}

}  // namespace quire::kernels
