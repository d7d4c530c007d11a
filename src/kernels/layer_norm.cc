#include "kernels/layer_norm.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/layer_norm.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/layer_norm-inl.h"

HWY_BEFORE_NAMESPACE();
namespace linattn {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

void NormRow(const LayerNormParameters& p, const float* x, float* y) {
  NormalizeRow(p, x, p.centred ? SumRow(x, p.dim) : 0.0f, y);
}

// x += sum of terms at [i, i + lanes of d); what comes back is the new x.
template <class D>
HWY_INLINE hn::Vec<D> AddVector(D d, const Terms& terms, int64_t i, float* x) {
  auto sum = hn::LoadU(d, terms.data + i);
  for (int64_t t = 1; t < terms.count; ++t)
    sum = hn::Add(sum, hn::LoadU(d, terms.data + t * terms.stride + i));
  sum = hn::Add(hn::LoadU(d, x + i), sum);
  hn::StoreU(sum, d, x + i);
  return sum;
}

void AddNormRow(const LayerNormParameters& p, const Terms& terms, float* x, float* y) {
  const float sum =
      SumRow(p.dim, [&](auto d, int64_t i) HWY_ATTR { return AddVector(d, terms, i, x); });
  NormalizeRow(p, x, sum, y);
}

void AddRow(const Terms& terms, int64_t n, float* x) {
  const int64_t N = static_cast<int64_t>(hn::Lanes(Wide()));
  int64_t i = 0;
  for (; i + N <= n; i += N) AddVector(Wide(), terms, i, x);
  for (; i < n; ++i) AddVector(One(), terms, i, x);
}

}  // namespace HWY_NAMESPACE
}  // namespace linattn
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace linattn {
namespace {

HWY_EXPORT(NormRow);
HWY_EXPORT(AddNormRow);
HWY_EXPORT(AddRow);

}  // namespace

void LayerNorm(const LayerNormParameters& norm, const float* x, int64_t rows, float* y) {
  const auto run = HWY_DYNAMIC_DISPATCH(NormRow);
  for (int64_t r = 0; r < rows; ++r) run(norm, x + r * norm.dim, y + r * norm.dim);
}

void AddLayerNorm(const LayerNormParameters& norm, const Terms& terms, int64_t rows, float* x,
                  float* y) {
  const auto run = HWY_DYNAMIC_DISPATCH(AddNormRow);
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t at = r * norm.dim;
    run(norm, {terms.data + at, terms.count, terms.stride}, x + at, y + at);
  }
}

void AddTerms(const Terms& terms, int64_t n, float* x) {
  HWY_DYNAMIC_DISPATCH(AddRow)(terms, n, x);
}

}  // namespace linattn
#endif  // HWY_ONCE
