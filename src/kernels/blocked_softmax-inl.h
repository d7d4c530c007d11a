// Softmax attention by blocks, without ever forming T x T. Which keys a query sees is data
// (Visibility), so that full, causal, windowed, sparse and hashed patterns are one algorithm (eq.
// 19 to 27 of docs/mixers.md). Included once a SIMD target, inside foreach_target's loop.
//
// Scores are kept transposed, [keys,queries], and so are forward's outputs, [V,queries]: every
// maximum and sum over keys then runs down a column of lanes, nothing is summed across a vector,
// and K and V need no packing.
#if defined(LINATTN_KERNELS_BLOCKED_SOFTMAX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LINATTN_KERNELS_BLOCKED_SOFTMAX_INL_H_
#undef LINATTN_KERNELS_BLOCKED_SOFTMAX_INL_H_
#else
#define LINATTN_KERNELS_BLOCKED_SOFTMAX_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels/blocked_softmax.h"
#include "kernels/exp-inl.h"
#include "kernels/gemm-inl.h"
#include "kernels/token_rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace linattn {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// exp(x - max). Where both are -inf there is nothing to weigh, and the result is 0.
HWY_INLINE FloatVector Weight(FloatVector x, FloatVector max) {
  const FloatTag d;
  return ExpOrNaN(hn::Sub(x, hn::Max(hn::Set(d, std::numeric_limits<float>::lowest()), max)));
}

// Columns of whole vectors that hold n queries.
HWY_INLINE int64_t Columns(int64_t n) { return (n + kLanes - 1) / kLanes * kLanes; }

// x [rows,columns] -> y [columns,kQueries], zero beyond `rows`.
HWY_INLINE void TransposeBlock(const float* x, int64_t rows, int64_t columns, float* y) {
  for (int64_t c = 0; c < columns; ++c, y += kQueries) {
    for (int64_t r = 0; r < rows; ++r) y[r] = x[r * columns + c];
    std::fill(y + rows, y + kQueries, 0.0f);
  }
}

HWY_INLINE void ScaleRow(float scale, int64_t n, float* x) {
  ForEachVector(n, [&](auto load, auto store, int64_t i) HWY_ATTR {
    store(hn::Mul(load(x + i), hn::Set(FloatTag(), scale)), x + i);
  });
}

// ---- Forward ----

// Takes in the first `columns` of a block of scores [keys,kQueries]: x becomes exp(x - max) for the
// new maximum, to which the sums so far are brought (eq. 21 to 23).
HWY_INLINE void Renew(int64_t keys, int64_t columns, int64_t V, float* HWY_RESTRICT x,
                      float* HWY_RESTRICT max, float* HWY_RESTRICT sum, float* HWY_RESTRICT o_T) {
  const FloatTag d;
  for (int64_t i = 0; i < columns; i += kLanes) {
    const auto old_max = hn::Load(d, max + i);
    auto new_max = old_max;
    for (int64_t s = 0; s < keys; ++s)
      new_max = hn::Max(new_max, hn::Load(d, x + s * kQueries + i));
    const auto shrink = Weight(old_max, new_max);
    auto total = hn::Mul(hn::Load(d, sum + i), shrink);
    for (int64_t s = 0; s < keys; ++s) {
      const auto p = Weight(hn::Load(d, x + s * kQueries + i), new_max);
      hn::Store(p, d, x + s * kQueries + i);
      total = hn::Add(total, p);
    }
    hn::Store(new_max, d, max + i);
    hn::Store(total, d, sum + i);
    if (hn::AllTrue(d, hn::Eq(old_max, new_max))) continue;
    for (int64_t c = 0; c < V; ++c)
      hn::Store(hn::Mul(hn::Load(d, o_T + c * kQueries + i), shrink), d, o_T + c * kQueries + i);
  }
}

HWY_INLINE void BeginTile(const SoftmaxGroup& g, int64_t head, int64_t begin, int64_t end,
                          ForwardState& s) {
  for (int64_t q0 = begin; q0 < end; q0 += kQueries) {
    const int64_t n = std::min(kQueries, end - q0);
    LoadRows({g.in->q, g.queries, head}, q0, n, s.rows);
    ScaleRow(g.scale, n * g.K, s.rows);
    TransposeBlock(s.rows, n, g.K, s.q_T + (q0 - begin) * g.K);
  }
  const int64_t used = (end - begin + kQueries - 1) / kQueries * kQueries;
  std::fill_n(s.o_T, used * g.V, 0.0f);
  std::fill_n(s.max, used, -std::numeric_limits<float>::infinity());
  std::fill_n(s.sum, used, 0.0f);
}

