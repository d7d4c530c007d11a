// Vectors of float32 from and to rows of float32, bfloat16 or float16. Included once a SIMD target,
// inside foreach_target's loop.
#if defined(LINATTN_KERNELS_NARROW_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LINATTN_KERNELS_NARROW_INL_H_
#undef LINATTN_KERNELS_NARROW_INL_H_
#else
#define LINATTN_KERNELS_NARROW_INL_H_
#endif

#include <hwy/highway.h>

#include <cstdint>

#include "base/array.h"
#include "kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace linattn {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

HWY_INLINE FloatVector LoadWide(const float* HWY_RESTRICT p) { return hn::LoadU(FloatTag(), p); }

HWY_INLINE FloatVector LoadWide(const BF16* HWY_RESTRICT p) {
  const hn::Rebind<uint16_t, FloatTag> half;
  const hn::RebindToUnsigned<FloatTag> bits;
  const auto wide = hn::PromoteTo(bits, hn::LoadU(half, &p->bits));
  return hn::BitCast(FloatTag(), hn::ShiftLeft<16>(wide));
}

HWY_INLINE FloatVector LoadWide(const F16* HWY_RESTRICT p) {
  const hn::Rebind<hwy::float16_t, FloatTag> half;
  const auto* from = reinterpret_cast<const hwy::float16_t*>(p);
  return hn::PromoteTo(FloatTag(), hn::LoadU(half, from));
}

HWY_INLINE void StoreNarrow(FloatVector v, float* HWY_RESTRICT p) { hn::StoreU(v, FloatTag(), p); }

// To nearest, ties to even; NaN stays NaN, as ToBF16.
HWY_INLINE void StoreNarrow(FloatVector v, BF16* HWY_RESTRICT p) {
  const hn::RebindToUnsigned<FloatTag> d;
  const hn::RebindToSigned<FloatTag> s;
  const hn::Rebind<uint16_t, FloatTag> half;
  const auto bits = hn::BitCast(d, v);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(d, 1u));
  const auto nearest = hn::ShiftRight<16>(hn::Add(hn::Add(bits, odd), hn::Set(d, 0x7FFFu)));
  const auto nan = hn::Or(hn::ShiftRight<16>(bits), hn::Set(d, 0x40u));
  const auto is_nan = hn::RebindMask(d, hn::IsNaN(v));
  const auto rounded = hn::IfThenElse(is_nan, nan, nearest);
  hn::StoreU(hn::DemoteTo(half, hn::BitCast(s, rounded)), half, &p->bits);
}

HWY_INLINE void StoreNarrow(FloatVector v, F16* HWY_RESTRICT p) {
  HWY_ALIGN float lanes[kLanes];
  hn::Store(v, FloatTag(), lanes);
  for (int64_t i = 0; i < kLanes; ++i) p[i] = ToF16(lanes[i]);
}

HWY_INLINE float WidenOne(float x) { return x; }
HWY_INLINE float WidenOne(BF16 x) { return ToFloat(x); }
HWY_INLINE float WidenOne(F16 x) { return ToFloat(x); }
HWY_INLINE void NarrowOne(float x, float* p) { *p = x; }
HWY_INLINE void NarrowOne(float x, BF16* p) { *p = ToBF16(x); }
HWY_INLINE void NarrowOne(float x, F16* p) { *p = ToF16(x); }

// The elements at p, of which a row has n left: kLanes of them, or n and zeros behind.
template <class T>
HWY_INLINE FloatVector LoadRow(const T* HWY_RESTRICT p, int64_t n) {
  if (n >= kLanes) return LoadWide(p);
  HWY_ALIGN float lanes[kLanes] = {};
  for (int64_t i = 0; i < n; ++i) lanes[i] = WidenOne(p[i]);
  return hn::Load(FloatTag(), lanes);
}

template <class T>
HWY_INLINE void StoreRow(FloatVector v, T* HWY_RESTRICT p, int64_t n) {
  if (n >= kLanes) return StoreNarrow(v, p);
  HWY_ALIGN float lanes[kLanes];
  hn::Store(v, FloatTag(), lanes);
  for (int64_t i = 0; i < n; ++i) NarrowOne(lanes[i], p + i);
}

}  // namespace HWY_NAMESPACE
}  // namespace linattn
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
