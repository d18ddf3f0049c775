// kernels/cpu/attention_eager-inl.h -- the loops of `eager`, once per ISA (foreach_isa-inl.h).
//
// One head of one sequence at a time, every step a pass over memory: gather keys and values, the
// whole score matrix, mask added, softmax by row, product with the values. No blocking, no skipping
// of masked keys except that they are never multiplied. The floor that other kernels are measured
// against. Bits depend on a row's own numbers only: chains over d and over keys ascend.

namespace quire::kernels::QUIRE_ISA {

// keys16: the number of keys rounded up to 16, also the row length of k, mask and scores.
void EagerHead(const EagerHeadTask& t) {
  const Vec by = Set1(t.scale);
  const Vec cap = Set1(t.softcap);
  for (int32_t i = 0; i < t.num_q; ++i) {
    const float* q = t.q + i * t.q_stride;
    float* s = t.scores + int64_t{i} * t.keys16;
    const float* mask = t.mask + int64_t{i} * t.keys16;
    Vec max = Set1(-__builtin_inff());
    for (int32_t j = 0; j < t.keys16; j += 16) {
      Vec dot = Zero();
      for (int32_t d0 = 0; d0 < t.head_dim; d0 += kDimChain) {
        Vec run = Zero();
        for (int32_t d = d0; d < t.head_dim && d < d0 + kDimChain; ++d) {
          run = Fma(Set1(q[d]), Load(t.k + int64_t{d} * t.keys16 + j), run);
        }
        dot = Add(dot, run);
      }
      Vec x = Mul(dot, by);
      if (t.softcap > 0.0f) x = Mul(cap, Tanh(Div(x, cap)));
      if (t.slope != 0.0f) {
        float distance[16];
        for (int32_t l = 0; l < 16; ++l) distance[l] = static_cast<float>(j + l - (t.pos + i));
        x = Fma(Set1(t.slope), Load(distance), x);
      }
      if (t.bias != nullptr) {
        const int32_t n = t.num_k - j < 16 ? t.num_k - j : 16;
        x = Add(x, LoadN(t.bias + i * t.bias_stride + j, n));
      }
      // x + mask, except that a masked NaN or infinity (another row's bad key) is dropped as well.
      const Vec add = Load(mask + j);
      x = SelectLt(add, Zero(), add, x);
      Store(x, s + j);
      max = Max(x, max);
    }
    const float m = ReduceMax(max);
    float* out = t.out + i * t.out_stride;
    for (int32_t d = 0; d < t.head_dim_v; ++d) out[d] = 0.0f;
    if (t.lse != nullptr) t.lse[i * t.lse_stride] = -__builtin_inff();
    if (m == -__builtin_inff()) {  // no visible key: zero weights
      for (int32_t j = 0; j < t.keys16; j += 16) Store(Zero(), s + j);
      continue;
    }
    Vec sums = Zero();
    for (int32_t j = 0; j < t.keys16; j += 16) {
      const Vec p = Exp(Sub(Load(s + j), Set1(m)));
      Store(p, s + j);
      sums = Add(sums, p);
    }
    const float sum = ReduceAdd(sums);
    if (t.lse != nullptr) {
      t.lse[i * t.lse_stride] = m + static_cast<float>(__builtin_log(static_cast<double>(sum)));
    }
    float denominator = sum;
    if (t.sink != nullptr) {
      // exp(sink - m) may overflow to infinity: then all weights are 0, as they should be.
      float e[16];
      Store(Exp(Set1(*t.sink - m)), e);
      denominator = sum + e[0];
    }
    for (int32_t j = 0; j < t.keys16; j += 16) Store(Div(Load(s + j), Set1(denominator)), s + j);
    for (int32_t j = 0; j < t.num_k; ++j) {
      if (mask[j] != 0.0f) continue;
      const float* v = t.v + int64_t{j} * t.head_dim_v;
      int32_t d = 0;
      for (; d + 16 <= t.head_dim_v; d += 16) {
        Store(Fma(Set1(s[j]), Load(v + d), Load(out + d)), out + d);
      }
      if (d < t.head_dim_v) {
        const int n = t.head_dim_v - d;
        StoreN(Fma(Set1(s[j]), LoadN(v + d, n), LoadN(out + d, n)), out + d, n);
      }
    }
  }
}

}  // namespace quire::kernels::QUIRE_ISA
