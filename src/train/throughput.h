#pragma once

#include <string>

#include "model/config.h"

namespace linattn {

// Multiplications and additions of one token of a training step: 6 for every number of a weight
// matrix (2 forward, 4 backward), and 3.5 times what each layer's mixer does forward (its backward
// pass counts as 2.5). T: tokens a sequence.
double TrainingFlopsPerToken(const ModelConfig& config, int64_t T);

// GFLOP/s of multiply-adds on registers alone with all OpenMP threads, dtype "f32" or "bf16": what
// training's speed is held against. Measured now; takes up to 0.6 s.
double PeakGflops(const std::string& dtype);

}  // namespace linattn
