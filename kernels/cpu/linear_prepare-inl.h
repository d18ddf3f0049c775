// kernels/cpu/linear_prepare-inl.h -- rows of x in bfloat16 tiles (linear_dot.h), once per ISA
// (foreach_isa-inl.h). The last part of a row that is no multiple of 32 is filled up with zeros.

namespace quire::kernels::QUIRE_ISA {

// The 32 values of one block: x[0 .. n - 1], then zeros.
inline void PrepareBlock(const float* x, int64_t n, uint16_t* out, float* sum) {
  float block[32] = {};
  if (n < 32) {
    for (int64_t i = 0; i < n; ++i) block[i] = x[i];
    x = block;
  }
  const Vec lo = Load(x), hi = Load(x + 16);
  StoreBF16(lo, out);
  StoreBF16(hi, out + 16);
  *sum = ReduceAdd(Add(lo, hi));
}

// Row `row` of its tile of rows_of_tile rows.
inline void PrepareRow(const float* x, int64_t k, int64_t row, int64_t rows_of_tile, uint16_t* tile,
                       float* sums) {
  for (int64_t b = 0; b * 32 < k; ++b) {
    PrepareBlock(x + b * 32, k - b * 32 < 32 ? k - b * 32 : 32,
                 tile + (b * rows_of_tile + row) * 32, sums + b);
  }
}

// y = c (+ bias) (+ residual), in this order, for one row of a panel.
inline void FinishRow(const float* c, const float* bias, const float* residual, int64_t n,
                      float* y) {
  for (int64_t j = 0; j < n; j += 16) {
    const int lanes = static_cast<int>(n - j < 16 ? n - j : 16);
    Vec v = Load(c + j);
    if (bias != nullptr) v = Add(v, LoadN(bias + j, lanes));
    if (residual != nullptr) v = Add(v, LoadN(residual + j, lanes));
    StoreN(v, y + j, lanes);
  }
}

}  // namespace quire::kernels::QUIRE_ISA
