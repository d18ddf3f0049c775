// kernels/cpu/attention_flash_tiles-inl.h -- the two products of attention_flash_bf16-inl.h as AMX
// tile instructions: members of its Bf16Dot. Tiles are named by literals, as gcc wants them: 0..3
// hold sums, the others what is multiplied.

// The intrinsics do not tell the compiler that they read memory.
#define QUIRE_TILE_LOAD(tile, p, bytes) \
  __asm__ volatile("" ::: "memory");    \
  _tile_loadd(tile, p, bytes)

// Items of up to this many rows have tiles of their own shape.
static constexpr int32_t kFewRows = 16;

static void Begin(int32_t num_rows) { ConfigureTiles(num_rows < kFewRows ? num_rows : 16); }

// Numerators are no denormals, which this instruction would take for 0.
static void StoreRounded(Vec x, uint16_t* p) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x.v)));
}

static Pairs RunOf(const Column& column, int32_t n, int32_t num_whole) {
  if (n >= num_whole) return column.rest;
  return {column.whole.p + n * kPairs * column.whole.stride, column.whole.stride};
}

// N x 16 rows of queries against 16 keys.
template <int N>
static void ScoreTiles(const uint16_t* q, int32_t dims, int32_t num_whole, const Column& column,
                       float* s) {
  const int64_t q_bytes = int64_t{dims} * 2;
  const int64_t tile = 16 * int64_t{dims};
  _tile_zero(0);
  if constexpr (N > 1) _tile_zero(1);
  for (int32_t n = 0; n * kDotRun < dims; ++n) {
    const Pairs b = RunOf(column, n, num_whole);
    const uint16_t* a = q + n * kDotRun;
    QUIRE_TILE_LOAD(7, b.p, b.stride * 2);
    QUIRE_TILE_LOAD(4, a, q_bytes);
    _tile_dpbf16ps(0, 4, 7);
    if constexpr (N > 1) {
      QUIRE_TILE_LOAD(5, a + tile, q_bytes);
      _tile_dpbf16ps(1, 5, 7);
    }
  }
  constexpr int64_t kBytes = kFlashLdScores * 4;
  _tile_stored(0, s, kBytes);
  if constexpr (N > 1) _tile_stored(1, s + 16 * kFlashLdScores, kBytes);
}

// All rows of an item of few against two neighbouring columns (one, if the other is null).
static void ScoreFew(const uint16_t* q, int32_t dims, int32_t num_whole, const Column& column,
                     const Column* next, float* s) {
  const int64_t q_bytes = int64_t{dims} * 2;
  _tile_zero(0);
  _tile_zero(1);
  for (int32_t n = 0; n * kDotRun < dims; ++n) {
    const Pairs b = RunOf(column, n, num_whole);
    QUIRE_TILE_LOAD(4, q + n * kDotRun, q_bytes);
    QUIRE_TILE_LOAD(5, b.p, b.stride * 2);
    _tile_dpbf16ps(0, 4, 5);
    if (next == nullptr) continue;
    const Pairs c = RunOf(*next, n, num_whole);
    QUIRE_TILE_LOAD(6, c.p, c.stride * 2);
    _tile_dpbf16ps(1, 4, 6);
  }
  constexpr int64_t kBytes = kFlashLdScores * 4;
  _tile_stored(0, s, kBytes);
  if (next != nullptr) _tile_stored(1, s + 16, kBytes);
}

static void ScoresFew(const FlashTask& t, const FlashPages& pages, const FlashPass& pass,
                      int32_t lo, int32_t hi) {
  const int32_t dims = FlashDotDims(*t.s);
  const int32_t num_whole = t.s->head_dim / kDotRun;
  const uint16_t* const q = Halves(t.scratch.q);
  // Two columns at once are both in their pages.
  const bool in_place = pages.page_size >= 16 && num_whole * kDotRun == dims;
  for (int32_t key = lo / 16 * 16; key < hi;) {
    float* const s = t.scratch.scores + (key - pass.split);
    const Column column = KeyColumn(t, pages, key, lo, hi);
    if (in_place && key + 16 < hi) {
      const Column next = KeyColumn(t, pages, key + 16, lo, hi);
      ScoreFew(q, dims, num_whole, column, &next, s);
      key += 32;
    } else {
      ScoreFew(q, dims, num_whole, column, nullptr, s);
      key += 16;
    }
  }
}

