#pragma once

#include <ATen/core/Tensor.h>

namespace linattn {

// sum = x + delta; y = LayerNorm(sum), or RMSNorm(sum) without a bias, over the last axis, in one
// pass each way (kernels/residual_norm.h).
struct NormResult {
  at::Tensor sum;  // dtype of x
  at::Tensor y;    // asked for
};

// x [..., dim] float32, delta alike in float32 or bfloat16 or undefined (then sum is x); weight,
// bias [dim] float32, bias may be undefined; y_type float32 or bfloat16. All float64: LibTorch's
// own operators.
NormResult AddNorm(const at::Tensor& x, const at::Tensor& delta, const at::Tensor& weight,
                   const at::Tensor& bias, double eps, at::ScalarType y_type);

}  // namespace linattn
