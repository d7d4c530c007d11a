#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace at {
class Tensor;
}

namespace linattn {

// CTC's loss of each utterance in nats, [B] float64, with its gradient by the logits [B,T,C]
// float32 or float64 (kernels/ctc.h says what they are beyond the lengths and where no alignment
// exists). Why not at::ctc_loss: it takes log-probabilities, and what it gives back as their
// gradient is that of the logits; read as what it says it is, it is wrong (finite differences
// disagree).
at::Tensor CtcLossOp(const at::Tensor& logits, std::span<const int64_t> lengths,
                     std::span<const std::vector<int32_t>> labels, int64_t blank);

}  // namespace linattn
