#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "kernels/mixer.h"
#include "kernels/scratch.h"

// What the blocked softmax of blocked_softmax-inl.h works on, and the rules that say which keys a
// query sees.
namespace linattn {

// Tokens in a block of queries and in a block of keys (64 keys: backward 7% slower, forward the
// same), and the queries that share each block of keys in forward while it is in the cache.
constexpr int64_t kQueries = 64, kKeys = 128, kTileQueries = 4 * kQueries;

// Of a block of queries and a block of keys: how many of the pairs are seen.
enum class Sees : uint8_t { kNone, kSome, kAll };

// Query i sees the keys [i + first, i + end): everything, causal, or causal with a window.
class BandRule {
 public:
  // T queries and S keys whose ends are aligned.
  BandRule(const MixerOptions& options, int64_t T, int64_t S) {
    if (!options.causal) return;
    end_ = S - T + 1;
    if (options.window > 0) first_ = end_ - std::min(options.window, kFar);
  }

  Sees Block(int64_t q0, int64_t q1, int64_t k0, int64_t k1) const {
    const int64_t last = q1 - 1;
    if (k0 >= last + end_ || k1 <= q0 + first_) return Sees::kNone;
    return k1 <= q0 + end_ && k0 >= last + first_ ? Sees::kAll : Sees::kSome;
  }

  // scores [k1 - k0, kQueries]: -inf where the query does not see the key.
  void Hide(int64_t q0, int64_t q1, int64_t k0, int64_t k1, float* scores) const {
    constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
    const int64_t n = q1 - q0;
    for (int64_t s = k0; s < k1; ++s, scores += kQueries) {
      const int64_t from = std::clamp<int64_t>(s - end_ + 1 - q0, 0, n);
      const int64_t to = std::clamp<int64_t>(s - first_ + 1 - q0, from, n);
      std::fill(scores, scores + from, kMinusInfinity);
      std::fill(scores + to, scores + n, kMinusInfinity);
    }
  }

 private:
  static constexpr int64_t kFar = std::numeric_limits<int64_t>::max() / 4;
  int64_t first_ = -kFar, end_ = kFar;
};

// A tile of queries on its way over the keys. Per block b of queries: q_T [K,kQueries] scaled; o_T
// [V,kQueries], the sum so far of exp(score - max) v; max, sum [kQueries].
struct ForwardState {
  ForwardState(int64_t K, int64_t V, float* scratch) {
    Pieces pieces(scratch);
    q_T = pieces.Take(kTileQueries * K), o_T = pieces.Take(kTileQueries * V);
    max = pieces.Take(kTileQueries), sum = pieces.Take(kTileQueries);
    k = pieces.Take(kKeys * K), v = pieces.Take(kKeys * V);
    scores = pieces.Take(kKeys * kQueries);
    rows = pieces.Take(kQueries * std::max(K, V));
    floats = pieces.used();
  }
  float *q_T, *o_T, *max, *sum, *k, *v, *scores, *rows;
  int64_t floats;
};

// Of one group: d_q [heads,T,K] and delta [heads,T], then the blocks that meet. P and d_S
// [keys,kQueries] are transposed, as scores are in forward.
struct BackwardState {
  BackwardState(int64_t heads, int64_t T, int64_t K, int64_t V, float* scratch) {
    Pieces pieces(scratch);
    d_q = pieces.Take(heads * T * K), delta = pieces.Take(heads * T);
    q = pieces.Take(kQueries * K), q_T = pieces.Take(kQueries * K);
    d_o = pieces.Take(kQueries * V), d_o_T = pieces.Take(kQueries * V);
    shift = pieces.Take(kQueries), mean = pieces.Take(kQueries);
    k = pieces.Take(kKeys * K), d_k = pieces.Take(kKeys * K);
    v = pieces.Take(kKeys * V), d_v = pieces.Take(kKeys * V);
    P = pieces.Take(kKeys * kQueries), d_S = pieces.Take(kKeys * kQueries);
    floats = pieces.used();
  }
  float *d_q, *delta, *q, *q_T, *d_o, *d_o_T, *shift, *mean, *k, *d_k, *v, *d_v, *P, *d_S;
  int64_t floats;
};

// The queries and keys of one sequence that meet in one key/value head, read by `heads` query heads
// from `head` on.
struct SoftmaxGroup {
  const MixerInputs* in;
  const MixerOutputs* out;
  const MixerGradients* gradients;  // null in forward
  TokenList queries, keys;
  int64_t kv_head, head, heads, K, V;
  float scale;
};

}  // namespace linattn
