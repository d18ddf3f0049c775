// kernels/cpu/linear_prepare-inl.h -- rows of x in bfloat16 tiles (linear_dot.h), once per ISA
// (foreach_isa-inl.h). The last part of a row that is no multiple of 32 is filled up with zeros.

namespace quire::kernels::QUIRE_ISA {

// A block of a row: x + 32 * b, filled up with zeros in `room`.
inline const float* BlockOfRow(const float* x, int64_t k, int64_t b, float* room) {
  if (k - b * 32 >= 32) return x + b * 32;
  for (int64_t i = 0; i < 32; ++i) room[i] = b * 32 + i < k ? x[b * 32 + i] : 0.0f;
  return room;
}

// `rows` rows of x as a tile of pairs.
inline void PrepareTile(const float* x, int64_t ldx, int64_t k, int64_t rows, uint16_t* tile) {
  float room[32];
  uint32_t pairs[16][16];
  for (int64_t b = 0; b * 32 < k; ++b, tile += rows * 32) {
    for (int64_t r = 0; r < rows; ++r) {
      const float* block = BlockOfRow(x + r * ldx, k, b, room);
      auto* const row = rows == 1 ? tile : reinterpret_cast<uint16_t*>(pairs[r]);
      StoreBF16(Load(block), row);
      StoreBF16(Load(block + 16), row + 16);
    }
    if (rows == 1) continue;
    auto* const to = reinterpret_cast<uint32_t*>(tile);
    if (rows == 16) {
      TransposeWords(pairs[0], 16, to, 16);
      continue;
    }
    for (int64_t p = 0; p < 16; ++p) {
      for (int64_t r = 0; r < rows; ++r) to[p * rows + r] = pairs[r][p];
    }
  }
}

// Codes of a block (linear_int8.h), as whole numbers in float32.
struct Codes {
  Vec lo, hi;
};
inline Codes QuantizeBlock(const float* x, float* scale, float* sum) {
  const Vec lo = Load(x), hi = Load(x + 16);
  *sum = ReduceAdd(Add(lo, hi));
  const Codes zeros = {Zero(), Zero()};
  if (!(*sum - *sum == 0.0f)) {
    *scale = *sum - *sum;  // NaN
    return zeros;
  }
  const float max = ReduceMax(Max(Abs(lo), Abs(hi)));
  *scale = 0.0f;
  if (!(max >= 0x1p-100f)) return zeros;
  *scale = max / 127.0f;
  const Vec inverse = Set1(127.0f / max);
  // Adding 1.5 * 2^23 rounds to a whole number, nearest even.
  const Vec magic = Set1(12582912.0f);
  return {Sub(Add(Mul(lo, inverse), magic), magic), Sub(Add(Mul(hi, inverse), magic), magic)};
}

inline void QuantizeOne(const float* x, int64_t b, const QuantizedRow& to) {
  const Codes q = QuantizeBlock(x, to.scales + b * to.n, to.sums + b);
  StoreCodes(q.lo, q.hi, to.q + b * to.n * 32);
  to.totals[b * to.n] = static_cast<int32_t>(ReduceAdd(Add(q.lo, q.hi)));
}

// The same for sixteen whole blocks. False, and nothing is done: one of them is not finite.
inline bool QuantizeSixteen(const float* x, int64_t first, const QuantizedRow& to) {
  Vec block[16];
  for (int i = 0; i < 16; ++i) block[i] = Add(Load(x + 32 * i), Load(x + 32 * i + 16));
  Store(ReduceAddEach(block), to.sums + first);
  for (int i = 0; i < 16; ++i) {
    const float sum = to.sums[first + i];
    if (!(sum - sum == 0.0f)) return false;
  }
  for (int i = 0; i < 16; ++i) block[i] = Max(Abs(Load(x + 32 * i)), Abs(Load(x + 32 * i + 16)));
  const Vec max = ReduceMaxEach(block);
  const Vec least = Set1(0x1p-100f);
  float scale[16], inverse[16], total[16];
  Store(SelectLt(max, least, Zero(), Div(max, Set1(127.0f))), scale);
  Store(SelectLt(max, least, Zero(), Div(Set1(127.0f), max)), inverse);
  const Vec magic = Set1(12582912.0f);
  for (int i = 0; i < 16; ++i) {
    const Vec by = Set1(inverse[i]);
    const Vec lo = Sub(Add(Mul(Load(x + 32 * i), by), magic), magic);
    const Vec hi = Sub(Add(Mul(Load(x + 32 * i + 16), by), magic), magic);
    StoreCodes(lo, hi, to.q + (first + i) * to.n * 32);
    block[i] = Add(lo, hi);
  }
  Store(ReduceAddEach(block), total);
  for (int i = 0; i < 16; ++i) {
    to.scales[(first + i) * to.n] = scale[i];
    to.totals[(first + i) * to.n] = static_cast<int32_t>(total[i]);
  }
  return true;
}

inline void QuantizeRow(const float* x, int64_t k, const QuantizedRow& to) {
  float room[32];
  int64_t b = 0;
  while (b * 32 < k) {
    if (k - b * 32 >= 16 * 32 && QuantizeSixteen(x + b * 32, b, to)) {
      b += 16;
    } else {
      QuantizeOne(BlockOfRow(x, k, b, room), b, to);
      ++b;
    }
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
