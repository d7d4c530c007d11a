#pragma once

#include <cstdint>

#include "base/array.h"

namespace linattn {

// A step of training along the residual stream: sum = x + delta, y = LayerNorm(sum) (Ba et al.
// 2016) or RMSNorm(sum) (Zhang & Sennrich 2019), in one pass over memory each way. x, sum and their
// gradients are float32; delta, y and theirs may be F32 or BF16. Arrays are [rows,dim], contiguous.
// Statistics and sums are float32; results are the same for any thread count.
struct ResidualNorm {
  int64_t rows = 0, dim = 0;
  float eps = 1e-5f;              // added to the variance, which divides by dim
  const float* weight = nullptr;  // [dim]
  const float* bias = nullptr;    // [dim]; unused if not centred
  bool centred = true;            // false: RMSNorm, y = sum / sqrt(mean sum^2 + eps) * weight
};

struct ResidualNormTensors {
  const float* x = nullptr;
  Array delta;           // absent: sum = x, and `sum` is not written
  float* sum = nullptr;  // may be x
  Array y;
  float* statistics = nullptr;  // [rows,2]: mean and 1 / sqrt(variance + eps), for backward
};
void ResidualNormForward(const ResidualNorm& norm, const ResidualNormTensors& t);

struct ResidualNormGradients {
  const float* sum = nullptr;  // of forward (x if there was no delta)
  const float* statistics = nullptr;
  Array d_y;
  const float* d_sum = nullptr;  // the gradient that reaches `sum` from elsewhere; null: zero
  float* d_x = nullptr;          // out; may be d_sum
  Array d_delta;                 // out: d_x in the dtype of delta; may be absent
  float* d_weight = nullptr;     // [dim], out
  float* d_bias = nullptr;       // [dim], out; unused if not centred
};
void ResidualNormBackward(const ResidualNorm& norm, const ResidualNormGradients& g);

// Sums of the columns of x [rows,columns], F32 or BF16, rows may be strided: sums [columns].
void ColumnSums(const Array& x, float* sums);

}  // namespace linattn
