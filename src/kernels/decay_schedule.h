#pragma once

#include <cstdint>
#include <vector>

#include "kernels/mixer.h"

namespace linattn {

// Decays that are not learned: log gamma, one a value head, the same for every token.

// gamma = 1 - 2^(-5-head). Sun et al. 2023, "Retentive Network".
double RetentionLogDecay(int64_t head, int64_t heads);
// log gamma = -(8/heads)(1 - layer/layers) head. Qin et al. 2024, "Lightning Attention-2".
double LightningLogDecay(int64_t head, int64_t heads, int64_t layer, int64_t layers);

// Whose decays a layer takes: its mixer's own (Mixer::fixed_decay), or lightning attention's.
enum class DecaySchedule { kOwn, kLightning };

// [heads] log decays of `layer` of `layers`. A view of them as g [B,T,heads] has strides 0, 0, 1.
std::vector<float> FixedLogDecay(const Mixer& mixer, DecaySchedule schedule, int64_t heads,
                                 int64_t layer, int64_t layers);

}  // namespace linattn
