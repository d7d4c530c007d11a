#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "kernels/rotary.h"

namespace linattn {

// x [B,T,heads,channels] rotated by its tokens' places [T] or [B,T] int64 (kernels/rotary.h), with
// the gradient of x; float32, bfloat16, float16 or float64.
at::Tensor Rotated(const at::Tensor& x, const at::Tensor& places,
                   std::shared_ptr<const Rotary> rotary);

}  // namespace linattn
