#include "kernels/layer_norm.h"

#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/layer_norm.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

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

// y = scale (x - mean) * weight + bias, given the row's sum.
HWY_INLINE void NormalizeRow(const LayerNormParameters& p, const float* x, float sum, float* y) {
  const float mean = sum / static_cast<float>(p.dim);
  const float squares = SumRow(p.dim, [&](auto d, int64_t i) HWY_ATTR {
    const auto c = hn::Sub(hn::LoadU(d, x + i), hn::Set(d, mean));
    return hn::Mul(c, c);
  });
  const float scale = 1.0f / std::sqrt(squares / static_cast<float>(p.dim) + p.eps);
  const auto write = [&](auto d, int64_t i) HWY_ATTR {
    const auto c = hn::Mul(hn::Sub(hn::LoadU(d, x + i), hn::Set(d, mean)), hn::Set(d, scale));
    hn::StoreU(hn::MulAdd(c, hn::LoadU(d, p.weight + i), hn::LoadU(d, p.bias + i)), d, y + i);
  };
  const int64_t N = static_cast<int64_t>(hn::Lanes(Wide()));
  int64_t i = 0;
  for (; i + N <= p.dim; i += N) write(Wide(), i);
  for (; i < p.dim; ++i) write(One(), i);
}

void NormRow(const LayerNormParameters& p, const float* x, float* y) {
  const float sum = SumRow(p.dim, [&](auto d, int64_t i) HWY_ATTR { return hn::LoadU(d, x + i); });
  NormalizeRow(p, x, sum, y);
}

void AddNormRow(const LayerNormParameters& p, const float* delta, float* x, float* y) {
  const float sum = SumRow(p.dim, [&](auto d, int64_t i) HWY_ATTR {
    const auto v = hn::Add(hn::LoadU(d, x + i), hn::LoadU(d, delta + i));
    hn::StoreU(v, d, x + i);
    return v;
  });
  NormalizeRow(p, x, sum, y);
}

}  // namespace HWY_NAMESPACE
}  // namespace linattn
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace linattn {
namespace {

HWY_EXPORT(NormRow);
HWY_EXPORT(AddNormRow);

constexpr int64_t kParallelFloats = 1 << 15;  // below, waking threads costs more than the work

}  // namespace

void LayerNorm(const LayerNormParameters& norm, const float* x, int64_t rows, float* y) {
  const auto run = &HWY_DYNAMIC_DISPATCH(NormRow);
#pragma omp parallel for if (rows * norm.dim > kParallelFloats)
  for (int64_t r = 0; r < rows; ++r) run(norm, x + r * norm.dim, y + r * norm.dim);
}

void AddLayerNorm(const LayerNormParameters& norm, const float* delta, int64_t rows, float* x,
                  float* y) {
  const auto run = &HWY_DYNAMIC_DISPATCH(AddNormRow);
#pragma omp parallel for if (rows * norm.dim > kParallelFloats)
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t at = r * norm.dim;
    run(norm, delta + at, x + at, y + at);
  }
}

}  // namespace linattn
#endif  // HWY_ONCE
