#pragma once

#include "kernels/mixer.h"

// gla: linear attention in which every channel of the keys forgets at its own learned rate.
//
//     S_t = diag(exp(g_t)) S_{t-1} + k_t v_t^T
//     o_t = scale S_t^T q_t
//     scale = K^-1/2
//
// The caller owes g [B,T,HV,K], the natural logarithm of the decays: at most 0, -inf to forget what
// a channel held. Definition: kernels/state_ref.h.
//
// Yang, Wang, Shen, Panda and Kim 2024, "Gated Linear Attention Transformers with
// Hardware-Efficient Training", eq. 3.
namespace linattn {

extern const Mixer k_gla;

}  // namespace linattn
