#include "kernels/decay_schedule.h"

#include <cmath>

namespace linattn {

std::vector<float> FixedLogDecay(DecaySchedule schedule, int64_t heads, int64_t layer,
                                 int64_t layers) {
  std::vector<float> g(heads);
  for (int64_t h = 0; h < heads; ++h) {
    const double head = static_cast<double>(h);
    const double depth = static_cast<double>(layer) / static_cast<double>(layers);
    g[h] = static_cast<float>(schedule == DecaySchedule::kRetention
                                  ? std::log1p(-std::exp2(-5 - head))
                                  : -8 / static_cast<double>(heads) * (1 - depth) * head);
  }
  return g;
}

}  // namespace linattn
