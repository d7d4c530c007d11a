#pragma once

#include <string_view>

#include "kernels/mixer.h"

namespace linattn {

// Refuses a gate above 0 at any token of `sequences` with an Error that names the gate, its place,
// its value and the convention: g is the natural logarithm of the decay. NaN passes, so that it
// shows in the output. g [B,T,HV] or [B,T,HV,F] of any float dtype, or absent.
void CheckLogDecay(std::string_view mixer, const Array& g, const Sequences& sequences);
// The same for a step's g [n,HV] or [n,HV,F] of F32.
void CheckStepLogDecay(std::string_view mixer, const Array& g);

}  // namespace linattn
