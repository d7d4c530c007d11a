// The chunkwise forward of the state mixers, equations (4) to (8) and (41) to (46) of
// docs/mixers.md. Included once a SIMD target, inside foreach_target's loop.
#if defined(LINATTN_KERNELS_CHUNK_FORWARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LINATTN_KERNELS_CHUNK_FORWARD_INL_H_
#undef LINATTN_KERNELS_CHUNK_FORWARD_INL_H_
#else
#define LINATTN_KERNELS_CHUNK_FORWARD_INL_H_
#endif

#include "kernels/chunk-inl.h"
#include "kernels/normaliser.h"

HWY_BEFORE_NAMESPACE();
namespace linattn {
namespace HWY_NAMESPACE {

// S and z of the task's value heads: from S0, z0, or zero.
inline void LoadStates(const HeadTask& task, const ForwardScratch& w) {
  const MixerInputs& in = task.call.in;
  const ChunkShape& s = task.call.shape;
  float* S = w.S;
  for (int64_t g = 0; g < s.G; ++g) {
    const int64_t head = task.value_head(g);
    for (int64_t f = 0; f < s.F; ++f, S += s.V) {
      if (in.S0.present())
        std::copy_n(in.S0.At<float>(task.sequence, head, f), s.V, S);
      else
        std::fill_n(S, s.V, 0.0f);
    }
    if (s.normalised) {
      if (in.z0.present())
        std::copy_n(in.z0.At<float>(task.sequence, head), s.F, w.z + g * s.F);
      else
        std::fill_n(w.z + g * s.F, s.F, 0.0f);
    }
  }
}

// The reverse, for S [G,F,V] -> to_S [N,HV,F,V] and z [G,F] -> to_z [N,HV,F]; absent ones are
// skipped.
inline void StoreStates(const HeadTask& task, const float* S, const float* z, const Array& to_S,
                        const Array& to_z) {
  const ChunkShape& s = task.call.shape;
  for (int64_t g = 0; g < s.G; ++g) {
    const int64_t head = task.value_head(g);
    for (int64_t f = 0; f < s.F && to_S.present(); ++f)
      std::copy_n(S + (g * s.F + f) * s.V, s.V, to_S.At<float>(task.sequence, head, f));
    if (to_z.present()) std::copy_n(z + g * s.F, s.F, to_z.At<float>(task.sequence, head));
  }
}

// What the products below read of value head g, once LoadWrites and LoadReads have run: queries and
// keys as the state sees them, the triangles, and what is written. With decays they are the value
// head's own, else those of its key head.
struct HeadView {
  const float *Q, *K, *A, *B, *U;
};
template <class P>
HeadView View(const ForwardScratch& w) {
  const float* writes = P::kDelta ? w.U : w.V;
  if constexpr (P::kDecays) return {w.DQ, w.DK, w.DA, w.DB, writes};
  return {w.Q, w.K, w.A, w.B, writes};
}

// KT and, for the delta rule, B = tril(K K^T) of a key head (eq. 42). Decays of one factor a
// channel cannot be put on afterwards: then the triangles are made by DecayScores.
template <class P>
void ScoreKeys(const ChunkShape& s, const ForwardScratch& w, int64_t n) {
  if constexpr (!P::kPerChannel) Transpose({w.K, n, s.F, s.F}, w.KT, s.C);
  if constexpr (!P::kPerChannel && P::kDelta) {
    LowerProduct(n, s.F, w.K, w.KT, s.C, w.B);
    MaskUpper(n, s.C, nullptr, w.B);
  }
}

// A = tril(Q K^T) of a key head (eq. 4), after ScoreKeys.
template <class P>
void ScoreQueries(const ChunkShape& s, const ForwardScratch& w, int64_t n) {
  if constexpr (!P::kPerChannel) {
    LowerProduct(n, s.F, w.Q, w.KT, s.C, w.A);
    MaskUpper(n, s.C, nullptr, w.A);
  }
}

// decayed [n,C] = the triangle of x [n,F] with K under value head g's decays; plain: without (eq.
// 42).
template <class P>
void DecayScores(const ChunkShape& s, const ForwardScratch& w, int64_t n, const float* x,
                 const float* plain, float* decayed) {
  if constexpr (P::kPerChannel) DecayedProduct({x, n, s.F, s.F}, w.K, w.a, s.C, decayed);
  if constexpr (P::kDecay == Decay::kScalar) Multiply(n * s.C, plain, w.M, decayed);
}

template <class P>
void LoadDecays(const HeadTask& task, const ForwardScratch& w, int64_t begin, int64_t n,
                int64_t g) {
  const ChunkShape& s = task.call.shape;
  LoadRows(task.V(task.call.in.g, g), begin, n, w.a);
  FillDecays({n, s.D, w.a, w.enter, w.leave, w.pass});
  if constexpr (P::kDecay == Decay::kScalar) FillDecayTriangle(n, w.a, s.C, w.M);
  DecayRows<P::kDecay>({w.K, n, s.F, s.F}, 1, w.leave, w.DK);
}

// What the delta rule needs of beta, keys and decays alone.
template <class P>
void LoadCorrections(const HeadTask& task, const ForwardScratch& w, int64_t begin, int64_t n,
                     int64_t g) {
  const ChunkShape& s = task.call.shape;
  LoadRows(task.V(task.call.in.beta, g), begin, n, w.beta);
  DecayScores<P>(s, w, n, w.K, w.B, w.DB);
  DecayRows<P::kDecay>({w.K, n, s.F, s.F}, -1, w.enter, w.NK);
}

// U: what the delta rule writes instead of V, given the state before the chunk (eq. 45).
template <class P>
void CorrectWrites(const HeadTask& task, const ForwardScratch& w, int64_t begin, int64_t n,
                   int64_t g) {
  const ChunkShape& s = task.call.shape;
  LoadCorrections<P>(task, w, begin, n, g);
  std::copy_n(w.V, n * s.V, w.E);
  Gemm({n, s.V, s.F}, {w.NK, s.F, 1}, {w.S + g * s.F * s.V, s.V}, {w.E, s.V, true});
  SolveWrites({n, s.V, s.C, View<P>(w).B, w.beta}, w.E, w.U);
}

// Of value head g: V, decays, keys and writes.
template <class P>
void LoadWrites(const HeadTask& task, const ForwardScratch& w, int64_t begin, int64_t n,
                int64_t g) {
  LoadRows(task.V(task.call.in.v, g), begin, n, w.V);
  if constexpr (P::kDecays) LoadDecays<P>(task, w, begin, n, g);
  if constexpr (P::kDelta) CorrectWrites<P>(task, w, begin, n, g);
}

// Its queries and their triangle, after LoadWrites.
template <class P>
void LoadReads(const ChunkShape& s, const ForwardScratch& w, int64_t n) {
  if constexpr (P::kDecays) {
    DecayRows<P::kDecay>({w.Q, n, s.F, s.F}, 1, w.enter, w.DQ);
    DecayScores<P>(s, w, n, w.Q, w.A, w.DA);
  }
}

// S <- pass S + K^T U, z <- pass z + sum of the rows of K (eq. 7, 44).
template <class P>
HWY_INLINE void WriteState(const ChunkShape& s, const ForwardScratch& w, int64_t n, int64_t g) {
  const int64_t memory = g * s.F * s.V;
  float* S = w.next_S + memory;
  DecayState<P::kDecay>(s.F, s.V, w.pass, w.S + memory, S);
  Gemm({s.F, s.V, n}, {View<P>(w).K, 1, s.F}, {View<P>(w).U, s.V}, {S, s.V, true});
  if (s.normalised) {
    float* z = w.next_z + g * s.F;
    DecayNormaliser<P::kDecay>(s.F, w.pass, w.z + g * s.F, z);
    AddRows(View<P>(w).K, n, s.F, z);
  }
}

// O = Q S: what the tokens in scratch read from the state before their chunk (eq. 5, 43).
template <class P>
HWY_INLINE void ReadState(const ChunkShape& s, const ForwardScratch& w, int64_t n, int64_t g) {
  Gemm({n, s.V, s.F}, {View<P>(w).Q, s.F, 1}, {w.S + g * s.F * s.V, s.V}, {w.O, s.V});
}

// den = Q z + row sums of A + eps; A may be null (eq. 6).
template <class P>
HWY_INLINE void ReadNormaliser(const ChunkCall& call, const ForwardScratch& w, const float* A,
                               int64_t n, int64_t g) {
  if (call.shape.normalised) {
    const int64_t F = call.shape.F, C = call.shape.C;
    const float* z = w.z + g * F;
    for (int64_t i = 0; i < n; ++i) {
      FloatVector sum = hn::Zero(FloatTag());
      const float *q = View<P>(w).Q + i * F, *row = A ? A + i * C : nullptr;
      ForEachVector(F, [&](auto load, auto, int64_t f)
                           HWY_ATTR { sum = hn::MulAdd(load(q + f), load(z + f), sum); });
      if (row)
        ForEachVector(
            n, [&](auto load, auto, int64_t j) HWY_ATTR { sum = hn::Add(sum, load(row + j)); });
      w.den[i] = hn::GetLane(hn::SumOfLanes(FloatTag(), sum)) + call.eps;
    }
  }
}

// Divides O by den (0/0 is 0; den is 1 where it is not used) and writes both out.
inline void StoreOutputs(const HeadTask& task, const ForwardScratch& w, int64_t begin, int64_t n,
                         int64_t g) {
  const ChunkShape& s = task.call.shape;
  const Array& norm = task.call.out.norm;
  for (int64_t i = 0; i < n; ++i) {
    const float den = s.normalised ? w.den[i] : 1.0f;
    if (s.normalised) Scale(InverseNormaliser(den), w.O + i * s.V, s.V);
    if (norm.present() && task.call.mixer.normalised)
      *norm.At<float>(task.queries.row, task.queries[begin + i], task.value_head(g)) = den;
  }
  StoreRows(task.O(task.call.out.o, g), begin, n, w.O);
}

template <class P>
void CausalChunk(const HeadTask& task, const ForwardScratch& w, int64_t begin) {
  const ChunkCall& call = task.call;
  const ChunkShape& s = call.shape;
  const int64_t n = std::min(s.C, task.keys.length - begin);
  LoadQueries(task, w, begin, n);
  LoadKeys(task, w, begin, n);
  ScoreKeys<P>(s, w, n);
  ScoreQueries<P>(s, w, n);
  PrefetchRows(task.Q(call.in.q), begin + s.C, s.C);
  for (int64_t g = 0; g < s.G; ++g) {
    LoadWrites<P>(task, w, begin, n, g);
    LoadReads<P>(s, w, n);
    ReadState<P>(s, w, n, g);
    PrefetchRows(task.V(call.in.v, g), begin + s.C, s.C);
    LowerTimes(n, s.V, View<P>(w).A, s.C, View<P>(w).U, {w.O, s.V, true});
    ReadNormaliser<P>(call, w, View<P>(w).A, n, g);
    PrefetchRows(task.O(call.out.o, g), begin + s.C, s.C);
    WriteState<P>(s, w, n, g);
    if (g == 0) PrefetchRows(task.K(call.in.k), begin + s.C, s.C);
    StoreOutputs(task, w, begin, n, g);
  }
}

// Not causal: keys only write, and every query reads the state after the last key (eq. 8).
template <class P>
void KeyChunk(const HeadTask& task, const ForwardScratch& w, int64_t begin) {
  const ChunkCall& call = task.call;
  const int64_t n = std::min(call.shape.C, task.keys.length - begin);
  LoadKeys(task, w, begin, n);
  for (int64_t g = 0; g < call.shape.G; ++g) {
    LoadRows(task.V(call.in.v, g), begin, n, w.V);
    WriteState<P>(call.shape, w, n, g);
  }
}

template <class P>
void QueryChunk(const HeadTask& task, const ForwardScratch& w, int64_t begin) {
  const int64_t n = std::min(task.call.shape.C, task.queries.length - begin);
  LoadQueries(task, w, begin, n);
  for (int64_t g = 0; g < task.call.shape.G; ++g) {
    ReadState<P>(task.call.shape, w, n, g);
    ReadNormaliser<P>(task.call, w, nullptr, n, g);
    StoreOutputs(task, w, begin, n, g);
  }
}

template <class P>
void ForwardTask(const Task& task, const ForwardScratch& w) {
  using Chunk = void (*)(const HeadTask&, const ForwardScratch&, int64_t);
  const auto walk = [&](int64_t length, Chunk chunk) {
    for (int64_t begin = 0; begin < length; begin += task.call.shape.C)
      task.ForEachHead(
          w, [=](const HeadTask& head, const ForwardScratch& share) { chunk(head, share, begin); });
  };
  task.ForEachHead(w, LoadStates);
  if (P::kKeepsStates || task.call.in.options.causal) {
    walk(task.keys.length, CausalChunk<P>);
  } else if constexpr (!P::kKeepsStates) {
    walk(task.keys.length, KeyChunk<P>);
    walk(task.queries.length, QueryChunk<P>);
  }
  task.ForEachHead(w, [&](const HeadTask& head, const ForwardScratch& share) {
    StoreStates(head, share.S, share.z, task.call.out.ST,
                task.call.shape.normalised ? task.call.out.zT : Array());
  });
}

template <class P>
void ForwardTasks(const ChunkCall& call, const Sequences& sequences, ThreadScratch scratch) {
  ForEachTask(call, sequences, scratch, [](const Task& task, float* block) {
    Pieces pieces(block);
    ForwardTask<P>(task, ForwardScratch(task.call.shape, pieces));
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace linattn
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
