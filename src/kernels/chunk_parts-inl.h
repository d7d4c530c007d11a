// What a part of a sequence does to the state, and to the gradient of the state, before either is
// known: equations (54) to (57) of docs/mixers.md. Included once a SIMD target, inside
// foreach_target's loop.
#if defined(LINATTN_KERNELS_CHUNK_PARTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LINATTN_KERNELS_CHUNK_PARTS_INL_H_
#undef LINATTN_KERNELS_CHUNK_PARTS_INL_H_
#else
#define LINATTN_KERNELS_CHUNK_PARTS_INL_H_
#endif

#include "kernels/chunk_kept-inl.h"
#include "kernels/chunk_parts.h"

HWY_BEFORE_NAMESPACE();
namespace linattn {
namespace HWY_NAMESPACE {

template <class P>
void SumPart(const HeadTask& task, const ForwardScratch& w, float* decay) {
  const ChunkShape& s = task.call.shape;
  LoadStates(task, w);
  std::fill_n(decay, s.G * s.D, 1.0f);
  for (int64_t begin = 0; begin < task.keys.length; begin += s.C)
    RecallChunk<P>(task, w, begin,
                   [&](int64_t g) { Multiply(s.D, w.pass, decay + g * s.D, decay + g * s.D); });
  StoreStates(task, w.S, w.z, task.call.out.ST, s.normalised ? task.call.out.zT : Array());
}

// The gradient L, l of the state before a chunk from that after it, by what the chunk's outputs
// ask.
template <class P>
void SumGradientChunk(const HeadTask& task, const MixerGradients& grad, const BackwardScratch& w,
                      int64_t begin) {
  const ChunkShape& s = task.call.shape;
  const int64_t n = std::min(s.C, task.keys.length - begin);
  LoadQueries(task, w, begin, n);
  if constexpr (P::kKeepsStates) LoadKeys(task, w, begin, n);
  if constexpr (P::kDelta) ScoreKeys<P>(s, w, n), ScoreQueries<P>(s, w, n);
  for (int64_t g = 0; g < s.G; ++g) {
    if constexpr (P::kDecays) {
      LoadDecays<P>(task, w, begin, n, g);
      DecayRows<P::kDecay>({w.Q, n, s.F, s.F}, 1, w.enter, w.DQ);
    }
    LoadOutputGradients(task, grad, w, begin, n, g);
    if constexpr (P::kDelta) {
      LoadCorrections<P>(task, w, begin, n, g);
      DecayScores<P>(s, w, n, w.Q, w.A, w.DA);
      std::fill_n(w.E, n * s.V, 0.0f);  // for d_beta, which nobody reads
      WriteGradients<P>(s, w, n, g);
    }
    PassStateGradient<P>(s, w, n, g);
  }
}

template <class P>
void SumPartGradient(const HeadTask& task, const MixerGradients& grad, const BackwardScratch& w) {
  const ChunkShape& s = task.call.shape;
  LoadStateGradients(task, grad, w);
  for (int64_t begin = LastChunk(task.keys.length, s.C); begin >= 0; begin -= s.C)
    SumGradientChunk<P>(task, grad, w, begin);
  StoreStates(task, w.L, w.l, grad.d_S0, s.normalised ? grad.d_z0 : Array());
}

// to = T from + sum for the states [F,V] of part m and value head h; back: T^T (eq. 55, 57).
inline void PassPart(const PartStates& p, int64_t at, bool back, const float* from,
                     const float* sum, float* to) {
  const int64_t F = p.F, V = p.V;
  std::copy_n(sum, F * V, to);
  if (p.matrix) {
    const float* T = p.matrix + at * F * F;
    Gemm({F, V, F}, {T, back ? 1 : F, back ? F : 1}, {from, V}, {to, V, true});
    return;
  }
  for (int64_t f = 0; f < F; ++f) {
    const float decay = p.D == 0 ? 1.0f : p.decay[at * p.D + (p.D == 1 ? 0 : f)];
    AddScaled(decay, from + f * V, V, to + f * V);
  }
}

inline void PassPartNormaliser(const PartStates& p, int64_t at, const float* from, const float* sum,
                               float* to) {
  for (int64_t f = 0; f < p.F; ++f)
    to[f] = sum[f] + (p.D == 0 ? 1.0f : p.decay[at * p.D + (p.D == 1 ? 0 : f)]) * from[f];
}

// Value head h of the parts [first, end).
inline void ScanHead(const PartStates& p, int64_t first, int64_t end, int64_t h, bool back) {
  float *states = back ? p.L : p.S, *normalisers = back ? p.l : p.z;
  for (int64_t i = 0; i + 1 < end - first; ++i) {
    const int64_t m = back ? end - 1 - i : first + i, next = back ? m - 1 : m + 1;
    const int64_t from = m * p.HV + h, to = next * p.HV + h, FV = p.F * p.V;
    PassPart(p, from, back, states + from * FV, p.end_S + from * FV, states + to * FV);
    PassPartNormaliser(p, from, normalisers + from * p.F, p.end_z + from * p.F,
                       normalisers + to * p.F);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace linattn
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
