// The normal distribution function, for GELU. Included once a SIMD target, inside foreach_target's
// loop.
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

// Phi(x) = 1/2 + x P(x^2) / Q(x^2) on |x| <= 5.6; beyond, Phi is 0 or 1 to float precision. A
// rational minimax fit (reweighted least squares in float64) whose own error is 1e-8; float32
// rounding adds the rest. What comes back for NaN is not NaN.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V NormalDistribution(D d, V x) {
  constexpr float kP[] = {0.39894222155732295f,    0.0343760599077388f,    0.00470725662898357f,
                          0.00017385029824023508f, 6.356532613304072e-06f, 2.2145370743890145e-08f};
  constexpr float kQ[] = {1.0f,
                          0.2528337167624076f,
                          0.028940061071181813f,
                          0.001912975607500716f,
                          7.510180719682918e-05f,
                          1.1802137580065525e-06f};
  constexpr float kRange = 5.6f;
  const auto c = hn::Clamp(x, hn::Set(d, -kRange), hn::Set(d, kRange));
  const auto z = hn::Mul(c, c);
  auto p = hn::Set(d, kP[5]);
  auto q = hn::Set(d, kQ[5]);
  for (int k = 4; k >= 0; --k) {
    p = hn::MulAdd(p, z, hn::Set(d, kP[k]));
    q = hn::MulAdd(q, z, hn::Set(d, kQ[k]));
  }
  return hn::MulAdd(c, hn::Div(p, q), hn::Set(d, 0.5f));
}

}  // namespace HWY_NAMESPACE
}  // namespace linattn
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
