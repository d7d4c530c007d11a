#pragma once

#include "lab/lab.h"
#include "train/linearize.h"

namespace linattn {

// RunSwap with a budget and examples of the caller's: lab's model, data and ways to be stopped, the
// rest of `options`.
LabResult Swap(const LabOptions& lab, LinearizeOptions options);

}  // namespace linattn