// N x 16 rows from row `r` on against all keys: heads of 64 dimensions, whose queries stay in
// tiles.
template <int N>
static void ScoreRows64(const FlashTask& t, const FlashPages& pages, const FlashPass& pass,
                        int32_t lo, int32_t hi) {
  const uint16_t* const q = Halves(t.scratch.q) + int64_t{pass.block} * 64;
  float* const s = t.scratch.scores;
  const int64_t stride = int64_t{pages.page_size} * 4;
  constexpr int64_t kBytes = kFlashLdScores * 4;
  QUIRE_TILE_LOAD(0, q, 128);
  QUIRE_TILE_LOAD(1, q + 32, 128);
  if constexpr (N > 1) {
    QUIRE_TILE_LOAD(2, q + 1024, 128);
    QUIRE_TILE_LOAD(3, q + 1056, 128);
  }
  for (int32_t key = lo / 16 * 16; key < hi; key += 16) {
    const std::byte* const k = pages.Key(key, 0);
    _tile_zero(4);
    QUIRE_TILE_LOAD(6, k, stride);
    _tile_dpbf16ps(4, 0, 6);
    if constexpr (N > 1) {
      _tile_zero(5);
      _tile_dpbf16ps(5, 2, 6);
    }
    QUIRE_TILE_LOAD(7, k + 16 * stride, stride);
    _tile_dpbf16ps(4, 1, 7);
    if constexpr (N > 1) _tile_dpbf16ps(5, 3, 7);
    _tile_stored(4, s + (key - pass.split), kBytes);
    if constexpr (N > 1) {
      _tile_stored(5, s + 16 * kFlashLdScores + (key - pass.split), kBytes);
    }
  }
}

static void Scores(const FlashTask& t, const FlashPages& pages, FlashPass& pass, int32_t lo,
                   int32_t hi) {
  if (!SetRuns(pass, &lo, &hi)) return;
  if (pass.num_rows <= kFewRows) return ScoresFew(t, pages, pass, lo, hi);
  const bool two = pass.block_end - pass.block > 16;
  if (t.s->head_dim == 64 && pages.page_size >= 16) {
    return two ? ScoreRows64<2>(t, pages, pass, lo, hi) : ScoreRows64<1>(t, pages, pass, lo, hi);
  }
  const int32_t dims = FlashDotDims(*t.s);
  const int32_t num_whole = t.s->head_dim / kDotRun;
  const uint16_t* const q = Halves(t.scratch.q) + int64_t{pass.block} * dims;
  for (int32_t key = lo / 16 * 16; key < hi; key += 16) {
    const Column column = KeyColumn(t, pages, key, lo, hi);
    if (key + kAheadKeys < hi) PrefetchKeys(pages, key + kAheadKeys, (t.s->head_dim + 1) / 2);
    float* s = t.scratch.scores + (key - pass.split);
    if (two) {
      ScoreTiles<2>(q, dims, num_whole, column, s);
    } else {
      ScoreTiles<1>(q, dims, num_whole, column, s);
    }
  }
}

// Adds one run of 16 rows of numerators against N x 16 dimensions to tiles 0 to N - 1.
template <int N>
static void AddRun(const uint16_t* p, Pairs b) {
  QUIRE_TILE_LOAD(4, p, kFlashLdScores * 4);
  QUIRE_TILE_LOAD(5, b.p, b.stride * 2);
  _tile_dpbf16ps(0, 4, 5);
  if constexpr (N > 1) {
    QUIRE_TILE_LOAD(6, b.p + 32, b.stride * 2);
    _tile_dpbf16ps(1, 4, 6);
  }
  if constexpr (N > 2) {
    QUIRE_TILE_LOAD(7, b.p + 64, b.stride * 2);
    _tile_dpbf16ps(2, 4, 7);
  }
  if constexpr (N > 3) {
    QUIRE_TILE_LOAD(5, b.p + 96, b.stride * 2);
    _tile_dpbf16ps(3, 4, 5);
  }
}

// 16 rows of numerators against N x 16 dimensions, runs ascending.
template <int N>
static void MultiplyTile(const uint16_t* p, const Pairs* runs, int32_t num_runs, float* acc,
                         int64_t acc_bytes) {
  _tile_zero(0);
  if constexpr (N > 1) _tile_zero(1);
  if constexpr (N > 2) _tile_zero(2);
  if constexpr (N > 3) _tile_zero(3);
  for (int32_t n = 0; n < num_runs; ++n, p += kDotRun) AddRun<N>(p, runs[n]);
  _tile_stored(0, acc, acc_bytes);
  if constexpr (N > 1) _tile_stored(1, acc + 16, acc_bytes);
  if constexpr (N > 2) _tile_stored(2, acc + 32, acc_bytes);
  if constexpr (N > 3) _tile_stored(3, acc + 48, acc_bytes);
}

