#include "kernels/mixers/kda.h"

#include "kernels/state_mixer.h"

namespace linattn {

constinit const Mixer k_kda = StateMixer<k_kda>({
    .name = "kda",
    .summary = "the delta rule with a learned decay for each channel (Kimi Team 2025)",
    .decay = Decay::kPerChannel,
    .write = Write::kDelta,
});

}  // namespace linattn
