#pragma once

#include "kernels/mixer.h"

// delta: a memory that replaces what it holds under a key instead of adding to it.
//
//     r_t = v_t - S_{t-1}^T k_t
//     S_t = S_{t-1} + beta_t k_t r_t^T
//     o_t = scale S_t^T q_t                               scale = K^-1/2
//
// The caller owes beta [B,T,HV] in (0,1), or (0,2) for negative eigenvalues of the transition, and
// keys of norm at most 1: options.feature_map = FeatureMapByName("l2"). With longer keys the state
// grows by a factor of up to |1 - beta |k|^2| a token. Definition: kernels/state_ref.h.
//
// Schlag, Irie and Schmidhuber 2021, "Linear Transformers Are Secretly Fast Weight Programmers";
// Yang et al. 2024, "Parallelizing Linear Transformers with the Delta Rule over Sequence Length".
namespace linattn {

extern const Mixer k_delta;

}  // namespace linattn
