// kernels/cpu/ops_rows-inl.h -- the row functions of ops.h, once per ISA (foreach_isa-inl.h).
//
// Element-wise operations are the same in every lane; sums run in 16 lanes over ascending blocks of
// 16 and are joined by one fixed tree. Tails load zeros, which add nothing.

namespace quire::kernels::QUIRE_ISA {

void RmsNormRow(const float* x, const float* weight, float offset, float eps, int64_t dim,
                float* out) {
  Vec sum = Zero();
  int64_t i = 0;
  for (; i + 16 <= dim; i += 16) {
    const Vec v = Load(x + i);
    sum = Fma(v, v, sum);
  }
  const int tail = static_cast<int>(dim - i);
  if (tail > 0) {
    const Vec v = LoadN(x + i, tail);
    sum = Fma(v, v, sum);
  }
  const float mean = ReduceAdd(sum) / static_cast<float>(dim);
  const Vec by = Set1(1.0f / __builtin_sqrtf(mean + eps));
  const Vec plus = Set1(offset);
  for (i = 0; i + 16 <= dim; i += 16) {
    Store(Mul(Mul(Load(x + i), by), Add(plus, Load(weight + i))), out + i);
  }
  if (tail > 0) {
    StoreN(Mul(Mul(LoadN(x + i, tail), by), Add(plus, LoadN(weight + i, tail))), out + i, tail);
  }
}

// One head: a[i], b[i] = a[i] * cos[i] - b[i] * sin[i], b[i] * cos[i] + a[i] * sin[i].
void RotateHalves(float* a, float* b, const float* cos, const float* sin, int32_t half) {
  int32_t i = 0;
  for (; i + 16 <= half; i += 16) {
    const Vec x = Load(a + i), y = Load(b + i), c = Load(cos + i), s = Load(sin + i);
    Store(Sub(Mul(x, c), Mul(y, s)), a + i);
    Store(Add(Mul(y, c), Mul(x, s)), b + i);
  }
  for (; i < half; ++i) {
    const float x = a[i], y = b[i];
    a[i] = x * cos[i] - y * sin[i];
    b[i] = y * cos[i] + x * sin[i];
  }
}

inline Vec Activate(Activation act, Vec g) {
  const Vec one = Set1(1.0f);
  switch (act) {
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

void GatedRow(Activation act, const float* gate, const float* up, int64_t n, float* out) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) Store(Mul(Activate(act, Load(gate + i)), Load(up + i)), out + i);
  if (i < n) {
    const int tail = static_cast<int>(n - i);
    StoreN(Mul(Activate(act, LoadN(gate + i, tail)), LoadN(up + i, tail)), out + i, tail);
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
