// Vectors at the ragged end of a row. Included once a SIMD target, inside foreach_target's loop.
#if defined(LINATTN_KERNELS_VECTOR_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LINATTN_KERNELS_VECTOR_INL_H_
#undef LINATTN_KERNELS_VECTOR_INL_H_
#else
#define LINATTN_KERNELS_VECTOR_INL_H_
#endif

#include <hwy/highway.h>

#include <cstdint>
#include <cstring>

HWY_BEFORE_NAMESPACE();
namespace linattn {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using FloatTag = hn::ScalableTag<float>;
using FloatVector = hn::Vec<FloatTag>;
constexpr int64_t kLanes = static_cast<int64_t>(hn::MaxLanes(FloatTag()));

// The first n < kLanes floats at p, zeros behind them; touches nothing beyond.
HWY_INLINE FloatVector LoadPartial(const float* HWY_RESTRICT p, int64_t n) {
  const FloatTag d;
#if HWY_TARGET <= HWY_AVX2
  return hn::MaskedLoad(hn::FirstN(d, static_cast<size_t>(n)), d, p);
#else
  HWY_ALIGN float lanes[kLanes] = {};
  for (int64_t i = 0; i < n; ++i) lanes[i] = p[i];
  return hn::Load(d, lanes);
#endif
}

HWY_INLINE void StorePartial(FloatVector v, float* HWY_RESTRICT p, int64_t n) {
  const FloatTag d;
#if HWY_TARGET <= HWY_AVX2
  hn::BlendedStore(v, hn::FirstN(d, static_cast<size_t>(n)), d, p);
#else
  HWY_ALIGN float lanes[kLanes];
  hn::Store(v, d, lanes);
  for (int64_t i = 0; i < n; ++i) p[i] = lanes[i];
#endif
}

// max(x, 0); NaN stays NaN, which Max would drop.
HWY_INLINE FloatVector Positive(FloatVector x) {
  return hn::IfThenZeroElse(hn::Lt(x, hn::Zero(FloatTag())), x);
}

// body(load, store, i): `load(p)` and `store(v, p)` move the lanes of elements [i, i + kLanes) that
// are < n.
template <class Body>
HWY_INLINE void ForEachVector(int64_t n, const Body& body) {
  const FloatTag d;
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    body([d](const float* p) HWY_ATTR { return hn::LoadU(d, p); },
         [d](FloatVector v, float* p) HWY_ATTR { hn::StoreU(v, d, p); }, i);
  if (i == n) return;
  body([n, i](const float* p) HWY_ATTR { return LoadPartial(p, n - i); },
       [n, i](FloatVector v, float* p) HWY_ATTR { StorePartial(v, p, n - i); }, i);
}

}  // namespace HWY_NAMESPACE
}  // namespace linattn
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
