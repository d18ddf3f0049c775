// kernels/cpu/vec_math-inl.h -- exp and tanh on 16 lanes; the same bits in each ISA and in ExpF32.
//
// exp: x = n ln2 + r with |r| <= ln2 / 2, then 1 + r + r^2 q(r) with q of degree 4 and 2^n by
// exponent arithmetic. Coefficients: our own minimax fits (truncation errors 3e-9 and 4e-9).
// Included once per ISA by foreach_isa-inl.h, no include guard.

namespace quire::kernels::QUIRE_ISA {

// Below -87 the result is 0: denormals would cost a microcode assist each and change no softmax.
inline Vec Exp(Vec x) {
  const Vec magic = Set1(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  const Vec t = Fma(x, Set1(1.44269504f), magic);
  const Vec n = Sub(t, magic);
  Vec r = Fma(n, Set1(-0.693145752f), x);  // ln2, its upper 15 bits: the product is exact
  r = Fma(n, Set1(-1.42860677e-6f), r);    // and the rest
  Vec q = Set1(0.00139506022f);
  q = Fma(q, r, Set1(0.00836895313f));
  q = Fma(q, r, Set1(0.041666206f));
  q = Fma(q, r, Set1(0.166665182f));
  q = Fma(q, r, Set1(0.5f));
  const Vec p = Add(Fma(q, Mul(r, r), r), Set1(1.0f));
  const Vec y = AddExponent(p, t);
  // Max gives its second argument if either is NaN: NaN stays NaN.
  const Vec bounded = SelectLt(x, Set1(88.72283f), y, Max(Set1(__builtin_inff()), x));
  return SelectLt(x, Set1(-87.0f), Zero(), bounded);
}

// Relative error below 3e-7, also near 0, where 1 - 2 / (1 + exp(2x)) would cancel.
inline Vec Tanh(Vec x) {
  const Vec a = Abs(x);
  const Vec z = Mul(x, x);
  Vec q = Set1(-0.0057170447f);
  q = Fma(q, z, Set1(0.0206505861f));
  q = Fma(q, z, Set1(-0.0537434965f));
  q = Fma(q, z, Set1(0.133314908f));
  q = Fma(q, z, Set1(-0.333332837f));
  const Vec small = Fma(Mul(q, z), x, x);
  const Vec e = Exp(Add(a, a));  // inf for large x gives exactly 1
  const Vec large = Sub(Set1(1.0f), Div(Set1(2.0f), Add(e, Set1(1.0f))));
  return SelectLt(a, Set1(0.625f), small, CopySign(large, x));
}

}  // namespace quire::kernels::QUIRE_ISA
