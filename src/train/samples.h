#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace linattn {

// Draws one sequence of max_len symbols a label from the model file at `path`, in the lean runtime.
// Sequence i depends on the model, its label, the seed and i only.
std::vector<std::vector<int32_t>> DrawSamples(const std::string& path,
                                              const std::vector<int64_t>& labels,
                                              double temperature, uint64_t seed);

}  // namespace linattn
