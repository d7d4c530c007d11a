#include "kernels/mixers/retention.h"

#include "kernels/decay_schedule.h"
#include "kernels/state_mixer.h"

namespace linattn {

constinit const Mixer k_retention = StateMixer<k_retention>({
    .name = "retention",
    .summary = "fixed decay a head (Sun et al. 2023)",
    .decay = Decay::kScalar,
    .fixed_decay = RetentionLogDecay,
});

}  // namespace linattn
