#pragma once

#include "kernels/mixer.h"

// kda: Kimi delta attention, the delta rule on a memory whose channels fade each at its own rate.
//
//     D   = diag(exp(g_t)) S_{t-1},   r_t = v_t - D^T k_t
//     S_t = D + beta_t k_t r_t^T
//     o_t = scale S_t^T q_t                               scale = K^-1/2
//
// The caller owes g [B,T,HV,K], the natural logarithm of the decays, at most 0; beta [B,T,HV] in
// (0,1) or (0,2), and keys of norm at most 1 (options.feature_map "l2"), as for delta. Definition:
// kernels/state_ref.h.
//
// Kimi Team 2025, "Kimi Linear: An Expressive, Efficient Attention Architecture".
namespace linattn {

extern const Mixer k_kda;

}  // namespace linattn
