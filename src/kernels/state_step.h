#pragma once

#include "kernels/mixer.h"

namespace linattn {

// Features of one head that a step keeps on its stack.
constexpr int64_t kStepFeatures = 8192;

// Mixer::step of the state mixers: one token of each of n sequences, (1) to (3) and (30) to (34) of
// docs/mixers.md. Never allocates; throws Error as CheckStep does, and for F above kStepFeatures.
void StateStep(const Mixer& mixer, const StepInputs& in);

}  // namespace linattn
