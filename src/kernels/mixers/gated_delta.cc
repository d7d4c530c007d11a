#include "kernels/mixers/gated_delta.h"

#include "kernels/state_mixer.h"

namespace linattn {

constinit const Mixer k_gated_delta = StateMixer<k_gated_delta>({
    .name = "gated_delta",
    .summary = "the delta rule with one learned decay a head and token (Yang et al. 2025)",
    .decay = Decay::kScalar,
    .write = Write::kDelta,
});

}  // namespace linattn
