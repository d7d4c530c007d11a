// Softmax attention by blocks, without ever forming T x T. Which keys a query sees is a Rule, so
// that full, causal, windowed and sparse patterns are one algorithm (eq. 19 to 27 of
// docs/mixers.md). Included once a SIMD target, inside foreach_target's loop.
//
// A Rule answers for the queries [q0, q1) and keys [k0, k1) of a sequence, at most a block of each:
//     Sees Block(q0, q1, k0, k1) const;                 // blocks that see nothing are skipped
//     void Hide(q0, q1, k0, k1, float* scores) const;   // -inf where a pair is not seen; asked
//     only for kSome
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
  std::fill_n(s.o_T, kTileQueries * g.V, 0.0f);
  std::fill_n(s.max, kTileQueries, -std::numeric_limits<float>::infinity());
  std::fill_n(s.sum, kTileQueries, 0.0f);
}

// o = o_T / sum, norm = max + log sum (eq. 24).
HWY_INLINE void EndTile(const SoftmaxGroup& g, int64_t head, int64_t begin, int64_t end,
                        ForwardState& s) {
  for (int64_t q0 = begin; q0 < end; q0 += kQueries) {
    const int64_t n = std::min(kQueries, end - q0), b = q0 - begin;
    for (int64_t i = 0; i < n; ++i) {
      const bool sees_nothing = s.max[b + i] == -std::numeric_limits<float>::infinity();
      const float factor = sees_nothing ? 0 : 1 / s.sum[b + i];
      for (int64_t c = 0; c < g.V; ++c)
        s.rows[i * g.V + c] = factor * s.o_T[b * g.V + c * kQueries + i];
      if (g.out->norm.present())
        *g.out->norm.At<float>(g.queries.row, g.queries[q0 + i], head) =
            s.max[b + i] + std::log(s.sum[b + i]);
    }
    StoreRows({g.out->o, g.queries, head}, q0, n, s.rows);
  }
}

