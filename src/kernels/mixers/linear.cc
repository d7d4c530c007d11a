#include "kernels/mixers/linear.h"

#include "kernels/state_mixer.h"

namespace linattn {

constinit const Mixer k_linear = StateMixer<k_linear>({
    .name = "linear",
    .summary = "linear attention with a positive feature map (Katharopoulos et al. 2020)",
    .normalised = true,
    .feature_map = "elu1",
    .tolerance = {.forward = 5e-6,
                  .backward = 2e-5,
                  .reason = "float32 sums of positive terms over T tokens, blocked by chunk"},
});

}  // namespace linattn
