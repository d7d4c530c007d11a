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
  return hn::IfThenElse(hn::IsNaN(x), x, hn::Exp(FloatTag(), x));
}

}  // namespace HWY_NAMESPACE
}  // namespace linattn
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
