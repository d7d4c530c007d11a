#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/full_pass.h"

namespace linattn {

// Negative log likelihood in nats, in float64, of each of B sequences of symbols [B,T], given
// labels [B] (classes of a conditional model; else ignored, may be empty). Divide by T for nats a
// token, by T ln 2 for bits/dim. The model must be causal. Throws Error if an id or label is out of
// range or an output is not finite.
std::vector<double> ScoreSequences(FullPass& pass, std::span<const int32_t> symbols,
                                   std::span<const int64_t> labels, int64_t B);

}  // namespace linattn
