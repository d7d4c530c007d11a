#pragma once

namespace at {
class Tensor;
}

namespace linattn {

// -log P(pixel) in nats under the discretised mixture of logistics of kernels/logistic_mixture.h.
// params [..., 3M] (one channel a position) float32, bfloat16, or float64 (the reference runs);
// pixels [...] uint8. Returns [...], float32 or float64, differentiable with respect to params.
at::Tensor LogisticMixtureLoss(const at::Tensor& params, const at::Tensor& pixels);

}  // namespace linattn
