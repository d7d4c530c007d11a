// Norms of one row. Included once a SIMD target, inside foreach_target's loop.
#if defined(LINATTN_KERNELS_LAYER_NORM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LINATTN_KERNELS_LAYER_NORM_INL_H_
#undef LINATTN_KERNELS_LAYER_NORM_INL_H_
#else
#define LINATTN_KERNELS_LAYER_NORM_INL_H_
#endif

#include <hwy/highway.h>

#include <cmath>

#include "kernels/layer_norm.h"

HWY_BEFORE_NAMESPACE();
namespace linattn {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using Wide = hn::ScalableTag<float>;
using One = hn::CappedTag<float, 1>;  // what a row has beyond whole vectors

// Sum over a row of n of term(tag, i), the vector of terms that starts at i.
template <class Term>
HWY_INLINE float SumRow(int64_t n, const Term& term) {
  const int64_t N = static_cast<int64_t>(hn::Lanes(Wide()));
  auto wide = hn::Zero(Wide());
  auto rest = hn::Zero(One());
  int64_t i = 0;
  for (; i + N <= n; i += N) wide = hn::Add(wide, term(Wide(), i));
  for (; i < n; ++i) rest = hn::Add(rest, term(One(), i));
  return hn::GetLane(hn::SumOfLanes(Wide(), wide)) + hn::GetLane(rest);
}

// y = scale (x - mean) * weight + bias, given the row's sum; without mean and bias if not centred.
HWY_INLINE void NormalizeRow(const LayerNormParameters& p, const float* x, float sum, float* y) {
  const float mean = p.centred ? sum / static_cast<float>(p.dim) : 0.0f;
  const float squares = SumRow(p.dim, [&](auto d, int64_t i) HWY_ATTR {
    const auto c = hn::Sub(hn::LoadU(d, x + i), hn::Set(d, mean));
    return hn::Mul(c, c);
  });
  const float scale = 1.0f / std::sqrt(squares / static_cast<float>(p.dim) + p.eps);
  const auto write = [&](auto d, int64_t i) HWY_ATTR {
    const auto c = hn::Mul(hn::Sub(hn::LoadU(d, x + i), hn::Set(d, mean)), hn::Set(d, scale));
    const auto bias = p.centred ? hn::LoadU(d, p.bias + i) : hn::Zero(d);
    hn::StoreU(hn::MulAdd(c, hn::LoadU(d, p.weight + i), bias), d, y + i);
  };
  const int64_t N = static_cast<int64_t>(hn::Lanes(Wide()));
  int64_t i = 0;
  for (; i + N <= p.dim; i += N) write(Wide(), i);
  for (; i < p.dim; ++i) write(One(), i);
}

HWY_INLINE float SumRow(const float* x, int64_t n) {
  return SumRow(n, [&](auto d, int64_t i) HWY_ATTR { return hn::LoadU(d, x + i); });
}

}  // namespace HWY_NAMESPACE
}  // namespace linattn
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
