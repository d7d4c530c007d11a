#pragma once

namespace at {
class Tensor;
}

namespace linattn {

// x Phi(x), the exact GELU, in the dtype of x: float32, bfloat16 (kernels/gelu.h), or float64
// (at::gelu).
at::Tensor Gelu(const at::Tensor& x);

}  // namespace linattn
