// kernels/for_rows.h -- how the rows of a step are shared out to threads where each row is computed
// alone. Which thread does a row changes nothing.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/thread_pool.h"

namespace quire::kernels {

// Of values that cost about as much as a read, a few operations and a write.
inline constexpr int64_t kSerialValues =
    16384;  // below it a fork-join costs more: 5 us of one core
inline constexpr int64_t kTaskValues = 8192;

// fn(first, count) for all rows, in parts; few rows on the calling thread.
template <typename Fn>
void ForRows(int64_t rows, int64_t values_per_row, ThreadPool& pool, const Fn& fn) {
  if (rows <= 0) return;
  const int64_t values = rows * values_per_row;
  const int64_t threads = pool.num_threads();
  if (rows == 1 || values <= kSerialValues || threads == 1) return fn(0, rows);
  // As many parts for each thread, all of the same size but for one row.
  const int64_t turns = (values + kTaskValues * threads - 1) / (kTaskValues * threads);
  const int64_t parts = std::min(rows, turns * threads);
  pool.ParallelFor(parts, [&](int64_t part, int32_t) {
    const int64_t first = rows * part / parts;
    fn(first, rows * (part + 1) / parts - first);
  });
}

}  // namespace quire::kernels