// Joins row o [V] with log-sum-exp l, whose exponentials were summed elsewhere, to what the arrays
// hold for token t (eq. 28).
HWY_INLINE void JoinRow(const SoftmaxGroup& g, int64_t t, int64_t head, float l, float* o) {
  if (l == -std::numeric_limits<float>::infinity()) return;
  float& norm = *g.out->norm.At<float>(g.queries.row, t, head);
  const float joined = std::max(norm, l) + std::log1p(std::exp(-std::abs(norm - l)));
  const FloatTag d;
  const auto old_part = hn::Set(d, std::exp(norm - joined)),
             part = hn::Set(d, std::exp(l - joined));
  float* sum = g.out->o.At<float>(g.queries.row, t, head);
  ForEachVector(g.V, [&](auto load, auto store, int64_t c) HWY_ATTR {
    store(hn::MulAdd(part, load(o + c), hn::Mul(old_part, load(sum + c))), sum + c);
  });
  norm = joined;
}

// o = o_T / sum, norm = max + log sum (eq. 24).
HWY_INLINE void EndTile(const SoftmaxGroup& g, int64_t head, int64_t begin, int64_t end,
                        ForwardState& s) {
  for (int64_t q0 = begin; q0 < end; q0 += kQueries) {
    const int64_t n = std::min(kQueries, end - q0), b = q0 - begin;
    for (int64_t i = 0; i < n; ++i) {
      const bool sees_nothing = s.max[b + i] == -std::numeric_limits<float>::infinity();
      const float factor = sees_nothing ? 0 : 1 / s.sum[b + i];
      const float l = s.max[b + i] + std::log(s.sum[b + i]);
      float* row = s.rows + i * g.V;
      for (int64_t c = 0; c < g.V; ++c) row[c] = factor * s.o_T[b * g.V + c * kQueries + i];
      if (g.add)
        JoinRow(g, g.queries[q0 + i], head, l, row);
      else if (g.out->norm.present())
        *g.out->norm.At<float>(g.queries.row, g.queries[q0 + i], head) = l;
    }
    if (!g.add) StoreRows({g.out->o, g.queries, head}, q0, n, s.rows);
  }
}

// The queries [q0, q0 + n) of a tile, its block b, and the keys of `span`, which lie in s.k and s.v
// from key `loaded` on.
HWY_INLINE void ForwardBlock(const SoftmaxGroup& g, int64_t q0, int64_t n, int64_t b, KeySpan span,
                             int64_t loaded, ForwardState& s) {
  const int64_t keys = span.end - span.begin, columns = Columns(n), at = span.begin - loaded;
  float* o_T = s.o_T + b * g.V;
  Gemm({keys, columns, g.K}, {s.k + at * g.K, g.K, 1}, {s.q_T + b * g.K, kQueries},
       {s.scores, kQueries});
  if (!g.visible.All(q0, q0 + n, span.begin, span.end))
    g.visible.Hide(q0, q0 + n, span.begin, span.end, s.scores);
  Renew(keys, columns, g.V, s.scores, s.max + b, s.sum + b, o_T);
  Gemm({g.V, columns, keys}, {s.v + at * g.V, 1, g.V}, {s.scores, kQueries}, {o_T, kQueries, true});
}

// The queries [begin, begin + kTileQueries) of one head.
HWY_INLINE void ForwardTile(const SoftmaxGroup& g, int64_t head, int64_t begin, float* scratch) {
  ForwardState s(g.K, g.V, scratch);
  const int64_t end = std::min(begin + kTileQueries, g.queries.length);
  BeginTile(g, head, begin, end, s);
  for (int64_t k0 = 0; k0 < g.keys.length; k0 += kKeys) {
    const KeySpan block = g.visible.Trim(begin, end, k0, std::min(k0 + kKeys, g.keys.length));
    if (block.empty()) continue;
    LoadRows({g.in->k, g.keys, g.kv_head}, block.begin, block.end - block.begin, s.k);
    LoadRows({g.in->v, g.keys, g.kv_head}, block.begin, block.end - block.begin, s.v);
    for (int64_t q0 = begin; q0 < end; q0 += kQueries) {
      const int64_t n = std::min(kQueries, end - q0);
      const KeySpan span = g.visible.Trim(q0, q0 + n, block.begin, block.end);
      if (!span.empty()) ForwardBlock(g, q0, n, q0 - begin, span, block.begin, s);
    }
  }
  EndTile(g, head, begin, end, s);
}

