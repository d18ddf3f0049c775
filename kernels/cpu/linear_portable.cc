// The row of RunLinear that every CPU runs: the same loops over small arrays, with std::fma, which
// is one instruction where the target has it and a correctly rounded library call elsewhere.
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "kernels/block_format.h"
#include "kernels/cpu/isa_target.h"
#include "kernels/cpu/linear_dot.h"
#include "kernels/cpu/linear_int8.h"
#include "kernels/cpu/linear_kernels.h"

namespace quire::kernels {
namespace portable {
namespace {

struct V {
  static constexpr int32_t kLanes = 16;
  static constexpr int kFewRows = 1;
  static constexpr int kFewVecs = 1;
  static constexpr int kTileRows = 6;
  static constexpr int kTileVecs = 1;
  struct F {
    std::array<float, kLanes> v;
  };
  struct U {
    std::array<uint32_t, kLanes> v;
  };

  static F Zero() { return Set1(0.0f); }
  static F Set1(float x) {
    F r;
    r.v.fill(x);
    return r;
  }
  static F Load(const float* p) {
    F r;
    std::memcpy(&r, p, sizeof(r));
    return r;
  }
  static void Store(float* p, F x) { std::memcpy(p, &x, sizeof(x)); }
  static F Fma(F a, F b, F c) {
    for (size_t i = 0; i < kLanes; ++i) c.v[i] = std::fma(a.v[i], b.v[i], c.v[i]);
    return c;
  }
  static F Mul(F a, F b) {
    for (size_t i = 0; i < kLanes; ++i) a.v[i] *= b.v[i];
    return a;
  }
  static F Add(F a, F b) {
    for (size_t i = 0; i < kLanes; ++i) a.v[i] += b.v[i];
    return a;
  }
  static F Neg(F a) {
    for (float& x : a.v) x = -x;
    return a;
  }

  template <typename T>
  static std::array<T, kLanes> LoadAs(const std::byte* p) {
    std::array<T, kLanes> r;
    std::memcpy(&r, p, sizeof(r));
    return r;
  }
  static F LoadF32(const std::byte* p) { return {LoadAs<float>(p)}; }
  static F LoadF16(const std::byte* p) {
    const auto half = LoadAs<uint16_t>(p);
    F r;
    for (size_t i = 0; i < kLanes; ++i) r.v[i] = F16ToFloat(half[i]);
    return r;
  }
  static F LoadI8(const std::byte* p) {
    const auto bytes = LoadAs<int8_t>(p);
    F r;
    for (size_t i = 0; i < kLanes; ++i) r.v[i] = static_cast<float>(bytes[i]);
    return r;
  }
  static U LoadU32(const std::byte* p) { return {LoadAs<uint32_t>(p)}; }
  static U LoadPairs(const std::byte* p) { return LoadU32(p); }
  static F LowBF16(U x) {
    F r;
    for (size_t i = 0; i < kLanes; ++i) r.v[i] = std::bit_cast<float>(x.v[i] << 16);
    return r;
  }
  static F HighBF16(U x) {
    F r;
    for (size_t i = 0; i < kLanes; ++i) r.v[i] = std::bit_cast<float>(x.v[i] & 0xffff0000u);
    return r;
  }
  template <int kByte>
  static F ByteI8(U x) {
    F r;
    for (size_t i = 0; i < kLanes; ++i) {
      r.v[i] = static_cast<float>(static_cast<int8_t>(x.v[i] >> (8 * kByte) & 255u));
    }
    return r;
  }
  static U SetWord(uint32_t w) {
    U r;
    r.v.fill(w);
    return r;
  }
  static U And(U a, U b) {
    for (size_t i = 0; i < kLanes; ++i) a.v[i] &= b.v[i];
    return a;
  }
  static U Or(U a, U b) {
    for (size_t i = 0; i < kLanes; ++i) a.v[i] |= b.v[i];
    return a;
  }
  static void StoreU32(uint32_t* p, U x) { std::memcpy(p, &x, sizeof(x)); }
  static F ToFloat(U x) {
    F r;
    for (size_t i = 0; i < kLanes; ++i) r.v[i] = static_cast<float>(static_cast<int32_t>(x.v[i]));
    return r;
  }
  static constexpr int32_t kDot8Excess = 0;
  static U Code8(U q) { return q; }
  static int32_t Byte(uint32_t word, int j) { return static_cast<int8_t>(word >> (8 * j) & 255u); }
  // Bytes below 128 are the same signed.
  static U DotSmall(U acc, U u, U x) { return Dot8(acc, u, x); }
  static U Dot8(U acc, U q, U x) {
    for (size_t i = 0; i < kLanes; ++i) {
      int32_t sum = 0;
      for (int j = 0; j < 4; ++j) sum += Byte(q.v[i], j) * Byte(x.v[i], j);
      acc.v[i] += static_cast<uint32_t>(sum);
    }
    return acc;
  }
  template <int kBits>
  static U Shl(U x) {
    for (uint32_t& e : x.v) e <<= kBits;
    return x;
  }
  template <int kBits>
  static U Shr(U x) {
    for (uint32_t& e : x.v) e >>= kBits;
    return x;
  }

  template <int kOffset>
  static F Nibble(U x) {
    F r;
    for (size_t i = 0; i < kLanes; ++i) {
      r.v[i] = static_cast<float>(static_cast<int32_t>(x.v[i] & 15u) - kOffset);
    }
    return r;
  }
  static F HighBit(U x) {
    F r;
    for (size_t i = 0; i < kLanes; ++i) r.v[i] = static_cast<float>((x.v[i] & 1u) << 4);
    return r;
  }
  static F HighPair(U x) {
    F r;
    for (size_t i = 0; i < kLanes; ++i) r.v[i] = static_cast<float>((x.v[i] & 3u) << 4);
    return r;
  }
};

// clang-format off
#include "kernels/cpu/linear-inl.h"
#include "kernels/cpu/linear_dot-inl.h"
#include "kernels/cpu/linear_int8-inl.h"
// clang-format on

}  // namespace
}  // namespace portable

void PanelPortable(DType type, const std::byte* panel, int64_t k, const float* x, int64_t ldx,
                   int64_t rows, float* c) {
  portable::PanelOf(type, panel, k, x, ldx, rows, c);
}

void DotPanelPortable(DType type, const std::byte* panel, const DotRows& x, int64_t first_tile,
                      int64_t num_tiles, float* c, int64_t ldc, const float* add) {
  portable::DotPanelOf(type, panel, x, first_tile, num_tiles, c, ldc, add);
}

void Int8PanelPortable(DType type, const std::byte* panel, const Int8Rows& x, int64_t first_tile,
                       int64_t num_tiles, float* c) {
  portable::Int8PanelOf(type, panel, x, first_tile, num_tiles, c);
}

}  // namespace quire::kernels
