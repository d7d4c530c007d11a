#pragma once

#include "model/config.h"

namespace at {
class Tensor;
}

namespace linattn {

// Negative log likelihood of each target in nats, [B,T] float32 (float64 if the outputs are).
// outputs [B,T,outputs] of Transformer::Forward; targets [B,T] int64 symbols in [0, vocab), or -1
// where there is nothing to predict: those have loss and gradient 0. Mean it over the targets >= 0;
// bits/dim is that / ln 2.
at::Tensor TokenLoss(const ModelConfig& config, const at::Tensor& outputs,
                     const at::Tensor& targets);

}  // namespace linattn
