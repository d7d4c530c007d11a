#pragma once

namespace at {
class Tensor;
}

namespace linattn {

// silu(a) b, [..., m], from x = [a, b] [..., 2m] (kernels/swiglu.h), in the dtype of x: float32,
// bfloat16, or float64 (LibTorch's operators).
at::Tensor SwiGlu(const at::Tensor& x);

}  // namespace linattn
