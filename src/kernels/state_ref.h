#pragma once

#include "kernels/mixer.h"

// The definition of every state mixer, in float64 and plain loops. Nobody may optimise it.
//
//     D   = diag(exp(g_t)) S_{t-1}           no decay: D = S_{t-1}; scalar: one g for all features
//     S_t = D + beta_t K_t (v_t - rho D^T K_t)^T      delta rule: rho = 1; add: rho = 0, beta = 1
//     z_t = diag(exp(g_t)) z_{t-1} + K_t              normalised mixers
//     o_t = scale S_t^T Q_t [ / (scale Q_t . z_t + eps) ]
//
// with Q_t = phi(q_t), K_t = phi(k_t) and value head j reading query/key head j / (HV/H). Not
// causal (mixers without decay and delta rule): every query reads the S and z after the last key.
// docs/mixers.md, equations (1) to (3) and (30) to (33); backward is the sequential adjoint, (35)
// to (40). All arrays are F64; Error otherwise, and for a g above 0. backward does not read `out`.
namespace linattn {

void StateForwardRef(const Mixer& mixer, const MixerInputs& in, const MixerOutputs& out);
void StateBackwardRef(const Mixer& mixer, const MixerInputs& in, const MixerOutputs& out,
                      const MixerGradients& grad);

}  // namespace linattn
