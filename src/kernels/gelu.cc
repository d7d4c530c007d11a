#include "kernels/gelu.h"

#include <algorithm>

#include "base/error.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/gelu.cc"
#include <hwy/foreach_target.h>
// After foreach_target.
#include <hwy/highway.h>

#include "kernels/gelu-inl.h"
#include "kernels/narrow-inl.h"

HWY_BEFORE_NAMESPACE();
namespace linattn {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class T>
HWY_INLINE void ForwardBlock(const T* x, int64_t n, T* y) {
  const FloatTag d;
  for (int64_t i = 0; i < n; i += kLanes) {
    const auto v = LoadRow(x + i, n - i);
    StoreRow(hn::Mul(v, NormalDistribution(d, v)), y + i, n - i);
  }
}

template <class T>
HWY_INLINE void BackwardBlock(const T* x, const T* d_y, int64_t n, T* d_x) {
  const FloatTag d;
  for (int64_t i = 0; i < n; i += kLanes) {
    const auto v = LoadRow(x + i, n - i);
    const auto slope = hn::IfThenElse(hn::IsNaN(v), v, GeluSlope(d, v));
    StoreRow(hn::Mul(slope, LoadRow(d_y + i, n - i)), d_x + i, n - i);
  }
}

void ForwardF32(const float* x, int64_t n, float* y) { ForwardBlock(x, n, y); }
void ForwardBF16(const BF16* x, int64_t n, BF16* y) { ForwardBlock(x, n, y); }
void BackwardF32(const float* x, const float* d_y, int64_t n, float* d_x) {
  BackwardBlock(x, d_y, n, d_x);
}
void BackwardBF16(const BF16* x, const BF16* d_y, int64_t n, BF16* d_x) {
  BackwardBlock(x, d_y, n, d_x);
}

}  // namespace HWY_NAMESPACE
}  // namespace linattn
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace linattn {
namespace {

HWY_EXPORT(ForwardF32);
HWY_EXPORT(ForwardBF16);
HWY_EXPORT(BackwardF32);
HWY_EXPORT(BackwardBF16);

constexpr int64_t kBlock = 1 << 13;  // elements a thread takes at a time

void CheckAlike(const Array& x, const Array& y) {
  Check(x.dtype == y.dtype && (x.dtype == DType::kF32 || x.dtype == DType::kBF16), "gelu",
        "arrays must be F32 or BF16 alike, but are {} and {}", NameOf(x.dtype), NameOf(y.dtype));
  Check(x.size() == y.size() && x.contiguous() && y.contiguous(), "gelu",
        "arrays must be contiguous and of one size, but are {} and {}", x.ShapeString(),
        y.ShapeString());
}

template <class T, class Run>
void Forward(Run run, const Array& x, const Array& y) {
  const int64_t n = x.size();
#pragma omp parallel for if (n > 2 * kBlock)
  for (int64_t i = 0; i < n; i += kBlock)
    run(static_cast<const T*>(x.data) + i, std::min(kBlock, n - i), static_cast<T*>(y.data) + i);
}

template <class T, class Run>
void Backward(Run run, const Array& x, const Array& d_y, const Array& d_x) {
  const int64_t n = x.size();
#pragma omp parallel for if (n > 2 * kBlock)
  for (int64_t i = 0; i < n; i += kBlock)
    run(static_cast<const T*>(x.data) + i, static_cast<const T*>(d_y.data) + i,
        std::min(kBlock, n - i), static_cast<T*>(d_x.data) + i);
}

}  // namespace

void GeluForward(const Array& x, const Array& y) {
  CheckAlike(x, y);
  if (x.dtype == DType::kF32)
    Forward<float>(HWY_DYNAMIC_DISPATCH(ForwardF32), x, y);
  else
    Forward<BF16>(HWY_DYNAMIC_DISPATCH(ForwardBF16), x, y);
}

void GeluBackward(const Array& x, const Array& d_y, const Array& d_x) {
  CheckAlike(x, d_y), CheckAlike(x, d_x);
  if (x.dtype == DType::kF32)
    Backward<float>(HWY_DYNAMIC_DISPATCH(BackwardF32), x, d_y, d_x);
  else
    Backward<BF16>(HWY_DYNAMIC_DISPATCH(BackwardBF16), x, d_y, d_x);
}

}  // namespace linattn
#endif  // HWY_ONCE
