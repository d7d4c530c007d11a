#pragma once

namespace at {
class Tensor;
}

namespace linattn {

// y = x W^T + b with gradients for x, weight and bias. x [..., in], weight [out, in], bias [out] or
// undefined. float32 x: oneDNN in float32. bfloat16 x: the float32 weight is rounded to bfloat16,
// sums are float32, y is bfloat16 and the gradients of weight and bias are float32. float64 (all
// three): at::linear. Why not at::linear: Debian's LibTorch runs float32 through a generic BLAS, at
// 10-40% of the machine's speed.
at::Tensor Linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias);

}  // namespace linattn
