// One dense row: sums, maxima, multiples. Included once a SIMD target, inside foreach_target's
// loop.
#if defined(LINATTN_KERNELS_ROW_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LINATTN_KERNELS_ROW_INL_H_
#undef LINATTN_KERNELS_ROW_INL_H_
#else
#define LINATTN_KERNELS_ROW_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>

#include "kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace linattn {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Sum of term(load, i), the terms of elements [i, i + kLanes); it must give 0 for loaded zeros.
template <class Term>
HWY_INLINE float SumOf(int64_t n, const Term& term) {
  FloatVector sum = hn::Zero(FloatTag());
  ForEachVector(n, [&](auto load, auto, int64_t i) HWY_ATTR { sum = hn::Add(sum, term(load, i)); });
  return hn::GetLane(hn::SumOfLanes(FloatTag(), sum));
}

HWY_INLINE float Dot(const float* x, const float* y, int64_t n) {
  return SumOf(n, [=](auto load, int64_t i) HWY_ATTR { return hn::Mul(load(x + i), load(y + i)); });
}

// max(sign x); a NaN among x may be dropped.
HWY_INLINE float MaxOf(float sign, const float* x, int64_t n) {
  const FloatTag d;
  float top = sign * x[0];
  int64_t i = 0;
  if (n >= kLanes) {
    FloatVector tops = hn::Mul(hn::Set(d, sign), hn::LoadU(d, x));
    for (i = kLanes; i + kLanes <= n; i += kLanes)
      tops = hn::Max(tops, hn::Mul(hn::Set(d, sign), hn::LoadU(d, x + i)));
    top = hn::GetLane(hn::MaxOfLanes(d, tops));
  }
  for (; i < n; ++i) top = std::max(top, sign * x[i]);
  return top;
}

// y = factor x; y may be x.
HWY_INLINE void ScaleInto(float factor, const float* x, int64_t n, float* y) {
  ForEachVector(n, [=](auto load, auto store, int64_t i) HWY_ATTR {
    store(hn::Mul(load(x + i), hn::Set(FloatTag(), factor)), y + i);
  });
}

HWY_INLINE void Scale(float factor, float* x, int64_t n) { ScaleInto(factor, x, n, x); }

// y += factor x.
HWY_INLINE void AddScaled(float factor, const float* x, int64_t n, float* y) {
  ForEachVector(n, [=](auto load, auto store, int64_t i) HWY_ATTR {
    store(hn::MulAdd(hn::Set(FloatTag(), factor), load(x + i), load(y + i)), y + i);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace linattn
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
