#pragma once

#include <cstdint>

#include "kernels/gemm.h"

namespace linattn {

// From logits to the gates that mixers read, in place: `rows` rows of n channels, float32. NaN
// stays NaN.

// g = logsigmoid(x) / divisor, <= 0. Yang et al. 2024, "Gated Linear Attention", section 4.4.
void LogSigmoidDecay(Rows x, int64_t rows, int64_t n, double divisor);

// g = -rate softplus(x + bias), <= 0; rate = exp(A_log) and bias [n]. Yang et al. 2025, "Gated
// Delta Networks"; the form is Mamba-2's.
struct SoftplusRate {
  const float* rate = nullptr;  // [n]
  const float* bias = nullptr;  // [n]
};
void SoftplusDecay(Rows x, int64_t rows, int64_t n, const SoftplusRate& rate);

// beta = factor sigmoid(x).
void SigmoidGate(Rows x, int64_t rows, int64_t n, double factor);

}  // namespace linattn
