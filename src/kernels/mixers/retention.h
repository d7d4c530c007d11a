#pragma once

#include "kernels/mixer.h"

// retention: linear attention whose memory fades at a fixed rate, another one for each head.
//
//     S_t = gamma_h S_{t-1} + k_t v_t^T
//     o_t = scale S_t^T q_t
//     scale = K^-1/2
//
// The caller owes g [B,T,HV] = log gamma_h, which is not learned: FixedLogDecay of
// kernels/decay_schedule.h, as a view with strides 0, 0, 1. Rotary positions on q and k and the
// normalisation of o belong to the layer. Definition: kernels/state_ref.h.
//
// Sun et al. 2023, "Retentive Network: A Successor to Transformer for Large Language Models",
// eq. 6.
namespace linattn {

extern const Mixer k_retention;

}  // namespace linattn
