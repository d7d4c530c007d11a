#pragma once

#include "kernels/mixer.h"

// performer: linear attention whose features estimate softmax's exp(q.k K^-1/2) without bias
// (FAVOR+).
//
//     S_t = S_{t-1} + phi(k_t) v_t^T            z_t = z_{t-1} + phi(k_t)
//     o_t = S_t^T phi(q_t) / (phi(q_t) . z_t + eps)
//     phi(x)_j = M^-1/2 (exp(w_j . y - n - c) + 1e-4),  y = x K^-1/4,  n and c as favor_map.h has
//     it
//
// Everything but phi is linear's. By default phi is the streaming form of one fixed projection for
// each K ("favor"), which is strictly causal and steps; a model gives its own projection: a
// FavorMap for queries as options.feature_map and one for keys as options.key_map. The published
// form is a pair of FavorMap::Published, with z0 = 1e-6 and eps = 0 for the 1e-6 that its causal
// denominator adds to every feature's sum.
//
// The caller owes maps of one projection for q and k, which outlive the call (and its backward).
// Definition: kernels/state_ref.h.
//
// Choromanski et al. 2021, "Rethinking Attention with Performers", section 2.
namespace linattn {

extern const Mixer k_performer;

}  // namespace linattn
