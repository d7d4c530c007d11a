#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/cache_ref.h"
#include "kernels/mixer.h"

// softmax: scaled dot-product attention, which keeps every key and value it has seen.
//
//     l_t = log sum_s exp(scale q_t . k_s)          over the keys s that query t sees
//     p_ts = exp(scale q_t . k_s - l_t)
//     o_t = sum_s p_ts v_s
//
// full: every key of the sequence. causal: s <= t + S - T, the ends aligned, so that T new queries
// continue a cache of S - T keys; S >= T. window w > 0 (causal): of these only s > t + S - T - w
// and the first `sinks` keys. Query head j reads key/value head j / (H/HV), where HV counts the
// heads of both k and v. A query that sees no key, masked ones included, gives o = 0 and l = -inf.
//
// The caller owes: MixerOutputs::norm (= l) in forward, handed back to backward; finite q, k, v at
// valid tokens. What is not finite shows in every o and l that sees it (and may in its neighbours).
//
// Vaswani et al. 2017, "Attention is all you need"; the blocked form: Rabe & Staats 2021,
// "Self-attention does not need O(n^2) memory"; its backward: Dao et al. 2022, "FlashAttention";
// sinks: Xiao et al. 2023, "Efficient streaming language models with attention sinks".
namespace linattn {

extern const Mixer k_softmax;

// ---- The definition, in float64 with cache_ref.h. Nobody may optimise it. ----

namespace softmax_ref {

inline bool Sees(const MixerOptions& options, int64_t t, int64_t T, int64_t s, int64_t S) {
  const int64_t last = t + S - T;
  const bool in_window = options.window == 0 || s > last - options.window || s < options.sinks;
  return !options.causal || (s <= last && in_window);
}

inline SeenTimes Seen(const MixerOptions& options) {
  return [&options](const CacheQuery& x, std::vector<int>& times) {
    for (int64_t s = 0; s < x.keys.length; ++s)
      times[s] = Sees(options, x.i, x.queries.length, s, x.keys.length);
  };
}

inline void Forward(const MixerInputs& in, const MixerOutputs& out) {
  CacheForwardRef(in, CheckDoubles(k_softmax, in), out, Seen(in.options));
}

inline void Backward(const MixerInputs& in, const MixerOutputs&, const MixerGradients& grad) {
  CacheBackwardRef(in, CheckDoubles(k_softmax, in), grad, Seen(in.options));
}

}  // namespace softmax_ref
}  // namespace linattn
