// kernels/cpu/logits-inl.h -- the row passes of logits.h, once per ISA (foreach_isa-inl.h).

namespace quire::kernels::QUIRE_ISA {

inline Vec LowestFloats() { return Set1(-__builtin_inff()); }

// x + i, 16 of them; behind the end -infinity, which is above nothing.
inline Vec LoadLogits(const float* x, size_t n, size_t i) {
  if (n - i >= 16) return Load(x + i);
  const int lanes = static_cast<int>(n - i);
  return KeepLanes(LoadN(x + i, lanes), 0, lanes, LowestFloats());
}

// Values are read from memory once: what is looked through a second time is one block, from cache.
int64_t ArgMaxRow(const float* x, size_t n) {
  constexpr size_t kBlock = 4096;
  float best = -__builtin_inff();
  size_t start = 0;
  for (size_t first = 0; first < n; first += kBlock) {
    const size_t end = n - first < kBlock ? n : first + kBlock;
    // Max gives its second argument if either is NaN.
    Vec m[4] = {LowestFloats(), LowestFloats(), LowestFloats(), LowestFloats()};
    size_t i = first;
    for (; i + 64 <= end; i += 64) {
      for (size_t j = 0; j < 4; ++j) m[j] = Max(Load(x + i + 16 * j), m[j]);
    }
    for (; i < end; i += 16) m[0] = Max(LoadLogits(x, end, i), m[0]);
    const float most = ReduceMax(Max(Max(m[0], m[1]), Max(m[2], m[3])));
    if (most > best) {
      best = most;
      start = first;
    }
  }
  if (!(best > -__builtin_inff())) return -1;
  const Vec want = Set1(best);
  for (size_t i = start;; i += 16) {
    const uint32_t equal = LanesEq(LoadLogits(x, n, i), want);
    if (equal != 0) return static_cast<int64_t>(i) + __builtin_ctz(equal);
  }
}

size_t FirstAboveRow(const float* x, size_t n, size_t first, float floor) {
  const Vec at_most = Set1(floor);
  size_t i = first;
  for (; i + 64 <= n; i += 64) {
    const Vec a = Max(Load(x + i), at_most), b = Max(Load(x + i + 16), at_most);
    const Vec c = Max(Load(x + i + 32), at_most), d = Max(Load(x + i + 48), at_most);
    if (LanesLt(at_most, Max(Max(a, b), Max(c, d))) != 0) break;
  }
  for (; i < n; i += 16) {
    const uint32_t above = LanesLt(at_most, LoadLogits(x, n, i));
    if (above != 0) return i + static_cast<size_t>(__builtin_ctz(above));
  }
  return n;
}

size_t CountAboveRow(const float* x, size_t n, float floor) {
  const Vec at_most = Set1(floor);
  size_t count = 0;
  for (size_t i = 0; i < n; i += 16) {
    count += static_cast<size_t>(__builtin_popcount(LanesLt(at_most, LoadLogits(x, n, i))));
  }
  return count;
}

size_t CountEqualRow(const float* x, size_t n, float value) {
  const Vec want = Set1(value);
  size_t count = 0;
  for (size_t i = 0; i < n; i += 16) {
    uint32_t equal = LanesEq(LoadLogits(x, n, i), want);
    if (n - i < 16) equal &= (1u << (n - i)) - 1u;
    count += static_cast<size_t>(__builtin_popcount(equal));
  }
  return count;
}

size_t KeepAboveRow(const float* x, size_t n, float floor, float* values, int32_t* ids) {
  const Vec at_most = Set1(floor);
  size_t kept = 0;
  for (size_t i = 0; i < n; i += 16) {
    const Vec v = LoadLogits(x, n, i);
    uint32_t above = LanesLt(at_most, v);
    if (above == 0xffffu) {
      Store(v, values + kept);
      for (int32_t j = 0; j < 16; ++j)
        ids[kept + static_cast<size_t>(j)] = static_cast<int32_t>(i) + j;
      kept += 16;
      continue;
    }
    for (; above != 0; above &= above - 1) {
      const size_t at = i + static_cast<size_t>(__builtin_ctz(above));
      values[kept] = x[at];
      ids[kept++] = static_cast<int32_t>(at);
    }
  }
  return kept;
}

size_t KeepAtLeastRow(float cut, size_t n, float* values, int32_t* ids) {
  const Vec below = Set1(cut);
  size_t kept = 0;
  for (size_t i = 0; i < n; i += 16) {
    const Vec v = LoadLogits(values, n, i);
    // Not below and not NaN.
    uint32_t keep = LanesLt(below, v) | LanesEq(below, v);
    if (n - i < 16) keep &= (1u << (n - i)) - 1u;
    for (; keep != 0; keep &= keep - 1) {
      const size_t at = i + static_cast<size_t>(__builtin_ctz(keep));
      values[kept] = values[at];
      ids[kept++] = ids[at];
    }
  }
  return kept;
}

// Max gives its second argument for NaN, whose weight is then 0.
inline Vec ExpWeight(Vec x, Vec best) { return Exp(Max(Sub(x, best), Set1(-1000.0f))); }

void ExpWeightsRow(const float* x, size_t n, float best, float temperature, float* weights) {
  const Vec most = Set1(best), by = Set1(temperature), least = Set1(-1000.0f);
  for (size_t i = 0; i < n; i += 16) {
    const Vec v = LoadLogits(x, n, i);
    const Vec w = temperature == 1.0f ? ExpWeight(v, most) : Exp(Max(Div(Sub(v, most), by), least));
    if (n - i >= 16) {
      Store(w, weights + i);
    } else {
      StoreN(w, weights + i, static_cast<int>(n - i));
    }
  }
}

double SumRow(const float* x, size_t n) {
  Wide sum = ZeroWide();
  size_t i = 0;
  for (; i + 16 <= n; i += 16) sum = AddWide(sum, Load(x + i));
  if (i < n) sum = AddWide(sum, LoadN(x + i, static_cast<int>(n - i)));
  return ReduceAdd(sum);
}

double SumExpRow(const float* x, size_t n, float best) {
  const Vec most = Set1(best);
  Wide sum = ZeroWide();
  // What lies behind the end is -infinity and adds 0.
  for (size_t i = 0; i < n; i += 16) sum = AddWide(sum, ExpWeight(LoadLogits(x, n, i), most));
  return ReduceAdd(sum);
}

}  // namespace quire::kernels::QUIRE_ISA
