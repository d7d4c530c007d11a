#include "kernels/decay_schedule.h"

#include <cmath>

#include "base/error.h"

namespace linattn {

double RetentionLogDecay(int64_t head, int64_t) {
  return std::log1p(-std::exp2(-5 - static_cast<double>(head)));
}

double LightningLogDecay(int64_t head, int64_t heads, int64_t layer, int64_t layers) {
  const double depth = static_cast<double>(layer) / static_cast<double>(layers);
  return -8 / static_cast<double>(heads) * (1 - depth) * static_cast<double>(head);
}

std::vector<float> FixedLogDecay(const Mixer& mixer, DecaySchedule schedule, int64_t heads,
                                 int64_t layer, int64_t layers) {
  Check(mixer.fixed_decay != nullptr, mixer.name,
        "the mixer must have fixed decays, but its decays are learned or none");
  std::vector<float> g(heads);
  for (int64_t h = 0; h < heads; ++h)
    g[h] = static_cast<float>(schedule == DecaySchedule::kLightning
                                  ? LightningLogDecay(h, heads, layer, layers)
                                  : mixer.fixed_decay(h, heads));
  return g;
}

}  // namespace linattn
