#pragma once

#include "kernels/mixer.h"

// Decoding with `lsh`, the functions of its descriptor (kernels/mixer.h). A step reads of each
// round the tokens that it sees, along the chain of its bucket.
namespace linattn {

int64_t LshStateFloats(const MixerDims& dims, const MixerOptions& options, int64_t capacity);
void LshStep(const StepInputs& in);
void LshPrefill(const MixerInputs& in, const Array& o, float* state, int64_t length,
                int64_t capacity);

}  // namespace linattn
