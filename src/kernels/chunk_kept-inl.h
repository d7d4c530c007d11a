// The chunkwise backward with decays or the delta rule, equations (47) to (53) of docs/mixers.md:
// one sweep back in time, each chunk from the state before it, which is kept. Included once a SIMD
// target, inside foreach_target's loop.
#if defined(LINATTN_KERNELS_CHUNK_KEPT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LINATTN_KERNELS_CHUNK_KEPT_INL_H_
#undef LINATTN_KERNELS_CHUNK_KEPT_INL_H_
#else
#define LINATTN_KERNELS_CHUNK_KEPT_INL_H_
#endif

#include "kernels/chunk_gradients-inl.h"

HWY_BEFORE_NAMESPACE();
namespace linattn {
namespace HWY_NAMESPACE {

// dV, the gradient of what was written, through the state and the tokens of its own chunk (eq. 47);
// for the delta rule then that of v, and d_beta (eq. 48).
template <class P>
void WriteGradients(const ChunkShape& s, const BackwardScratch& w, int64_t n, int64_t g) {
  Gemm({n, s.V, s.F}, {View<P>(w).K, s.F, 1}, {w.L + g * s.F * s.V, s.V}, {w.dV, s.V});
  Gemm({n, s.V, n}, {View<P>(w).A, 1, s.C}, {w.dN, s.V}, {w.dV, s.V, true});
  if constexpr (P::kDelta)
    SolveWritesBack({n, s.V, s.C, View<P>(w).B, w.beta}, w.E, w.dV, w.d_beta);
}

// dP [n,C] is the gradient of a triangle of x with K, but for its sign.
struct TriangleGradient {
  float sign;
  const float *x, *triangle;  // [n,F]; [n,C], with decays
  float *dx, *sum;            // [n,F]; [n,C] over the value heads, without decays
};

// A factor a channel: dx, dK and dg at once. Else `sum` gathers dP without decays for all value
// heads, and P the pairs that gates lie between.
template <class P>
void AddTriangleGradient(const TriangleGradient& of, const ChunkShape& s, const BackwardScratch& w,
                         int64_t n, int64_t g) {
  const int64_t size = n * s.C;
  if (of.sign != 1) Scale(of.sign, w.dP, size);
  if constexpr (P::kPerChannel) {
    AddDecayedProductGradient({.dA = w.dP,
                               .x = of.x,
                               .y = w.K,
                               .a = w.a,
                               .dx = of.dx,
                               .dy = w.dK,
                               .dg = w.dg,
                               .n = n,
                               .F = s.F,
                               .C = s.C});
  } else {
    if constexpr (P::kDecays) {
      AddProduct(size, w.dP, of.triangle, w.P);
      Multiply(size, w.dP, w.M, w.dP);
    }
    if (g == 0) std::fill_n(of.sum, size, 0.0f);
    AddScaled(1, w.dP, size, of.sum);
  }
}

// Both triangles of value head g (eq. 49). VT [V,C] is the transpose of U.
template <class P>
void AddTriangleGradients(const ChunkShape& s, const BackwardScratch& w, int64_t n, int64_t g) {
  const auto product = [&](const float* x, const float* shift) {
    LowerProduct(n, s.V, x, w.VT, s.C, w.dP);
    MaskUpper(n, s.C, shift, w.dP);
  };
  if constexpr (P::kDecays) std::fill_n(w.P, n * s.C, 0.0f);
  product(w.dN, s.normalised ? w.dd : nullptr);
  AddTriangleGradient<P>({1, w.Q, View<P>(w).A, w.dF, w.dA}, s, w, n, g);
  if constexpr (P::kDelta) {
    product(w.dV, nullptr);
    for (int64_t i = 0; i < n; ++i) w.dP[i * s.C + i] = 0;
    AddTriangleGradient<P>({-1, w.K, View<P>(w).B, w.dK, w.dB}, s, w, n, g);
  }
  if constexpr (P::kDecay == Decay::kScalar) AddCrossings(n, s.C, w.P, w.dg);
}

// The gradient of x [n,F], which the state sees as decayed = sign factor x. That of `decayed` is
// what stands in dFT [F,2C] from `column` on, transposed, and weight_i z through the normaliser.
struct DecayedGradient {
  float sign;
  const float *factor, *decayed;  // [n,D], [n,F]
  float *dx, *d_factor;           // [n,F], [n,D]
  int64_t column = 0;
  const float *z = nullptr, *weight = nullptr;  // [F], [n]; no weight: 1
};

template <class P>
void AddDecayedGradient(const DecayedGradient& of, const ChunkShape& s, const BackwardScratch& w,
                        int64_t n) {
  Transpose({w.dFT + of.column, s.F, n, 2 * s.C}, w.dD, s.F);
  for (int64_t i = 0; i < n && of.z; ++i)
    AddScaled(of.weight ? of.weight[i] : 1.0f, of.z, s.F, w.dD + i * s.F);
  const Block dD{w.dD, n, s.F, s.F};
  DecayRows<P::kDecay>(dD, of.sign, of.factor, of.dx, true);
  if constexpr (P::kDecays) AddGateTerms<P::kDecay>(dD, of.decayed, of.d_factor);
}

// What queries and keys get through the state before the chunk and the gradient of the one after it
// (eq. 50 to 52). dNT [V,2C] holds dN and, behind it, dV, both transposed: one product for both.
template <class P>
void AddStateReads(const ChunkShape& s, const BackwardScratch& w, int64_t n, int64_t g) {
  const int64_t memory = g * s.F * s.V, both = P::kDelta ? 2 * n : n, stride = 2 * s.C;
  const float* z = s.normalised ? w.z + g * s.F : nullptr;
  const float* l = s.normalised ? w.l + g * s.F : nullptr;
  Transpose({w.dN, n, s.V, s.V}, w.dNT, stride);
  if constexpr (P::kDelta) Transpose({w.dV, n, s.V, s.V}, w.dNT + n, stride);
  Gemm({s.F, both, s.V}, {w.S + memory, s.V, 1}, {w.dNT, stride}, {w.dFT, stride});
  AddDecayedGradient<P>({1, w.enter, w.DQ, w.dF, w.d_enter, 0, z, w.dd}, s, w, n);
  if constexpr (P::kDelta) AddDecayedGradient<P>({-1, w.enter, w.NK, w.dK, w.d_enter, n}, s, w, n);
  Gemm({s.F, n, s.V}, {w.L + memory, s.V, 1}, {w.VT, s.C}, {w.dFT, stride});
  AddDecayedGradient<P>({1, w.leave, w.DK, w.dK, w.d_leave, 0, l}, s, w, n);
}

// d_pass = pass times the state before the chunk by the gradient of the one after it, row by row
// (eq. 52).
template <class P>
void PassGradient(const ChunkShape& s, const BackwardScratch& w, int64_t g) {
  const float *S = w.S + g * s.F * s.V, *L = w.L + g * s.F * s.V;
  std::fill_n(w.d_pass, s.D, 0.0f);
  for (int64_t f = 0; f < s.F; ++f) {
    float product = Dot(S + f * s.V, L + f * s.V, s.V);
    if (s.normalised) product += w.z[g * s.F + f] * w.l[g * s.F + f];
    const int64_t d = P::kPerChannel ? f : 0;
    w.d_pass[d] += w.pass[d] * product;
  }
}

// L <- pass L + Q^T dN + NK^T dV, l <- pass l + Q^T dd (eq. 53).
template <class P>
void PassStateGradient(const ChunkShape& s, const BackwardScratch& w, int64_t n, int64_t g) {
  float *L = w.L + g * s.F * s.V, *l = w.l + g * s.F;
  const float* Q = View<P>(w).Q;
  DecayState<P::kDecay>(s.F, s.V, w.pass, L, L);
  Gemm({s.F, s.V, n}, {Q, 1, s.F}, {w.dN, s.V}, {L, s.V, true});
  if constexpr (P::kDelta) Gemm({s.F, s.V, n}, {w.NK, 1, s.F}, {w.dV, s.V}, {L, s.V, true});
  if (s.normalised) {
    DecayNormaliser<P::kDecay>(s.F, w.pass, l, l);
    for (int64_t i = 0; i < n; ++i) AddScaled(w.dd[i], Q + i * s.F, s.F, l);
  }
}

// dF, dK += what the sums dA, dB over the value heads ask of queries and keys (eq. 50, 51).
template <class P>
void FinishTriangles(const ChunkShape& s, const BackwardScratch& w, int64_t n) {
  if constexpr (!P::kPerChannel) {
    LowerTimes(n, s.F, w.dA, s.C, w.K, {w.dF, s.F, true});
    Gemm({n, s.F, n}, {w.dA, 1, s.C}, {w.Q, s.F}, {w.dK, s.F, true});
    if constexpr (P::kDelta) {
      LowerTimes(n, s.F, w.dB, s.C, w.K, {w.dK, s.F, true});
      Gemm({n, s.F, n}, {w.dB, 1, s.C}, {w.K, s.F}, {w.dK, s.F, true});
    }
  }
}

// Value head g's share of everything, and its own d_v, d_g, d_beta.
template <class P>
void GradientOfValueHead(const HeadTask& task, const MixerGradients& grad, const BackwardScratch& w,
                         int64_t begin, int64_t n, int64_t g) {
  const ChunkShape& s = task.call.shape;
  LoadWrites<P>(task, w, begin, n, g);
  LoadReads<P>(s, w, n);
  PrefetchRows(task.V(task.call.in.v, g), begin - s.C, s.C);
  LoadOutputGradients(task, grad, w, begin, n, g);
  PrefetchRows(task.O(grad.d_o, g), begin - s.C, s.C);
  std::fill_n(w.dg, n * s.D, 0.0f);
  std::fill_n(w.d_enter, n * s.D, 0.0f);
  std::fill_n(w.d_leave, n * s.D, 0.0f);
  WriteGradients<P>(s, w, n, g);
  StoreRows(task.V(grad.d_v, g), begin, n, w.dV);
  Transpose({View<P>(w).U, n, s.V, s.V}, w.VT, s.C);
  PrefetchRows(task.V(grad.d_v, g), begin - s.C, s.C);
  AddTriangleGradients<P>(s, w, n, g);
  AddStateReads<P>(s, w, n, g);
  if constexpr (P::kDelta) StoreRows(task.V(grad.d_beta, g), begin, n, w.d_beta);
  if constexpr (P::kDecays) {
    PassGradient<P>(s, w, g);
    AddGatesOfEnds(n, s.D, w.d_enter, w.d_leave, w.d_pass, w.dg);
    StoreRows(task.V(grad.d_g, g), begin, n, w.dg);
  }
  PassStateGradient<P>(s, w, n, g);
}

// From w.S and w.z, the state before the chunk.
template <class P>
void GradientChunk(const HeadTask& task, const MixerGradients& grad, const BackwardScratch& w,
                   int64_t begin) {
  const ChunkCall& call = task.call;
  const ChunkShape& s = call.shape;
  const int64_t n = std::min(s.C, task.keys.length - begin);
  LoadQueries(task, w, begin, n);
  PrefetchRows(task.Q(call.in.q), begin - s.C, s.C);
  LoadKeys(task, w, begin, n);
  PrefetchRows(task.K(call.in.k), begin - s.C, s.C);
  ScoreKeys<P>(s, w, n);
  ScoreQueries<P>(s, w, n);
  std::fill_n(w.dF, n * s.F, 0.0f);
  std::fill_n(w.dK, n * s.F, 0.0f);
  for (int64_t g = 0; g < s.G; ++g) GradientOfValueHead<P>(task, grad, w, begin, n, g);
  PrefetchRows(task.K(grad.d_k), begin - s.C, s.C);
  FinishTriangles<P>(s, w, n);
  PrefetchRows(task.Q(grad.d_q), begin - s.C, s.C);
  StoreKeyGradients(task, grad, w.dK, w, begin, n);
  StoreQueryGradients(task, grad, w, begin, n);
}

// From w.S and w.z to w.next_S and w.next_z; then(g) after value head g's share, while its decays
// are in scratch.
template <class P, class Then>
void RecallChunk(const HeadTask& task, const ForwardScratch& w, int64_t begin, const Then& then) {
  const ChunkShape& s = task.call.shape;
  const int64_t n = std::min(s.C, task.keys.length - begin);
  LoadKeys(task, w, begin, n);
  PrefetchRows(task.K(task.call.in.k), begin + s.C, s.C);
  if constexpr (P::kDelta) ScoreKeys<P>(s, w, n);
  for (int64_t g = 0; g < s.G; ++g) {
    LoadWrites<P>(task, w, begin, n, g);
    PrefetchRows(task.V(task.call.in.v, g), begin + s.C, s.C);
    WriteState<P>(s, w, n, g);
    then(g);
  }
}

// Forward once to keep the state before each segment of s.kept chunks; then, from the last segment
// to the first, forward again to keep the state before each of its chunks, and back through them.
template <class P>
void SweepFromKeptStates(const Task& task, const MixerGradients& grad, const BackwardScratch& w) {
  const ChunkShape& s = task.call.shape;
  const int64_t chunks = (task.keys.length + s.C - 1) / s.C, states = s.states();
  const auto recall = [&](int64_t c, float* from, float* to) {
    BackwardScratch at = w;
    at.SetStates(s, from, to);
    task.ForEachHead(at, [&](const HeadTask& head, const BackwardScratch& share) {
      RecallChunk<P>(head, share, c * s.C, [](int64_t) {});
    });
  };
  const auto back = [&](int64_t c, float* before) {
    BackwardScratch at = w;
    at.SetStates(s, before, before);
    task.ForEachHead(at, [&](const HeadTask& head, const BackwardScratch& share) {
      GradientChunk<P>(head, grad, share, c * s.C);
    });
  };
  const int64_t last = LastChunk(chunks, s.kept);  // first chunk of the last segment
  task.ForEachHead(w, LoadStates);
  for (int64_t c = 0; c <= last; ++c) {
    if (c % s.kept == 0) std::copy_n(w.S, states, w.segment + c / s.kept * states);
    if (c < last) recall(c, w.S, w.S);
  }
  for (int64_t first = last; first >= 0; first -= s.kept) {
    const int64_t end = std::min(first + s.kept, chunks);
    std::copy_n(w.segment + first / s.kept * states, states, w.chunk);
    const auto kept = [&](int64_t c) { return w.chunk + (c - first) * states; };
    for (int64_t c = first; c + 1 < end; ++c) recall(c, kept(c), kept(c + 1));
    for (int64_t c = end - 1; c >= first; --c) back(c, kept(c));
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace linattn
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
