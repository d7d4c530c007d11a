#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "kernels/mixer.h"
#include "kernels/scratch.h"

// What the blocked softmax of blocked_softmax-inl.h works on: lists of queries and keys, and which
// keys each query sees.
namespace linattn {

// Tokens in a block of queries and in a block of keys (64 keys: backward 7% slower, forward the
// same), and the queries that share each block of keys in forward while it is in the cache.
constexpr int64_t kQueries = 64, kKeys = 128, kTileQueries = 4 * kQueries;

// The keys [begin, end) of a list; empty if begin >= end.
struct KeySpan {
  int64_t begin, end;
  bool empty() const { return begin >= end; }
};

// Which keys each query of a list sees: query i those in [first[i], end[i]) and, as far as they lie
// before end[i], the first `sinks`; never key hidden[i] (-1: none). Places in the lists, not
// tokens. first and end must not decrease. Full, causal, windowed and sparse patterns and the
// buckets of a hash are all of this kind once the tokens stand in the right order.
struct Visibility {
  const int64_t* first = nullptr;   // [queries]
  const int64_t* end = nullptr;     // [queries]
  const int64_t* hidden = nullptr;  // [queries] or absent
  int64_t sinks = 0;

  // Of the keys [k0,k1), those between the first and the last that a query of [q0,q1) sees.
  KeySpan Trim(int64_t q0, int64_t q1, int64_t k0, int64_t k1) const {
    const int64_t last = std::min(k1, end[q1 - 1]);
    if (k0 >= sinks) return {std::max(k0, first[q0]), last};
    return {k0, first[q0] < k1 ? last : std::min(last, sinks)};
  }

  // Whether each query of [q0,q1) sees each key of [k0,k1).
  bool All(int64_t q0, int64_t q1, int64_t k0, int64_t k1) const {
    return !hidden && k1 <= end[q0] && (k0 >= first[q1 - 1] || k1 <= sinks);
  }

  // scores [k1 - k0, kQueries]: -inf where the query does not see the key.
  void Hide(int64_t q0, int64_t q1, int64_t k0, int64_t k1, float* scores) const {
    constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
    const int64_t n = q1 - q0;
    int64_t from = 0, to = 0;  // of the queries, what end and first leave of a key
    float* row = scores;
    for (int64_t s = k0; s < k1; ++s, row += kQueries) {
      while (from < n && end[q0 + from] <= s) ++from;
      while (to < n && first[q0 + to] <= s) ++to;
      std::fill(row, row + from, kMinusInfinity);
      if (s >= sinks) std::fill(row + std::max(from, to), row + n, kMinusInfinity);
    }
    for (int64_t i = 0; hidden && i < n; ++i) {
      const int64_t s = hidden[q0 + i];
      if (s >= k0 && s < k1) scores[(s - k0) * kQueries + i] = kMinusInfinity;
    }
  }
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

// Every count-th block of keys from the index-th on: what one of `count` threads does of a group's
// backward.
struct KeyShare {
  int64_t index = 0, count = 1;
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

// Queries and keys of one sequence that meet in one key/value head, read by the query heads head,
// head + head_step, ..., `heads` of them. `add`: results are added to what the arrays hold, to o
// and norm by their log-sum-exp, so that several groups can share them.
struct SoftmaxGroup {
  const MixerInputs* in;
  const MixerOutputs* out = nullptr;
  const MixerGradients* gradients = nullptr;  // null in forward
  TokenList queries, keys;
  Visibility visible = {};
  int64_t kv_head, head, heads, K, V;
  float scale;
  int64_t head_step = 1;
  bool add = false;

  int64_t Head(int64_t j) const { return head + j * head_step; }
};

}  // namespace linattn
