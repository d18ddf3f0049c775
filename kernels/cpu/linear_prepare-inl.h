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

// The same in int8 (linear_int8.h): codes, their sum, scale and the sum of x.
inline void QuantizeBlock(const float* x, int64_t n, int8_t* codes, float* scale, float* sum,
                          int32_t* total) {
  float block[32] = {};
  if (n < 32) {
    for (int64_t i = 0; i < n; ++i) block[i] = x[i];
    x = block;
  }
  const Vec lo = Load(x), hi = Load(x + 16);
  *sum = ReduceAdd(Add(lo, hi));
  const bool finite = *sum - *sum == 0.0f;
  const float max = finite ? ReduceMax(Max(Abs(lo), Abs(hi))) : 0.0f;
  *scale = finite ? max / 127.0f : *sum - *sum;
  // Below 2^-100 an inverse could overflow: zero, like an empty block.
  const bool empty = !(max >= 0x1p-100f);
  if (finite && empty) *scale = 0.0f;
  const Vec inverse = Set1(empty ? 0.0f : 127.0f / max);
  // Adding 1.5 * 2^23 rounds to a whole number, nearest even.
  const Vec magic = Set1(12582912.0f);
  const Vec zero = Zero();
  const Vec a = empty ? zero : Sub(Add(Mul(lo, inverse), magic), magic);
  const Vec b = empty ? zero : Sub(Add(Mul(hi, inverse), magic), magic);
  StoreCodes(a, b, codes);
  *total = static_cast<int32_t>(ReduceAdd(Add(a, b)));
}

inline void QuantizeRow(const float* x, int64_t k, int64_t row, int64_t rows_of_tile, int8_t* tile,
                        float* scales, float* sums, int32_t* totals) {
  for (int64_t b = 0; b * 32 < k; ++b) {
    QuantizeBlock(x + b * 32, k - b * 32 < 32 ? k - b * 32 : 32,
                  tile + (b * rows_of_tile + row) * 32, scales + b, sums + b, totals + b);
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
