// The normal distribution function and the slope of GELU. Included once a SIMD target, inside
// foreach_target's loop.
#if defined(LINATTN_KERNELS_GELU_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LINATTN_KERNELS_GELU_INL_H_
#undef LINATTN_KERNELS_GELU_INL_H_
#else
#define LINATTN_KERNELS_GELU_INL_H_
#endif

#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace linattn {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// 1/2 + x P(x^2) / Q(x^2) on |x| <= kRange, which is 0 or 1 beyond, with P of n and Q of m numbers.
template <size_t n, size_t m>
struct OddRational {
  float range, P[n], Q[m];
};

template <size_t n, size_t m, class D, class V = hn::Vec<D>>
HWY_INLINE V AboutOneHalf(D d, const OddRational<n, m>& r, V x) {
  const auto c = hn::Clamp(x, hn::Set(d, -r.range), hn::Set(d, r.range));
  const auto z = hn::Mul(c, c);
  auto p = hn::Set(d, r.P[n - 1]);
  auto q = hn::Set(d, r.Q[m - 1]);
  for (size_t k = n - 1; k-- > 0;) p = hn::MulAdd(p, z, hn::Set(d, r.P[k]));
  for (size_t k = m - 1; k-- > 0;) q = hn::MulAdd(q, z, hn::Set(d, r.Q[k]));
  return hn::MulAdd(c, hn::Div(p, q), hn::Set(d, 0.5f));
}

// Both are minimax fits (reweighted least squares in more than float64); float32 rounding adds the
// rest. What comes back for NaN is not NaN.

// Phi(x), to 1e-8.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V NormalDistribution(D d, V x) {
  constexpr OddRational<6, 6> kPhi = {
      5.6f,
      {0.39894222155732295f, 0.0343760599077388f, 0.00470725662898357f, 0.00017385029824023508f,
       6.356532613304072e-06f, 2.2145370743890145e-08f},
      {1.0f, 0.2528337167624076f, 0.028940061071181813f, 0.001912975607500716f,
       7.510180719682918e-05f, 1.1802137580065525e-06f}};
  return AboutOneHalf(d, kPhi, x);
}

// The slope of GELU, Phi(x) + x exp(-x^2/2) / sqrt(2 pi), to 4e-9; 3.5e-8 beyond the range.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V GeluSlope(D d, V x) {
  constexpr OddRational<7, 8> kSlope = {
      6.0f,
      {0.7978845238685608f, -0.022489899769425392f, 0.013861930929124355f, 0.00020053489424753934f,
       3.4092798159690574e-05f, 9.1615999053829e-07f, 1.6973034533407372e-08f},
      {1.0f, 0.30514606833457947f, 0.044089727103710175f, 0.003965349867939949f,
       0.00024475116515532136f, 1.0280410606355872e-05f, 3.369328283042705e-07f,
       1.3107925855848634e-09f}};
  return AboutOneHalf(d, kSlope, x);
}

}  // namespace HWY_NAMESPACE
}  // namespace linattn
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
