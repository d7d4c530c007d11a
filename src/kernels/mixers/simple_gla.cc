#include "kernels/mixers/simple_gla.h"

#include "kernels/state_mixer.h"

namespace linattn {

constinit const Mixer k_simple_gla = StateMixer<k_simple_gla>({
    .name = "simple_gla",
    .summary = "one learned decay a head and token (Mamba-2, lightning attention)",
    .decay = Decay::kScalar,
});

}  // namespace linattn
