#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "base/error.h"
#include "kernels/mixer.h"

// softmax: scaled dot-product attention, which keeps every key and value it has seen.
//
//     l_t = log sum_s exp(scale q_t . k_s)          over the keys s that query t sees
//     p_ts = exp(scale q_t . k_s - l_t)
//     o_t = sum_s p_ts v_s
//
// full: every key of the sequence. causal: s <= t + S - T, the ends aligned, so that T new queries
// continue a cache of S - T keys; S >= T. window w > 0 (causal): also s > t + S - T - w. Query head
// j reads key/value head j / (H/HV), where HV counts the heads of both k and v. A query that sees
// no key, masked ones included, gives o = 0 and l = -inf.
//
// The caller owes: MixerOutputs::norm (= l) in forward, handed back to backward; finite q, k, v at
// valid tokens. What is not finite shows in every o and l that sees it (and may in its neighbours).
//
// Vaswani et al. 2017, "Attention is all you need"; the blocked form: Rabe & Staats 2021,
// "Self-attention does not need O(n^2) memory"; its backward: Dao et al. 2022, "FlashAttention".
namespace linattn {

extern const Mixer k_softmax;

// ---- The definition, in float64. Nobody may optimise it. ----

namespace softmax_ref {

inline MixerDims CheckDoubles(const MixerInputs& in) {
  Check(in.q.dtype == DType::kF64, "softmax", "q must be F64 for the reference, but is {}",
        NameOf(in.q.dtype));
  return CheckInputs(k_softmax, in);
}

inline bool Sees(const MixerOptions& options, int64_t t, int64_t T, int64_t s, int64_t S) {
  const int64_t last = t + S - T;
  return !options.causal || (s <= last && (options.window == 0 || s > last - options.window));
}

inline double Scale(const MixerInputs& in, const MixerDims& dims) {
  return in.options.scale != 0 ? in.options.scale : 1 / std::sqrt(static_cast<double>(dims.K));
}

inline double Dot(const double* a, const double* b, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

inline void Fill(const Array& a, double value) {
  if (!a.present()) return;
  for (int64_t i = 0; i < a.shape[0]; ++i)
    for (int64_t j = 0; j < a.shape[1]; ++j)
      for (int64_t k = 0; k < a.shape[2]; ++k)
        for (int64_t l = 0; l < (a.rank == 4 ? a.shape[3] : 1); ++l)
          *a.At<double>(i, j, k, l) = value;
}

// One query's probabilities over the S keys of its sequence; returns l.
inline double Probabilities(const MixerInputs& in, const MixerDims& dims, const TokenList& queries,
                            const TokenList& keys, int64_t i, int64_t h, std::vector<double>& p) {
  const double* q = in.q.At<double>(queries.row, queries[i], h);
  const int64_t S = keys.length;
  double max = -std::numeric_limits<double>::infinity(), sum = 0;
  p.assign(S, max);
  for (int64_t s = 0; s < S; ++s) {
    if (!Sees(in.options, i, queries.length, s, S)) continue;
    const double* k = in.k.At<double>(keys.row, keys[s], h / (dims.H / dims.HV));
    p[s] = Scale(in, dims) * Dot(q, k, dims.K);
    max = std::max(max, p[s]);
  }
  for (double& x : p) sum += x = std::isinf(x) ? 0 : std::exp(x - max);
  for (double& x : p) x = sum > 0 ? x / sum : 0;
  return max + std::log(sum);
}

inline void Forward(const MixerInputs& in, const MixerOutputs& out) {
  const MixerDims dims = CheckDoubles(in);
  const Sequences sequences = ResolveSegments(in, dims);
  Fill(out.o, 0);
  Fill(out.norm, -std::numeric_limits<double>::infinity());
  std::vector<double> p;
  for (int64_t n = 0; n < dims.N; ++n) {
    const TokenList &queries = sequences.queries[n], &keys = sequences.keys[n];
    for (int64_t i = 0; i < queries.length; ++i) {
      for (int64_t h = 0; h < dims.H; ++h) {
        const double l = Probabilities(in, dims, queries, keys, i, h, p);
        if (out.norm.present()) *out.norm.At<double>(queries.row, queries[i], h) = l;
        double* o = out.o.At<double>(queries.row, queries[i], h);
        for (int64_t s = 0; s < keys.length; ++s) {
          if (p[s] == 0) continue;
          const double* v = in.v.At<double>(keys.row, keys[s], h / (dims.H / dims.HV));
          for (int64_t c = 0; c < dims.V; ++c) o[c] += p[s] * v[c];
        }
      }
    }
  }
}

// d_p = d_o . v;  d_x = p (d_p - sum_s p d_p), the gradient of the scaled score;  d_q = scale sum_s
// d_x k; d_k = scale sum_t d_x q;  d_v = sum_t p d_o.
inline void Backward(const MixerInputs& in, const MixerOutputs&, const MixerGradients& grad) {
  const MixerDims dims = CheckDoubles(in);
  const Sequences sequences = ResolveSegments(in, dims);
  for (const Array& d : {grad.d_q, grad.d_k, grad.d_v}) Fill(d, 0);
  if (!grad.d_o.present()) return;
  std::vector<double> p, d_p;
  for (int64_t n = 0; n < dims.N; ++n) {
    const TokenList &queries = sequences.queries[n], &keys = sequences.keys[n];
    const int64_t row = queries.row, k_row = keys.row;
    for (int64_t i = 0; i < queries.length; ++i) {
      for (int64_t h = 0; h < dims.H; ++h) {
        const int64_t kv = h / (dims.H / dims.HV);
        Probabilities(in, dims, queries, keys, i, h, p);
        const double* q = in.q.At<double>(row, queries[i], h);
        const double* d_o = grad.d_o.At<double>(row, queries[i], h);
        d_p.assign(keys.length, 0);
        for (int64_t s = 0; s < keys.length; ++s)
          if (p[s] != 0) d_p[s] = Dot(d_o, in.v.At<double>(k_row, keys[s], kv), dims.V);
        const double mean = Dot(p.data(), d_p.data(), keys.length);
        for (int64_t s = 0; s < keys.length; ++s) {
          if (p[s] == 0) continue;
          const double d_x = Scale(in, dims) * p[s] * (d_p[s] - mean);
          const double* k = in.k.At<double>(k_row, keys[s], kv);
          for (int64_t c = 0; c < dims.K; ++c) {
            if (grad.d_q.present()) grad.d_q.At<double>(row, queries[i], h)[c] += d_x * k[c];
            if (grad.d_k.present()) grad.d_k.At<double>(k_row, keys[s], kv)[c] += d_x * q[c];
          }
          for (int64_t c = 0; c < dims.V && grad.d_v.present(); ++c)
            grad.d_v.At<double>(k_row, keys[s], kv)[c] += p[s] * d_o[c];
        }
      }
    }
  }
}

}  // namespace softmax_ref
}  // namespace linattn
