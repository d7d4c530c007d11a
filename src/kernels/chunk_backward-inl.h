// The chunkwise backward of the state mixers, equations (9) to (18) of docs/mixers.md: no state is
// kept from the forward. Included once a SIMD target, inside foreach_target's loop.
//
// With o = n / den, n_i = S_i^T Q_i, den_i = Q_i . z_i + eps (Q = scale phi(q)), the gradients of n
// and den are dN = d_o / den and dd = -(d_o . o) / den. A sweep forward in time rebuilds S and
// gives d_q; a sweep backward carries L = d_S and l = d_z, starting from d_ST and d_zT, and gives
// d_k and d_v. Both see dA = tril(dN V^T + dd).
#if defined(LINATTN_KERNELS_CHUNK_BACKWARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LINATTN_KERNELS_CHUNK_BACKWARD_INL_H_
#undef LINATTN_KERNELS_CHUNK_BACKWARD_INL_H_
#else
#define LINATTN_KERNELS_CHUNK_BACKWARD_INL_H_
#endif

#include "kernels/chunk_gradients-inl.h"
#include "kernels/chunk_kept-inl.h"

HWY_BEFORE_NAMESPACE();
namespace linattn {
namespace HWY_NAMESPACE {

// ST [G,V,F] and z [G,F]: the initial state, transposed as the forward sweep reads it.
inline void LoadTransposedStates(const HeadTask& task, const BackwardScratch& w) {
  const MixerInputs& in = task.call.in;
  const ChunkShape& s = task.call.shape;
  for (int64_t g = 0; g < s.G; ++g) {
    const int64_t n = task.sequence, head = task.value_head(g);
    float* ST = w.ST + g * s.V * s.F;
    std::fill_n(ST, s.V * s.F, 0.0f);
    for (int64_t f = 0; f < s.F && in.S0.present(); ++f)
      for (int64_t v = 0; v < s.V; ++v) ST[v * s.F + f] = *in.S0.At<float>(n, head, f, v);
    if (s.normalised) {
      std::fill_n(w.z + g * s.F, s.F, 0.0f);
      if (in.z0.present()) std::copy_n(in.z0.At<float>(n, head), s.F, w.z + g * s.F);
    }
  }
}

// Sums dA [n,n] and dd over the value heads; dA is still to be masked and shifted by dd_sum (eq.
// 14).
inline void AddScoreGradient(const ChunkShape& s, const BackwardScratch& w, int64_t n, int64_t g) {
  LowerProduct(n, s.V, w.dN, w.VT, s.C, w.dA, g > 0);
  for (int64_t i = 0; i < n; ++i) w.dd_sum[i] = (g > 0 ? w.dd_sum[i] : 0.0f) + w.dd[i];
}

// dF (+)= dN S^T + dd z: the gradient of the queries through the state before their chunk (eq. 15).
inline void AddQueryGradient(const ChunkShape& s, const BackwardScratch& w, int64_t n, int64_t g) {
  Gemm({n, s.F, s.V}, {w.dN, s.V, 1}, {w.ST + g * s.V * s.F, s.F}, {w.dF, s.F, g > 0});
  if (s.normalised)
    for (int64_t i = 0; i < n; ++i) AddScaled(w.dd[i], w.z + g * s.F, s.F, w.dF + i * s.F);
}

// S^T += V^T K, z += sum of K's rows.
inline void WriteTransposedState(const ChunkShape& s, const BackwardScratch& w, int64_t n,
                                 int64_t g) {
  Gemm({s.V, s.F, n}, {w.V, 1, s.V}, {w.K, s.F}, {w.ST + g * s.V * s.F, s.F, true});
  if (s.normalised) AddRows(w.K, n, s.F, w.z + g * s.F);
}

// L += Q^T dN, l += dd^T Q: what reading the state asks of it (eq. 18). Q carries the scale.
inline void AddStateGradient(const ChunkShape& s, const BackwardScratch& w, int64_t n, int64_t g) {
  Gemm({s.F, s.V, n}, {w.Q, 1, s.F}, {w.dN, s.V}, {w.L + g * s.F * s.V, s.V, true});
  if (s.normalised)
    for (int64_t i = 0; i < n; ++i) AddScaled(w.dd[i], w.Q + i * s.F, s.F, w.l + g * s.F);
}

// dFT [F,C] (+)= L V^T, the gradient of the keys through the state after their chunk, and dV = K L
// (eq. 16, 17).
inline void ReadStateGradient(const ChunkShape& s, const BackwardScratch& w, int64_t n, int64_t g) {
  const float* L = w.L + g * s.F * s.V;
  Gemm({s.F, n, s.V}, {L, s.V, 1}, {w.VT, s.C}, {w.dFT, s.C, g > 0});
  Gemm({n, s.V, s.F}, {w.K, s.F, 1}, {L, s.V}, {w.dV, s.V});
}

// dF [n,F] = transpose of dFT, plus l of every value head.
inline void FinishKeyGradient(const ChunkShape& s, const BackwardScratch& w, int64_t n) {
  Transpose({w.dFT, s.F, n, s.C}, w.dF, s.F);
  if (s.normalised)
    for (int64_t i = 0; i < n; ++i) AddScaled(1, w.l_sum, s.F, w.dF + i * s.F);
}

// l_sum [F] = l summed over the value heads, as it stands after the chunk.
inline void SumNormaliserGradients(const ChunkShape& s, const BackwardScratch& w) {
  if (s.normalised) {
    std::fill_n(w.l_sum, s.F, 0.0f);
    for (int64_t g = 0; g < s.G; ++g) AddScaled(1, w.l + g * s.F, s.F, w.l_sum);
  }
}

inline void LoadValues(const HeadTask& task, const BackwardScratch& w, int64_t begin, int64_t n,
                       int64_t g) {
  const ChunkShape& s = task.call.shape;
  LoadRows(task.V(task.call.in.v, g), begin, n, w.V);
  Transpose({w.V, n, s.V, s.V}, w.VT, s.C);
}

// Forward in time, causal: d_q.
inline void ForwardSweepChunk(const HeadTask& task, const MixerGradients& grad,
                              const BackwardScratch& w, int64_t begin) {
  const ChunkCall& call = task.call;
  const ChunkShape& s = call.shape;
  const int64_t n = std::min(s.C, task.queries.length - begin);
  LoadKeys(task, w, begin, n);
  for (int64_t g = 0; g < s.G; ++g) {
    LoadValues(task, w, begin, n, g);
    LoadOutputGradients(task, grad, w, begin, n, g);
    AddScoreGradient(s, w, n, g);
    PrefetchRows(task.V(call.in.v, g), begin + s.C, s.C);
    AddQueryGradient(s, w, n, g);
    PrefetchRows(task.O(grad.d_o, g), begin + s.C, s.C);
    WriteTransposedState(s, w, n, g);
    PrefetchRows(task.O(call.out.o, g), begin + s.C, s.C);
  }
  PrefetchRows(task.K(call.in.k), begin + s.C, s.C);
  MaskUpper(n, s.C, s.normalised ? w.dd_sum : nullptr, w.dA);
  PrefetchRows(task.Q(grad.d_q), begin + s.C, s.C);
  LowerTimes(n, s.F, w.dA, s.C, w.K, {w.dF, s.F, true});
  PrefetchRows(task.Q(call.in.q), begin + s.C, s.C);
  StoreQueryGradients(task, grad, w, begin, n);
}

// Backward in time, causal: d_k, d_v, and L, l down to d_S0, d_z0.
inline void BackwardSweepChunk(const HeadTask& task, const MixerGradients& grad,
                               const BackwardScratch& w, int64_t begin) {
  const ChunkCall& call = task.call;
  const ChunkShape& s = call.shape;
  const int64_t n = std::min(s.C, task.keys.length - begin);
  LoadQueries(task, w, begin, n);
  LoadKeys(task, w, begin, n);
  Transpose({w.K, n, s.F, s.F}, w.KT, s.C);
  LowerProduct(n, s.F, w.Q, w.KT, s.C, w.A);
  MaskUpper(n, s.C, nullptr, w.A);
  SumNormaliserGradients(s, w);
  for (int64_t g = 0; g < s.G; ++g) {
    LoadValues(task, w, begin, n, g);
    LoadOutputGradients(task, grad, w, begin, n, g);
    AddScoreGradient(s, w, n, g);
    PrefetchRows(task.V(call.in.v, g), begin - s.C, s.C);
    ReadStateGradient(s, w, n, g);
    PrefetchRows(task.O(grad.d_o, g), begin - s.C, s.C);
    Gemm({n, s.V, n}, {w.A, 1, s.C}, {w.dN, s.V}, {w.dV, s.V, true});
    PrefetchRows(task.V(grad.d_v, g), begin - s.C, s.C);
    PrefetchRows(task.O(call.out.o, g), begin - s.C, s.C);
    StoreRows(task.V(grad.d_v, g), begin, n, w.dV);
    AddStateGradient(s, w, n, g);
  }
  PrefetchRows(task.Q(call.in.q), begin - s.C, s.C);
  MaskUpper(n, s.C, s.normalised ? w.dd_sum : nullptr, w.dA);
  PrefetchRows(task.K(grad.d_k), begin - s.C, s.C);
  Gemm({s.F, n, n}, {w.Q, 1, s.F}, {w.dA, s.C}, {w.dFT, s.C, true});
  PrefetchRows(task.K(call.in.k), begin - s.C, s.C);
  FinishKeyGradient(s, w, n);
  StoreKeyGradients(task, grad, w.dF, w, begin, n);
}

// Not causal, first: the state that every query read.
inline void RebuildChunk(const HeadTask& task, const MixerGradients&, const BackwardScratch& w,
                         int64_t begin) {
  const ChunkCall& call = task.call;
  const int64_t n = std::min(call.shape.C, task.keys.length - begin);
  LoadKeys(task, w, begin, n);
  for (int64_t g = 0; g < call.shape.G; ++g) {
    LoadRows(task.V(call.in.v, g), begin, n, w.V);
    WriteTransposedState(call.shape, w, n, g);
  }
}

// Then d_q, and what the queries ask of the state.
inline void QueryGradientChunk(const HeadTask& task, const MixerGradients& grad,
                               const BackwardScratch& w, int64_t begin) {
  const ChunkCall& call = task.call;
  const ChunkShape& s = call.shape;
  const int64_t n = std::min(s.C, task.queries.length - begin);
  LoadQueries(task, w, begin, n);
  for (int64_t g = 0; g < s.G; ++g) {
    LoadOutputGradients(task, grad, w, begin, n, g);
    AddQueryGradient(s, w, n, g);
    AddStateGradient(s, w, n, g);
  }
  StoreQueryGradients(task, grad, w, begin, n);
}

// Last: d_k and d_v.
inline void KeyGradientChunk(const HeadTask& task, const MixerGradients& grad,
                             const BackwardScratch& w, int64_t begin) {
  const ChunkCall& call = task.call;
  const ChunkShape& s = call.shape;
  const int64_t n = std::min(s.C, task.keys.length - begin);
  LoadKeys(task, w, begin, n);
  SumNormaliserGradients(s, w);
  for (int64_t g = 0; g < s.G; ++g) {
    LoadValues(task, w, begin, n, g);
    ReadStateGradient(s, w, n, g);
    StoreRows(task.V(grad.d_v, g), begin, n, w.dV);
  }
  FinishKeyGradient(s, w, n);
  StoreKeyGradients(task, grad, w.dF, w, begin, n);
}

// Without decays and delta rule.
inline void SweepTwice(const Task& task, const MixerGradients& grad, const BackwardScratch& w) {
  using Chunk = void (*)(const HeadTask&, const MixerGradients&, const BackwardScratch&, int64_t);
  const int64_t C = task.call.shape.C, T = task.queries.length, S = task.keys.length;
  const auto walk = [&](int64_t first, int64_t length, int64_t step, Chunk chunk) {
    for (int64_t begin = first; begin >= 0 && begin < length; begin += step)
      task.ForEachHead(w, [&, begin](const HeadTask& head, const BackwardScratch& share) {
        chunk(head, grad, share, begin);
      });
  };
  task.ForEachHead(w, LoadTransposedStates);
  if (task.call.in.options.causal) {
    if (grad.d_q.present()) walk(0, T, C, ForwardSweepChunk);
    walk(LastChunk(S, C), S, -C, BackwardSweepChunk);
  } else {
    if (grad.d_q.present()) walk(0, S, C, RebuildChunk);
    walk(0, T, C, QueryGradientChunk);
    walk(0, S, C, KeyGradientChunk);
  }
}

template <class P>
void BackwardTask(const Task& task, const MixerGradients& grad, const BackwardScratch& w) {
  task.ForEachHead(w, [&](const HeadTask& head, const BackwardScratch& share) {
    LoadStateGradients(head, grad, share);
  });
  if constexpr (P::kKeepsStates)
    SweepFromKeptStates<P>(task, grad, w);
  else
    SweepTwice(task, grad, w);
  task.ForEachHead(w, [&](const HeadTask& head, const BackwardScratch& share) {
    StoreStates(head, share.L, share.l, grad.d_S0,
                task.call.shape.normalised ? grad.d_z0 : Array());
  });
}

template <class P>
void BackwardTasks(const ChunkCall& call, const Sequences& sequences, const MixerGradients& grad,
                   ThreadScratch scratch) {
  ForEachTask(call, sequences, scratch, [&grad](const Task& task, float* block) {
    Pieces pieces(block);
    BackwardTask<P>(task, grad, BackwardScratch(task.call.shape, pieces));
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace linattn
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