// The queries [begin, begin + kTileQueries) of one head.
template <class Rule>
HWY_INLINE void ForwardTile(const SoftmaxGroup& g, const Rule& rule, int64_t head, int64_t begin,
                            float* scratch) {
  ForwardState s(g.K, g.V, scratch);
  const int64_t end = std::min(begin + kTileQueries, g.queries.length);
  BeginTile(g, head, begin, end, s);
  for (int64_t k0 = 0; k0 < g.keys.length; k0 += kKeys) {
    const int64_t k1 = std::min(k0 + kKeys, g.keys.length), keys = k1 - k0;
    if (rule.Block(begin, end, k0, k1) == Sees::kNone) continue;
    LoadRows({g.in->k, g.keys, g.kv_head}, k0, keys, s.k);
    LoadRows({g.in->v, g.keys, g.kv_head}, k0, keys, s.v);
    for (int64_t q0 = begin; q0 < end; q0 += kQueries) {
      const int64_t n = std::min(kQueries, end - q0), b = q0 - begin, columns = Columns(n);
      const Sees sees = rule.Block(q0, q0 + n, k0, k1);
      if (sees == Sees::kNone) continue;
      float* o_T = s.o_T + b * g.V;
      Gemm({keys, columns, g.K}, {s.k, g.K, 1}, {s.q_T + b * g.K, kQueries}, {s.scores, kQueries});
      if (sees == Sees::kSome) rule.Hide(q0, q0 + n, k0, k1, s.scores);
      Renew(keys, columns, g.V, s.scores, s.max + b, s.sum + b, o_T);
      Gemm({g.V, columns, keys}, {s.v, 1, g.V}, {s.scores, kQueries}, {o_T, kQueries, true});
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
      LoadRows({g.gradients->d_o, g.queries, g.head + j}, q0, n, s.d_o);
      TransposeBlock(s.d_o, n, g.V, s.d_o_T);
      LoadRows({g.out->o, g.queries, g.head + j}, q0, n, s.v);
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

// The queries [q0, q0 + n) of head g.head + j, both ways round, with the shift of their exponents:
// l, or +inf where a query sees nothing or does not exist, which makes its p vanish.
HWY_INLINE void LoadQueries(const SoftmaxGroup& g, int64_t j, int64_t q0, int64_t n,
                            BackwardState& s) {
  LoadRows({g.in->q, g.queries, g.head + j}, q0, n, s.q);
  ScaleRow(g.scale, n * g.K, s.q);
  LoadRows({g.gradients->d_o, g.queries, g.head + j}, q0, n, s.d_o);
  TransposeBlock(s.q, n, g.K, s.q_T);
  TransposeBlock(s.d_o, n, g.V, s.d_o_T);
  std::fill_n(s.shift, kQueries, std::numeric_limits<float>::infinity());
  std::fill_n(s.mean, kQueries, 0.0f);
  for (int64_t i = 0; i < n; ++i) {
    const float l = *g.out->norm.At<float>(g.queries.row, g.queries[q0 + i], g.head + j);
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

// One block of queries against one block of keys: adds to d_k, d_v and to its rows of d_q.
template <class Rule>
HWY_INLINE void BackwardBlock(const SoftmaxGroup& g, const Rule& rule, int64_t j, int64_t q0,
                              int64_t k0, BackwardState& s) {
  const int64_t n = std::min(kQueries, g.queries.length - q0),
                keys = std::min(kKeys, g.keys.length - k0);
  const Sees sees = rule.Block(q0, q0 + n, k0, k0 + keys);
  if (sees == Sees::kNone) return;
  LoadQueries(g, j, q0, n, s);
  const int64_t columns = Columns(n);
  Gemm({keys, columns, g.K}, {s.k, g.K, 1}, {s.q_T, kQueries}, {s.P, kQueries});
  if (sees == Sees::kSome) rule.Hide(q0, q0 + n, k0, k0 + keys, s.P);
  Gemm({keys, columns, g.V}, {s.v, g.V, 1}, {s.d_o_T, kQueries}, {s.d_S, kQueries});
  ScoreGradients(keys, columns, s);
  Gemm({keys, g.V, n}, {s.P, kQueries, 1}, {s.d_o, g.V}, {s.d_v, g.V, true});
  Gemm({keys, g.K, n}, {s.d_S, kQueries, 1}, {s.q, g.K}, {s.d_k, g.K, true});
  float* d_q = s.d_q + (j * g.queries.length + q0) * g.K;
  Gemm({n, g.K, keys}, {s.d_S, 1, kQueries}, {s.k, g.K}, {d_q, g.K, true});
}

// All of one group, so that every sum has one owner and one order.
template <class Rule>
HWY_INLINE void BackwardGroup(const SoftmaxGroup& g, const Rule& rule, float* scratch) {
  const int64_t T = g.queries.length;
  BackwardState s(g.heads, T, g.K, g.V, scratch);
  ComputeDelta(g, s);
  std::fill_n(s.d_q, g.heads * T * g.K, 0.0f);
  for (int64_t k0 = 0; k0 < g.keys.length; k0 += kKeys) {
    const int64_t keys = std::min(kKeys, g.keys.length - k0);
    LoadRows({g.in->k, g.keys, g.kv_head}, k0, keys, s.k);
    LoadRows({g.in->v, g.keys, g.kv_head}, k0, keys, s.v);
    std::fill_n(s.d_k, keys * g.K, 0.0f);
    std::fill_n(s.d_v, keys * g.V, 0.0f);
    for (int64_t j = 0; j < g.heads; ++j)
      for (int64_t q0 = 0; q0 < T; q0 += kQueries) BackwardBlock(g, rule, j, q0, k0, s);
    StoreRows({g.gradients->d_k, g.keys, g.kv_head}, k0, keys, s.d_k);
    StoreRows({g.gradients->d_v, g.keys, g.kv_head}, k0, keys, s.d_v);
  }
  ScaleRow(g.scale, g.heads * T * g.K, s.d_q);
  for (int64_t j = 0; j < g.heads; ++j)
    StoreRows({g.gradients->d_q, g.queries, g.head + j}, 0, T, s.d_q + j * T * g.K);
}

}  // namespace HWY_NAMESPACE
}  // namespace linattn
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
