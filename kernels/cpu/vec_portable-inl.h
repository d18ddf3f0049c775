// kernels/cpu/vec_portable-inl.h -- 16 float lanes in plain C++: the row that runs everywhere, and
// the definition of what each operation of the other rows means.
//
// Included by foreach_isa-inl.h only. Every operation here gives the same bits in each ISA's file.
#pragma once

namespace quire::kernels::portable {

inline constexpr int kMaxVecs = 1;  // vectors of 16 keys or dims per register block

struct Vec {
  float lane[16];
};

// A hint for the other rows: keep the value in a register.
inline void Pin(Vec&) {}
inline void Prefetch(const void* p) { __builtin_prefetch(p); }

inline Vec Set1(float x) {
  Vec r;
  for (float& e : r.lane) e = x;
  return r;
}
inline Vec Zero() { return Set1(0.0f); }

inline Vec Load(const float* p) {
  Vec r;
  for (int i = 0; i < 16; ++i) r.lane[i] = p[i];
  return r;
}
// The first n lanes, zero in the others, which are not read.
inline Vec LoadN(const float* p, int n) {
  Vec r = Zero();
  for (int i = 0; i < n; ++i) r.lane[i] = p[i];
  return r;
}
inline void Store(Vec x, float* p) {
  for (int i = 0; i < 16; ++i) p[i] = x.lane[i];
}
inline void StoreN(Vec x, float* p, int n) {
  for (int i = 0; i < n; ++i) p[i] = x.lane[i];
}
inline Vec LoadBF16(const uint16_t* p) {
  Vec r;
  for (int i = 0; i < 16; ++i) r.lane[i] = BF16ToFloat(p[i]);
  return r;
}
// Nearest even; a NaN stays one, and what would be subnormal is zero, as tile instructions read it.
inline uint16_t TileBF16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>(bits >> 16 | 0x40u);
  const uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
  return static_cast<uint16_t>((rounded & 0x7f80u) == 0 ? rounded & 0x8000u : rounded);
}
inline void StoreBF16(Vec x, uint16_t* p) {
  for (int i = 0; i < 16; ++i) p[i] = TileBF16(x.lane[i]);
}
// The first (second) halves of 16 pairs.
inline Vec LoadEvenBF16(const uint16_t* p) {
  Vec r;
  for (int i = 0; i < 16; ++i) r.lane[i] = BF16ToFloat(p[2 * i]);
  return r;
}
inline Vec LoadOddBF16(const uint16_t* p) { return LoadEvenBF16(p + 1); }
// Rounded to bf16, nearest even; NaN stays NaN.
inline Vec RoundBF16(Vec x) {
  for (float& e : x.lane) e = BF16ToFloat(FloatToBF16(e));
  return x;
}
// The upper halves of 16 lanes behind each other; of those of two vectors, as pairs.
inline void StoreHigh(Vec x, uint16_t* p) {
  for (int i = 0; i < 16; ++i)
    p[i] = static_cast<uint16_t>(std::bit_cast<uint32_t>(x.lane[i]) >> 16);
}
inline void StoreHighPairs(Vec even, Vec odd, uint16_t* p) {
  for (int i = 0; i < 16; ++i) {
    p[2 * i] = static_cast<uint16_t>(std::bit_cast<uint32_t>(even.lane[i]) >> 16);
    p[2 * i + 1] = static_cast<uint16_t>(std::bit_cast<uint32_t>(odd.lane[i]) >> 16);
  }
}
// to[j * ld_to + i] = from[i * ld_from + j], 16 x 16.
inline void TransposeWords(const uint32_t* from, int64_t ld_from, uint32_t* to, int64_t ld_to) {
  for (int j = 0; j < 16; ++j) {
    for (int i = 0; i < 16; ++i) to[j * ld_to + i] = from[i * ld_from + j];
  }
}
// 32 whole numbers of int8's range as bytes, each 8 in the order 0 4 1 5 2 6 3 7.
inline void StoreCodes(Vec lo, Vec hi, int8_t* p) {
  for (int i = 0; i < 32; ++i) {
    const int j = i % 8;
    const float v = i < 16 ? lo.lane[i] : hi.lane[i - 16];
    p[i - j + j / 2 % 2 * 4 + j % 2 * 2 + j / 4] = static_cast<int8_t>(v);
  }
}
inline Vec LoadF16(const uint16_t* p) {
  Vec r;
  for (int i = 0; i < 16; ++i) r.lane[i] = F16ToFloat(p[i]);
  return r;
}
inline Vec LoadI8(const int8_t* p) {
  Vec r;
  for (int i = 0; i < 16; ++i) r.lane[i] = static_cast<float>(p[i]);
  return r;
}

