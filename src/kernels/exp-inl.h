// Included once a SIMD target, inside foreach_target's loop.
#if defined(LINATTN_KERNELS_EXP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LINATTN_KERNELS_EXP_INL_H_
#undef LINATTN_KERNELS_EXP_INL_H_
#else
#define LINATTN_KERNELS_EXP_INL_H_
#endif

#include <hwy/highway.h>
// clang-format off
#include <hwy/contrib/math/math-inl.h>  // needs highway.h before it
// clang-format on

#include "kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace linattn {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// exp(x) for x <= 104, within 1 ulp, 0 below -104. NaN stays NaN; hn::Exp alone would make it 0,
// and a diverged model would look sound.
HWY_INLINE FloatVector ExpOrNaN(FloatVector x) {
  const FloatTag d;
#if HWY_TARGET <= HWY_AVX3
  // exp(x) = 2^n exp(r), |r| <= log(2)/2, where 1 + r + r^2 (c2 + ... + c6 r^4) is within 3e-9 of
  // exp(r) (a minimax fit, Remez). AVX-512 rounds and scales in one instruction each: 12 in all,
  // where hn::Exp has 22.
  x = hn::Vec<FloatTag>{_mm512_max_ps(_mm512_set1_ps(-104.0f), x.raw)};  // of NaN, NaN
  const FloatVector n{_mm512_roundscale_ps(_mm512_mul_ps(x.raw, _mm512_set1_ps(1.44269504f)), 0)};
  const FloatVector r =
      hn::NegMulAdd(n, hn::Set(d, -2.12194440e-4f), hn::NegMulAdd(n, hn::Set(d, 0.693359375f), x));
  FloatVector p = hn::Set(d, 0.00138145401f);
  for (const float c : {0.00836874511f, 0.0416683908f, 0.166665204f, 0.499999934f, 1.0f, 1.0f})
    p = hn::MulAdd(p, r, hn::Set(d, c));
  return FloatVector{_mm512_scalef_ps(p.raw, n.raw)};
#else
  return hn::IfThenElse(hn::IsNaN(x), x, hn::Exp(d, x));
#endif
}

}  // namespace HWY_NAMESPACE
}  // namespace linattn
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
