#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/error.h"
#include "kernels/cache_ref.h"
#include "kernels/mixer.h"

// sparse: softmax attention in which a head sees about 2 root(T) of T keys: even query heads what
// is near, odd ones a summary of what is far. With l = options.sparse.stride, c =
// options.sparse.summary and places t, s >= 0 in the sequence, query t sees key s <= t if
//
//     strided:  t - s < l                  even heads;    (t - s) mod l = 0          odd heads
//     fixed:    floor(t/l) = floor(s/l)    even heads;    s mod l >= l - c           odd heads
//
// and itself if that leaves nothing (fixed, odd heads, before the first summary). The weights over
// what it sees are those of softmax. Not causal: the same without s <= t, and |t - s| < l.
//
// The strided pattern is for data with a period, such as the rows of an image (l = their length);
// the fixed one for text, where c tokens a block learn to sum it up. One head a pattern is the
// second of the ways in which the paper joins its factors, and the one it used most.
//
// The caller owes what softmax's does. Keys of another sequence are refused: places would mean
// nothing. Child, Gray, Radford and Sutskever 2019, "Generating long sequences with sparse
// transformers", section 4.
namespace linattn {

extern const Mixer k_sparse;

// Throws unless stride and summary make a pattern and no window is set.
inline void CheckSparseOptions(const MixerOptions& options) {
  const auto& [pattern, stride, summary] = options.sparse;
  Check(stride >= 1, "sparse", "stride must be >= 1, but is {}", stride);
  Check(pattern == SparsePattern::kStrided || (summary >= 1 && summary <= stride), "sparse",
        "summary must be from 1 to stride = {}, but is {}", stride, summary);
  Check(options.window == 0 && options.sinks == 0, "sparse",
        "window and sinks must be 0 (the pattern says what is seen), but are {} and {}",
        options.window, options.sinks);
}

// ---- The definition, in float64 with cache_ref.h. Nobody may optimise it. ----

namespace sparse_ref {

// Whether the pattern of query head h shows key s to query t, wherever the two stand.
inline bool Pattern(const MixerOptions& options, int64_t h, int64_t t, int64_t s) {
  const auto& [pattern, l, c] = options.sparse;
  if (pattern == SparsePattern::kStrided) {
    const int64_t apart = std::max(t, s) - std::min(t, s);
    return h % 2 == 0 ? apart < l : apart % l == 0;
  }
  return h % 2 == 0 ? t / l == s / l : s % l >= l - c;
}

inline SeenTimes Seen(const MixerOptions& options) {
  return [&options](const CacheQuery& x, std::vector<int>& times) {
    const int64_t t = x.i, S = options.causal ? t + 1 : x.keys.length;
    bool nothing = true;
    for (int64_t s = 0; s < S; ++s) {
      times[s] = Pattern(options, x.h, t, s);
      nothing = nothing && times[s] == 0;
    }
    if (nothing) times[t] = 1;
  };
}

inline void Forward(const MixerInputs& in, const MixerOutputs& out) {
  CheckSparseOptions(in.options);
  CacheForwardRef(in, CheckDoubles(k_sparse, in), out, Seen(in.options));
}

inline void Backward(const MixerInputs& in, const MixerOutputs&, const MixerGradients& grad) {
  CheckSparseOptions(in.options);
  CacheBackwardRef(in, CheckDoubles(k_sparse, in), grad, Seen(in.options));
}

}  // namespace sparse_ref
}  // namespace linattn