#define QUIRE_LANEWISE(name, params, expr)         \
  inline Vec name params {                         \
    Vec r;                                         \
    for (int i = 0; i < 16; ++i) r.lane[i] = expr; \
    return r;                                      \
  }
QUIRE_LANEWISE(Fma, (Vec a, Vec b, Vec c), __builtin_fmaf(a.lane[i], b.lane[i], c.lane[i]))
QUIRE_LANEWISE(Add, (Vec a, Vec b), a.lane[i] + b.lane[i])
QUIRE_LANEWISE(Sub, (Vec a, Vec b), a.lane[i] - b.lane[i])
QUIRE_LANEWISE(Mul, (Vec a, Vec b), a.lane[i] * b.lane[i])
QUIRE_LANEWISE(Div, (Vec a, Vec b), a.lane[i] / b.lane[i])
// b if either is NaN, as the x86 instruction has it.
QUIRE_LANEWISE(Max, (Vec a, Vec b), a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i])
QUIRE_LANEWISE(Abs, (Vec a), __builtin_fabsf(a.lane[i]))
QUIRE_LANEWISE(CopySign, (Vec magnitude, Vec sign),
               __builtin_copysignf(magnitude.lane[i], sign.lane[i]))
// a < b ? x : y
QUIRE_LANEWISE(SelectLt, (Vec a, Vec b, Vec x, Vec y),
               a.lane[i] < b.lane[i] ? x.lane[i] : y.lane[i])
// x where lo <= lane < hi, else y. Lanes that are not kept may be anything, NaN included.
QUIRE_LANEWISE(KeepLanes, (Vec x, int lo, int hi, Vec y), i >= lo && i < hi ? x.lane[i] : y.lane[i])
// p * 2^n for n in the low bits of t (see Exp); by integer arithmetic on the exponent.
QUIRE_LANEWISE(AddExponent, (Vec p, Vec t),
               std::bit_cast<float>(std::bit_cast<uint32_t>(p.lane[i]) +
                                    (std::bit_cast<uint32_t>(t.lane[i]) << 23)))
#undef QUIRE_LANEWISE

// Bit i: the comparison of lanes i; false if either is NaN.
inline uint32_t LanesLt(Vec a, Vec b) {
  uint32_t bits = 0;
  for (int i = 0; i < 16; ++i) bits |= (a.lane[i] < b.lane[i] ? 1u : 0u) << i;
  return bits;
}
inline uint32_t LanesEq(Vec a, Vec b) {
  uint32_t bits = 0;
  for (int i = 0; i < 16; ++i) bits |= (a.lane[i] == b.lane[i] ? 1u : 0u) << i;
  return bits;
}

// Lanes are joined as a tree: i with i + 8, then + 4, + 2, + 1.
inline float ReduceAdd(Vec x) {
  for (int half = 8; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) x.lane[i] += x.lane[i + half];
  }
  return x.lane[0];
}
inline float ReduceMax(Vec x) {
  for (int half = 8; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) {
      x.lane[i] = x.lane[i] > x.lane[i + half] ? x.lane[i] : x.lane[i + half];
    }
  }
  return x.lane[0];
}

// Lane i: of x[i].
inline Vec ReduceAddEach(const Vec* x) {
  float each[16];
  for (int i = 0; i < 16; ++i) each[i] = ReduceAdd(x[i]);
  return Load(each);
}
inline Vec ReduceMaxEach(const Vec* x) {
  float each[16];
  for (int i = 0; i < 16; ++i) each[i] = ReduceMax(x[i]);
  return Load(each);
}

// Sums of 16 lanes in double; joined as above.
struct Wide {
  double lane[16];
};
inline Wide ZeroWide() { return {}; }
inline Wide AddWide(Wide sum, Vec x) {
  for (int i = 0; i < 16; ++i) sum.lane[i] += static_cast<double>(x.lane[i]);
  return sum;
}
inline double ReduceAdd(Wide x) {
  for (int half = 8; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) x.lane[i] += x.lane[i + half];
  }
  return x.lane[0];
}

}  // namespace quire::kernels::portable
