#pragma once

#include <cstdint>
#include <vector>

namespace linattn {

// Decays that are not learned: g = log gamma_h, one a head, the same for every token.
enum class DecaySchedule {
  kRetention,  // gamma_h = 1 - 2^(-5-h); Sun et al. 2023, "Retentive Network"
  kLightning,  // log gamma_h = -(8/heads)(1 - layer/layers) h; Qin et al. 2024, "Lightning Attention-2"
};

// [heads] log decays of `layer` of `layers`. A view of them as g [B,T,heads] has strides 0, 0, 1.
std::vector<float> FixedLogDecay(DecaySchedule schedule, int64_t heads, int64_t layer,
                                 int64_t layers);

}  // namespace linattn
