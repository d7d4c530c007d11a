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

// A sum of `count` arrays [rows,dim], each `stride` floats after the one before it.
struct Terms {
  const float* data = nullptr;
  int64_t count = 0, stride = 0;
};

// y = (x - mean) / sqrt(variance + eps) * weight + bias for each row of x [rows,dim] (Ba et al.
// 2016; the variance divides by dim). y [rows,dim] may be x. Mean first, then the variance about
// it, in float32: within 1e-6 of float64, relative to max|y|, unless |mean| is far above the
// deviation. Rows are contiguous.
void LayerNorm(const LayerNormParameters& norm, const float* x, int64_t rows, float* y);

// x += sum of terms, then y = LayerNorm(x), in one pass over memory. x, y: [rows,dim]; y may be x
// (post-norm) or one of the terms.
void AddLayerNorm(const LayerNormParameters& norm, const Terms& terms, int64_t rows, float* x,
                  float* y);

// x += sum of terms, on n floats.
void AddTerms(const Terms& terms, int64_t n, float* x);

}  // namespace linattn
