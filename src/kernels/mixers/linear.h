#pragma once

#include "kernels/mixer.h"

// linear: attention whose softmax is replaced by a product of features, so that the past fits into
// one matrix.
//
//     S_t = S_{t-1} + phi(k_t) v_t^T            z_t = z_{t-1} + phi(k_t)
//     o_t = scale S_t^T phi(q_t) / (scale phi(q_t) . z_t + eps)
//
// Not causal: every query reads the sums over all keys. options.normalise = false: o_t = scale
// S_t^T phi(q_t), and z stays as it is. A denominator below the smallest normal float is 0, and 0/0
// is 0. Definition: kernels/state_ref.h.
//
// The caller owes: features that are not negative where the output is normalised (see
// kernels/feature_map.h); eps > 0 where they can all vanish; `norm` from forward to backward.
//
// Katharopoulos et al. 2020, "Transformers are RNNs: Fast Autoregressive Transformers with Linear
// Attention".
namespace linattn {

extern const Mixer k_linear;

}  // namespace linattn
