// kernels/cpu/ops_rows-inl.h -- the row functions of ops.h, once per ISA (foreach_isa-inl.h).
//
// Element-wise operations are the same in every lane; sums run in 16 lanes over ascending blocks of
// 16 and are joined by one fixed tree. Tails load zeros, which add nothing.

namespace quire::kernels::QUIRE_ISA {

// 1 / root mean square of kRows rows: the chain of additions of one hides behind those of others.
template <int kRows>
void InverseRms(const float* x, int64_t ldx, float eps, int64_t dim, float* by) {
  Vec sum[kRows];
  for (int r = 0; r < kRows; ++r) sum[r] = Zero();
  int64_t i = 0;
  for (; i + 16 <= dim; i += 16) {
    for (int r = 0; r < kRows; ++r) {
      const Vec v = Load(x + r * ldx + i);
      sum[r] = Fma(v, v, sum[r]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    if (i < dim) {
      const Vec v = LoadN(x + r * ldx + i, static_cast<int>(dim - i));
      sum[r] = Fma(v, v, sum[r]);
    }
    by[r] = 1.0f / __builtin_sqrtf(ReduceAdd(sum[r]) / static_cast<float>(dim) + eps);
  }
}

void RmsNormRows(const float* x, int64_t ldx, const float* weight, float offset, float eps,
                 int64_t rows, int64_t dim, float* out, int64_t ldout) {
  constexpr int64_t kGroup = 4;
  const Vec plus = Set1(offset);
  for (int64_t first = 0; first < rows; first += kGroup) {
    const int64_t count = rows - first < kGroup ? rows - first : kGroup;
    float scale[kGroup];
    if (count == kGroup) {
      InverseRms<kGroup>(x, ldx, eps, dim, scale);
    } else {
      for (int64_t r = 0; r < count; ++r) InverseRms<1>(x + r * ldx, ldx, eps, dim, scale + r);
    }
    for (int64_t r = 0; r < count; ++r, x += ldx, out += ldout) {
      const Vec by = Set1(scale[r]);
      int64_t i = 0;
      for (; i + 16 <= dim; i += 16) {
        Store(Mul(Mul(Load(x + i), by), Add(plus, Load(weight + i))), out + i);
      }
      if (i < dim) {
        const int tail = static_cast<int>(dim - i);
        StoreN(Mul(Mul(LoadN(x + i, tail), by), Add(plus, LoadN(weight + i, tail))), out + i, tail);
      }
    }
  }
}

// Heads of one token, `stride` apart. Pairs (i, i + half): a, b = a cos - b sin, b cos + a sin.
void RotateHalves(float* x, int32_t num_heads, int64_t stride, const float* cos, const float* sin,
                  int32_t half) {
  int32_t i = 0;
  for (; i + 16 <= half; i += 16) {
    const Vec c = Load(cos + i), s = Load(sin + i);
    float* p = x + i;
    for (int32_t h = 0; h < num_heads; ++h, p += stride) {
      const Vec a = Load(p), b = Load(p + half);
      Store(Sub(Mul(a, c), Mul(b, s)), p);
      Store(Add(Mul(b, c), Mul(a, s)), p + half);
    }
  }
  for (; i < half; ++i) {
    float* p = x + i;
    for (int32_t h = 0; h < num_heads; ++h, p += stride) {
      const float a = p[0], b = p[half];
      p[0] = a * cos[i] - b * sin[i];
      p[half] = b * cos[i] + a * sin[i];
    }
  }
}

template <Activation kAct>
inline Vec Activate(Vec g) {
  const Vec one = Set1(1.0f);
  switch (kAct) {
    case Activation::kSilu:
      return Div(g, Add(one, Exp(Sub(Zero(), g))));
    case Activation::kGeluTanh: {
      const Vec cubic = Mul(Mul(g, g), Mul(g, Set1(0.044715f)));
      const Vec t = Tanh(Mul(Set1(0.797884561f), Add(g, cubic)));  // sqrt(2 / pi)
      return Mul(Mul(Set1(0.5f), g), Add(one, t));
    }
    case Activation::kGelu: {
      float lanes[16];
      Store(g, lanes);
      for (float& x : lanes) x = GeluOne(x);
      return Load(lanes);
    }
    case Activation::kRelu:
      return Max(Zero(), g);  // NaN stays NaN
  }
  return g;
}

template <Activation kAct>
void GatedRowOf(const float* gate, const float* up, int64_t n, float* out) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) Store(Mul(Activate<kAct>(Load(gate + i)), Load(up + i)), out + i);
  if (i < n) {
    const int tail = static_cast<int>(n - i);
    StoreN(Mul(Activate<kAct>(LoadN(gate + i, tail)), LoadN(up + i, tail)), out + i, tail);
  }
}

void GatedRow(Activation act, const float* gate, const float* up, int64_t n, float* out) {
  switch (act) {
    case Activation::kSilu:
      return GatedRowOf<Activation::kSilu>(gate, up, n, out);
    case Activation::kGeluTanh:
      return GatedRowOf<Activation::kGeluTanh>(gate, up, n, out);
    case Activation::kGelu:
      return GatedRowOf<Activation::kGelu>(gate, up, n, out);
    case Activation::kRelu:
      return GatedRowOf<Activation::kRelu>(gate, up, n, out);
  }
}

void SoftCapRow(float cap, int64_t n, float* x) {
  const Vec c = Set1(cap);
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) Store(Mul(c, Tanh(Div(Load(x + i), c))), x + i);
  if (i < n) {
    const int tail = static_cast<int>(n - i);
    StoreN(Mul(c, Tanh(Div(LoadN(x + i, tail), c))), x + i, tail);
  }
}

void ExpSpan(const float* x, int64_t n, float* out) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) Store(Exp(Load(x + i)), out + i);
  if (i < n) StoreN(Exp(LoadN(x + i, static_cast<int>(n - i))), out + i, static_cast<int>(n - i));
}

}  // namespace quire::kernels::QUIRE_ISA
