#pragma once

namespace at {
class Tensor;
}

namespace linattn {

// A short causal convolution along T, one filter a channel, then silu (kernels/short_conv.h), with
// gradients for both. x [B,T,C], channels contiguous, float32 or bfloat16; weight [W,C] float32,
// the last tap the current token's. y [B,T,C] in the dtype of x. All float64: LibTorch's operators.
at::Tensor ShortConvolution(const at::Tensor& x, const at::Tensor& weight);

}  // namespace linattn
