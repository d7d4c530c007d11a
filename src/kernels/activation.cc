#include "kernels/activation.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/activation.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/gelu-inl.h"

HWY_BEFORE_NAMESPACE();
namespace linattn {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Calls body(tag, i) for every vector of n floats, then for each float that is left.
template <class Body>
HWY_INLINE void ForEachVector(int64_t n, const Body& body) {
  const hn::ScalableTag<float> wide;
  const hn::CappedTag<float, 1> one;
  const int64_t N = static_cast<int64_t>(hn::Lanes(wide));
  int64_t i = 0;
  for (; i + N <= n; i += N) body(wide, i);
  for (; i < n; ++i) body(one, i);
}

void GeluBlock(const float* x, int64_t n, float* y) {
  ForEachVector(n, [&](auto d, int64_t i) HWY_ATTR {
    const auto v = hn::LoadU(d, x + i);
    const auto phi = NormalDistribution(d, v);
    hn::StoreU(hn::Mul(v, phi), d, y + i);  // NaN * anything is NaN, whatever Clamp made of it
  });
}

void ReluBlock(const float* x, int64_t n, float* y) {
  ForEachVector(n, [&](auto d, int64_t i) HWY_ATTR {
    const auto v = hn::LoadU(d, x + i);
    hn::StoreU(hn::IfThenZeroElse(hn::Lt(v, hn::Zero(d)), v), d, y + i);  // Max would drop NaN
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace linattn
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace linattn {
namespace {

HWY_EXPORT(GeluBlock);
HWY_EXPORT(ReluBlock);

}  // namespace

void Gelu(const float* x, int64_t n, float* y) { HWY_DYNAMIC_DISPATCH(GeluBlock)(x, n, y); }
void Relu(const float* x, int64_t n, float* y) { HWY_DYNAMIC_DISPATCH(ReluBlock)(x, n, y); }

}  // namespace linattn
#endif  // HWY_ONCE
