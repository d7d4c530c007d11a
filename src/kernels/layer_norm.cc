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
