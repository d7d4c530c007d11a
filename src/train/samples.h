#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tasks/task.h"

namespace linattn {

// Completes every prompt with the model file at `path`, in the lean runtime. Sequence i depends on
// the model, its prompt, the seed and i only.
std::vector<std::vector<int32_t>> DrawSamples(const std::string& path,
                                              const std::vector<Prompt>& prompts,
                                              double temperature, uint64_t seed);

}  // namespace linattn