// ---- Backward ----

// delta_t = d_o_t . o_t = sum_s p_ts d_p_ts, what the softmax takes off every d_p (eq. 25). Summed
// in the order of the product that makes d_p, so that a query with one key gets a gradient of
// exactly 0.
HWY_INLINE void ComputeDelta(const SoftmaxGroup& g, BackwardState& s) {
  const FloatTag d;
  const int64_t T = g.queries.length;
  for (int64_t j = 0; j < g.heads; ++j) {
    for (int64_t q0 = 0; q0 < T; q0 += kQueries) {
      const int64_t n = std::min(kQueries, T - q0);
      LoadRows({g.gradients->d_o, g.queries, g.Head(j)}, q0, n, s.d_o);
      TransposeBlock(s.d_o, n, g.V, s.d_o_T);
      LoadRows({g.out->o, g.queries, g.Head(j)}, q0, n, s.v);
      TransposeBlock(s.v, n, g.V, s.d_v);
      for (int64_t i = 0; i < kQueries; i += kLanes) {
        auto sum = hn::Zero(d);
        for (int64_t at = i; at < g.V * kQueries; at += kQueries)
          sum = hn::MulAdd(hn::Load(d, s.d_v + at), hn::Load(d, s.d_o_T + at), sum);
        hn::Store(sum, d, s.mean + i);
      }
      std::copy_n(s.mean, n, s.delta + j * T + q0);
    }
  }
}

// The queries [q0, q0 + n) of head g.Head(j), both ways round, with the shift of their exponents:
// l, or +inf where a query sees nothing or does not exist, which makes its p vanish.
HWY_INLINE void LoadQueries(const SoftmaxGroup& g, int64_t j, int64_t q0, int64_t n,
                            BackwardState& s) {
  LoadRows({g.in->q, g.queries, g.Head(j)}, q0, n, s.q);
  ScaleRow(g.scale, n * g.K, s.q);
  LoadRows({g.gradients->d_o, g.queries, g.Head(j)}, q0, n, s.d_o);
  TransposeBlock(s.q, n, g.K, s.q_T);
  TransposeBlock(s.d_o, n, g.V, s.d_o_T);
  std::fill_n(s.shift, kQueries, std::numeric_limits<float>::infinity());
  std::fill_n(s.mean, kQueries, 0.0f);
  for (int64_t i = 0; i < n; ++i) {
    const float l = *g.out->norm.At<float>(g.queries.row, g.queries[q0 + i], g.Head(j));
    if (l != -std::numeric_limits<float>::infinity()) s.shift[i] = l;
    s.mean[i] = s.delta[j * g.queries.length + q0 + i];
  }
}

// P = exp(P - shift);  d_S = P (d_S - mean), for d_S = d_P on entry (eq. 26).
HWY_INLINE void ScoreGradients(int64_t keys, int64_t columns, BackwardState& s) {
  const FloatTag d;
  for (int64_t i = 0; i < columns; i += kLanes) {
    const auto shift = hn::Load(d, s.shift + i), mean = hn::Load(d, s.mean + i);
    for (int64_t at = i; at < keys * kQueries; at += kQueries) {
      const auto p = ExpOrNaN(hn::Sub(hn::Load(d, s.P + at), shift));
      hn::Store(p, d, s.P + at);
      hn::Store(hn::Mul(p, hn::Sub(hn::Load(d, s.d_S + at), mean)), d, s.d_S + at);
    }
  }
}

