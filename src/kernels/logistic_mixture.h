#pragma once

#include "base/array.h"

namespace linattn {

// Discretised mixture of M logistics over 8-bit values (Salimans et al. 2017, PixelCNN++), per
// position.
//
// With x = pixel/127.5 - 1, a position's parameters are M logits w_i and, channel by channel, M
// means m_ci, M raw log-scales r_ci and, for three channels only, M raw coefficients a_ci: 3M
// numbers for one channel, 10M for three. s_ci = max(r_ci, -7);
//   mu_0i = m_0i,  mu_1i = m_1i + tanh(a_0i) x_0,  mu_2i = m_2i + tanh(a_1i) x_0 + tanh(a_2i) x_1.
// With u = (x_c - mu_ci) exp(-s_ci) and d = exp(-s_ci)/255, the value's probability P_ci is the
// logistic mass of its bin: sigma(u+d) for pixel 0, 1 - sigma(u-d) for pixel 255, sigma(u+d) -
// sigma(u-d) between; where that is not above 1e-5, log P_ci = u - s_ci - 2 softplus(u) -
// log(127.5) instead (density times bin width).
//   loglik = logsumexp_i(log softmax(w)_i + sum_c log P_ci)
//
// Each branch is differentiated on its own; a raw log-scale below -7 has gradient zero. A position
// with a non-finite parameter has loglik NaN and all its gradients NaN.
//
// Shapes: params, d_params [P, 3M] or [P, 10M] F32 or BF16, last axis contiguous, rows may be
// strided; pixels U8 [P] (one channel) or [P, C], C = 1 or 3; loglik, d_loglik [P] F32, any stride.
// Results overwrite; d_params may be params. Positions are shared out over the OpenMP threads; the
// result does not depend on their number. Errors: a shape, dtype or stride that is not one of
// these.

// loglik in nats.
void LogisticMixtureForward(const Array& params, const Array& pixels, const Array& loglik);

// d_params = d_loglik * d loglik / d params, and loglik too unless absent, in one pass.
void LogisticMixtureBackward(const Array& params, const Array& pixels, const Array& d_loglik,
                             const Array& d_params, const Array& loglik = {});

// The same by the definition, in double: F64 arrays (pixels stay U8), plain subtraction of the two
// sigmas.
void LogisticMixtureForwardRef(const Array& params, const Array& pixels, const Array& loglik);
void LogisticMixtureBackwardRef(const Array& params, const Array& pixels, const Array& d_loglik,
                                const Array& d_params);

}  // namespace linattn
