#include "kernels/mixers/performer.h"

#include "kernels/state_mixer.h"

namespace linattn {

constinit const Mixer k_performer = StateMixer<k_performer>({
    .name = "performer",
    .summary = "positive random features that estimate softmax (Choromanski et al. 2021)",
    .normalised = true,
    .feature_map = "favor",
    .tolerance = {.forward = 1e-5,
                  .backward = 4e-5,
                  .reason = "float32 exponents of size 10 carry 1e-6 into their exponentials"},
});

}  // namespace linattn
