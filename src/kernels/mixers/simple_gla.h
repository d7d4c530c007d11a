#pragma once

#include "kernels/mixer.h"

// simple_gla: linear attention whose memory fades by one learned factor a head and token.
//
//     S_t = exp(g_t) S_{t-1} + k_t v_t^T
//     o_t = scale S_t^T q_t
//     scale = K^-1/2
//
// The caller owes g [B,T,HV], the natural logarithm of the decay: at most 0, -inf to forget
// everything before a token. Definition: kernels/state_ref.h.
//
// Yang et al. 2024, "Gated Linear Attention Transformers with Hardware-Efficient Training", with
// the gate reduced to a number; the recurrence of Mamba-2 (Dao and Gu 2024, "Transformers are
// SSMs") with v = dt x, and of lightning attention (Qin et al. 2024) with a fixed decay.
namespace linattn {

extern const Mixer k_simple_gla;

}  // namespace linattn
