#pragma once

#include <cstdint>

namespace linattn {

// The learned vectors [dim] of a norm, owned by somebody else.
struct LayerNormParameters {
  const float* weight = nullptr;  // [dim]
  const float* bias = nullptr;    // [dim]; unused if not centred
  int64_t dim = 0;
  float eps = 1e-5f;    // added to the variance
  bool centred = true;  // false: RMSNorm, x / sqrt(mean x^2 + eps) * weight (Zhang & Sennrich 2019)
};

// y = (x - mean) / sqrt(variance + eps) * weight + bias for each row of x [rows,dim] (Ba et al.
// 2016; the variance divides by dim). y [rows,dim] may be x. Mean first, then the variance about
// it, in float32: within 1e-6 of float64, relative to max|y|, unless |mean| is far above the
// deviation. Rows are contiguous.
void LayerNorm(const LayerNormParameters& norm, const float* x, int64_t rows, float* y);

// x += delta, then y = LayerNorm(x), in one pass over memory. x, delta, y: [rows,dim]; y may be x
// (post-norm) or delta.
void AddLayerNorm(const LayerNormParameters& norm, const float* delta, int64_t rows, float* x,
                  float* y);

}  // namespace linattn
