#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "kernels/mixer.h"

// The definition of every mixer that keeps its tokens, in float64 and plain loops. Nobody may
// optimise it. Query t sees key s n_ts times (0: not at all):
//
//     x_ts = scale q_t . k_s,   l_t = log sum_s n_ts exp(x_ts),   p_ts = n_ts exp(x_ts - l_t)
//     o_t = sum_s p_ts v_s
//
// with query head j reading key/value head j / (H/HV). A query that sees nothing, masked ones
// included, gives o = 0 and l = -inf. Gradients: d_p = d_o . v, d_x = p (d_p - sum_s p d_p), d_q =
// scale sum_s d_x k, d_k = scale sum_t d_x q, d_v = sum_t p d_o.
namespace linattn {

// One query of a sequence: place i of T queries, before S keys, in query head h.
struct CacheQuery {
  const TokenList& queries;
  const TokenList& keys;
  int64_t i, h;
};
// Fills times [S], zeros on entry, with n.
using SeenTimes = std::function<void(const CacheQuery& query, std::vector<int>& times)>;

// Arrays are F64. `in` was checked against its mixer, with sizes `dims`.
void CacheForwardRef(const MixerInputs& in, const MixerDims& dims, const MixerOutputs& out,
                     const SeenTimes& seen);
void CacheBackwardRef(const MixerInputs& in, const MixerDims& dims, const MixerGradients& gradients,
                      const SeenTimes& seen);

// CheckInputs, and that q is F64.
MixerDims CheckDoubles(const Mixer& mixer, const MixerInputs& in);

}  // namespace linattn