// 32 rows of numerators against 32 dimensions.
static void MultiplyTwo(const uint16_t* p, const Pairs* runs, int32_t num_runs, int32_t d,
                        float* acc, int64_t acc_bytes) {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int32_t n = 0; n < num_runs; ++n, p += kDotRun) {
    const uint16_t* const b = runs[n].p + d * 2;
    const int64_t b_bytes = runs[n].stride * 2;
    QUIRE_TILE_LOAD(4, p, kFlashLdScores * 4);
    QUIRE_TILE_LOAD(6, b, b_bytes);
    _tile_dpbf16ps(0, 4, 6);
    QUIRE_TILE_LOAD(5, p + 16 * kFlashLdScores * 2, kFlashLdScores * 4);
    _tile_dpbf16ps(1, 5, 6);
    QUIRE_TILE_LOAD(7, b + 32, b_bytes);
    _tile_dpbf16ps(2, 4, 7);
    _tile_dpbf16ps(3, 5, 7);
  }
  float* const second = acc + 4 * acc_bytes;
  _tile_stored(0, acc, acc_bytes);
  _tile_stored(1, second, acc_bytes);
  _tile_stored(2, acc + 16, acc_bytes);
  _tile_stored(3, second + 16, acc_bytes);
}

// Computes whole tiles of 16 rows from `row` on, whatever the number asked for: the scratch has
// room for them, and later calls overwrite the others.
static void Multiply(const FlashTask& t, const FlashPass& pass, const Pairs* runs, int32_t row,
                     int32_t num_rows, int32_t from, int32_t to, int32_t dim0, int32_t dims) {
  const int32_t dv16 = FlashDv16(*t.s);
  const int64_t bytes = int64_t{dv16} * 4;
  runs += (from - pass.split) / kDotRun;
  const int32_t num_runs = (to - from) / kDotRun;
  const int32_t tiles = (dims + 15) / 16;
  for (int32_t r = row; r < row + num_rows;) {
    const uint16_t* p =
        Halves(t.scratch.scores + int64_t{r} * kFlashLdScores) + (from - pass.split);
    float* acc = t.scratch.acc + int64_t{r} * dv16 + dim0;
    if (row + num_rows - r > 16 && tiles % 2 == 0) {
      for (int32_t d = 0; d < dims; d += 32) MultiplyTwo(p, runs, num_runs, d, acc + d, bytes);
      r += 32;
      continue;
    }
    if (tiles == 1) MultiplyTile<1>(p, runs, num_runs, acc, bytes);
    if (tiles == 2) MultiplyTile<2>(p, runs, num_runs, acc, bytes);
    if (tiles == 3) MultiplyTile<3>(p, runs, num_runs, acc, bytes);
    if (tiles == 4) MultiplyTile<4>(p, runs, num_runs, acc, bytes);
    r += 16;
  }
}

// Values of few rows, run by run as they are read. False, with nothing done, if a value that only
// some of the rows see is no number.
template <int N>
static bool ValuesFewOf(const FlashTask& t, const FlashPages& pages, const FlashPass& pass,
                        int32_t lo, int32_t hi, int32_t dim0, int32_t dims, KeyRange shared) {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  // A run is multiplied when the next one has been copied: what was just stored is slow to load.
  Pairs ready = {nullptr, 0};
  const uint16_t* const p = Halves(t.scratch.scores);
  for (int32_t k0 = pass.runs_from; k0 < pass.runs_to; k0 += kDotRun) {
    const int32_t n = (k0 - pass.split) / kDotRun;
    const Pairs run = ValueRun(t, pages, k0, lo, hi, dim0, dims, CopyOf(t, n % 2));
    if (!shared.Holds(k0, lo, hi) && !AllFinite(run, dims)) return false;
    if (ready.p != nullptr) AddRun<N>(p + (k0 - kDotRun - pass.split), ready);
    ready = run;
  }
  AddRun<N>(p + (pass.runs_to - kDotRun - pass.split), ready);
  const int32_t dv16 = FlashDv16(*t.s);
  float* const acc = t.scratch.acc + dim0;
  _tile_stored(0, acc, int64_t{dv16} * 4);
  if constexpr (N > 1) _tile_stored(1, acc + 16, int64_t{dv16} * 4);
  if constexpr (N > 2) _tile_stored(2, acc + 32, int64_t{dv16} * 4);
  if constexpr (N > 3) _tile_stored(3, acc + 48, int64_t{dv16} * 4);
  return true;
}

static bool ValuesFew(const FlashTask& t, const FlashPages& pages, const FlashPass& pass,
                      int32_t lo, int32_t hi, int32_t dim0, int32_t dims, KeyRange shared) {
  if (pass.num_rows > kFewRows) return false;
  switch ((dims + 15) / 16) {
    case 1:
      return ValuesFewOf<1>(t, pages, pass, lo, hi, dim0, dims, shared);
    case 2:
      return ValuesFewOf<2>(t, pages, pass, lo, hi, dim0, dims, shared);
    case 3:
      return ValuesFewOf<3>(t, pages, pass, lo, hi, dim0, dims, shared);
    default:
      return ValuesFewOf<4>(t, pages, pass, lo, hi, dim0, dims, shared);
  }
}

#undef QUIRE_TILE_LOAD