// The queries from q0 on against the keys [k0, k0 + keys): adds to d_k, d_v and its rows of d_q.
HWY_INLINE void BackwardBlock(const SoftmaxGroup& g, int64_t j, int64_t q0, int64_t k0,
                              int64_t keys, BackwardState& s) {
  const int64_t n = std::min(kQueries, g.queries.length - q0);
  const KeySpan span = g.visible.Trim(q0, q0 + n, k0, k0 + keys);
  if (span.empty()) return;
  LoadQueries(g, j, q0, n, s);
  const int64_t columns = Columns(n), at = span.begin - k0;
  keys = span.end - span.begin;
  float *k = s.k + at * g.K, *v = s.v + at * g.V;
  Gemm({keys, columns, g.K}, {k, g.K, 1}, {s.q_T, kQueries}, {s.P, kQueries});
  if (!g.visible.All(q0, q0 + n, span.begin, span.end))
    g.visible.Hide(q0, q0 + n, span.begin, span.end, s.P);
  Gemm({keys, columns, g.V}, {v, g.V, 1}, {s.d_o_T, kQueries}, {s.d_S, kQueries});
  ScoreGradients(keys, columns, s);
  Gemm({keys, g.V, n}, {s.P, kQueries, 1}, {s.d_o, g.V}, {s.d_v + at * g.V, g.V, true});
  Gemm({keys, g.K, n}, {s.d_S, kQueries, 1}, {s.q, g.K}, {s.d_k + at * g.K, g.K, true});
  float* d_q = s.d_q + (j * g.queries.length + q0) * g.K;
  Gemm({n, g.K, keys}, {s.d_S, 1, kQueries}, {k, g.K}, {d_q, g.K, true});
}

HWY_INLINE void PutRows(const SoftmaxGroup& g, const TokenRows& rows, int64_t begin, int64_t n,
                        const float* x) {
  if (g.add)
    AddRows(rows, begin, n, x);
  else
    StoreRows(rows, begin, n, x);
}

// d_q of head g.Head(j) from its sums [n,K] at queries [q0,q0+n), which are scaled in place.
HWY_INLINE void PutQueryGradients(const SoftmaxGroup& g, int64_t j, int64_t q0, int64_t n,
                                  float* sums) {
  ScaleRow(g.scale, n * g.K, sums);
  PutRows(g, {g.gradients->d_q, g.queries, g.Head(j)}, q0, n, sums);
}

// A share of one group: every sum over its keys has one owner and one order. Alone, it also writes
// d_q; else its sums stay in scratch for JoinShares.
HWY_INLINE void BackwardGroup(const SoftmaxGroup& g, KeyShare share, float* scratch) {
  const int64_t T = g.queries.length;
  BackwardState s(g.heads, T, g.K, g.V, scratch);
  ComputeDelta(g, s);
  std::fill_n(s.d_q, g.heads * T * g.K, 0.0f);
  for (int64_t k0 = share.index * kKeys; k0 < g.keys.length; k0 += share.count * kKeys) {
    const int64_t keys = std::min(kKeys, g.keys.length - k0);
    LoadRows({g.in->k, g.keys, g.kv_head}, k0, keys, s.k);
    LoadRows({g.in->v, g.keys, g.kv_head}, k0, keys, s.v);
    std::fill_n(s.d_k, keys * g.K, 0.0f);
    std::fill_n(s.d_v, keys * g.V, 0.0f);
    for (int64_t j = 0; j < g.heads; ++j)
      for (int64_t q0 = 0; q0 < T; q0 += kQueries) BackwardBlock(g, j, q0, k0, keys, s);
    PutRows(g, {g.gradients->d_k, g.keys, g.kv_head}, k0, keys, s.d_k);
    PutRows(g, {g.gradients->d_v, g.keys, g.kv_head}, k0, keys, s.d_v);
  }
  if (share.count > 1) return;
  for (int64_t j = 0; j < g.heads; ++j) PutQueryGradients(g, j, 0, T, s.d_q + j * T * g.K);
}

// d_q of the queries from q0 on, from `shares` scratches that lie `floats` apart.
HWY_INLINE void JoinBlock(const SoftmaxGroup& g, int64_t q0, int64_t shares, int64_t floats,
                          float* scratch) {
  const int64_t T = g.queries.length, n = std::min(kQueries, T - q0);
  BackwardState s(g.heads, T, g.K, g.V, scratch);
  for (int64_t j = 0; j < g.heads; ++j) {
    float* sums = s.d_q + (j * T + q0) * g.K;
    for (int64_t i = 1; i < shares; ++i) AddRow(sums + i * floats, n * g.K, sums);
    PutQueryGradients(g, j, q0, n, sums);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace linattn
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
