#pragma once

#include "kernels/mixer.h"

// gated_delta: the delta rule on a memory that first fades by one learned factor a head and token.
//
//     D   = exp(g_t) S_{t-1},   r_t = v_t - D^T k_t
//     S_t = D + beta_t k_t r_t^T
//     o_t = scale S_t^T q_t                               scale = K^-1/2
//
// The caller owes g [B,T,HV], the natural logarithm of the decay, at most 0; beta [B,T,HV] in (0,1)
// or (0,2), and keys of norm at most 1 (options.feature_map "l2"), as for delta. Definition:
// kernels/state_ref.h.
//
// Yang, Kautz and Hatamizadeh 2025, "Gated Delta Networks: Improving Mamba2 with Delta Rule",
// eq. 10.
namespace linattn {

extern const Mixer k_gated_delta;

}  // namespace linattn
