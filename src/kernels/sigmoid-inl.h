// The logistic function and its relatives. Included once a SIMD target, inside foreach_target's
// loop.
#if defined(LINATTN_KERNELS_SIGMOID_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LINATTN_KERNELS_SIGMOID_INL_H_
#undef LINATTN_KERNELS_SIGMOID_INL_H_
#else
#define LINATTN_KERNELS_SIGMOID_INL_H_
#endif

#include <hwy/highway.h>

#include "kernels/exp-inl.h"

HWY_BEFORE_NAMESPACE();
namespace linattn {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// 1 / (1 + exp(-x)); NaN stays NaN. Beyond |x| = 87 it is what float makes of it there, 1e-38 or 1.
HWY_INLINE FloatVector Sigmoid(FloatVector x) {
  const FloatTag d;
  const auto minus = hn::Neg(x), most = hn::Set(d, 87.0f);
  const auto bounded = hn::IfThenElse(hn::Gt(minus, most), most, minus);  // Min would drop NaN
  return hn::Div(hn::Set(d, 1.0f), hn::Add(hn::Set(d, 1.0f), ExpOrNaN(bounded)));
}

HWY_INLINE FloatVector Silu(FloatVector x) { return hn::Mul(x, Sigmoid(x)); }

// d silu / dx, given s = Sigmoid(x).
HWY_INLINE FloatVector SiluDerivative(FloatVector x, FloatVector s) {
  const auto one = hn::Set(FloatTag(), 1.0f);
  return hn::Mul(s, hn::MulAdd(x, hn::Sub(one, s), one));
}

// log(1 + exp(x)) = max(x, 0) + log1p(exp(-|x|)), which neither overflows nor cancels. NaN stays.
HWY_INLINE FloatVector Softplus(FloatVector x) {
  const FloatTag d;
  const auto small = hn::Log1p(d, hn::Exp(d, hn::Neg(hn::Abs(x))));
  const auto y = hn::Add(hn::Max(x, hn::Zero(d)), small);
  return hn::IfThenElse(hn::IsNaN(x), x, y);
}

}  // namespace HWY_NAMESPACE
}  // namespace linattn
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
