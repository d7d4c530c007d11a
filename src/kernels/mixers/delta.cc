#include "kernels/mixers/delta.h"

#include "kernels/state_mixer.h"

namespace linattn {

constinit const Mixer k_delta = StateMixer<k_delta>({
    .name = "delta",
    .summary = "the delta rule: replaces instead of adding (Schlag et al. 2021, Yang et al. 2024)",
    .write = Write::kDelta,
});

}  // namespace linattn
