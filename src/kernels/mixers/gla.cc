#include "kernels/mixers/gla.h"

#include "kernels/state_mixer.h"

namespace linattn {

constinit const Mixer k_gla = StateMixer<k_gla>({
    .name = "gla",
    .summary = "a learned decay for each channel of the keys (Yang et al. 2024)",
    .decay = Decay::kPerChannel,
});

}  // namespace linattn
