// What the chunkwise forward and backward of the state mixers share (docs/mixers.md derives both).
// Included once a SIMD target, inside foreach_target's loop.
//
// A task is a few key heads of one sequence, each with its G value heads; it walks its tokens C at
// a time and holds the states of its heads in scratch. Heads share nothing, so results do not
// depend on threads or tasks.
#if defined(LINATTN_KERNELS_CHUNK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LINATTN_KERNELS_CHUNK_INL_H_
#undef LINATTN_KERNELS_CHUNK_INL_H_
#else
#define LINATTN_KERNELS_CHUNK_INL_H_
#endif

#include <hwy/highway.h>
#include <omp.h>

#include <algorithm>
#include <cstdint>

#include "kernels/chunk.h"
#include "kernels/decay-inl.h"
#include "kernels/delta-inl.h"
#include "kernels/dense-inl.h"
#include "kernels/mixer.h"
#include "kernels/token_rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace linattn {
namespace HWY_NAMESPACE {

// One of the recurrences: what the kernels are templates over. Whether it is normalised is asked at
// run time, once a chunk: it costs nothing there, and twice as many instances took twice as long to
// compile.
template <Decay decay, Write write>
struct Policy {
  static constexpr Decay kDecay = decay;
  static constexpr bool kDecays = decay != Decay::kNone, kPerChannel = decay == Decay::kPerChannel;
  static constexpr bool kDelta = write == Write::kDelta;
  // Backward needs the state before each chunk.
  static constexpr bool kKeepsStates = kDecays || kDelta;
};

template <Decay decay, class Run>
void WithPolicyOf(const ChunkCall& call, const Run& run) {
  if (call.mixer.write == Write::kDelta) return run(Policy<decay, Write::kDelta>());
  return run(Policy<decay, Write::kAdd>());
}

// run(Policy) for the policy of this call.
template <class Run>
void WithPolicy(const ChunkCall& call, const Run& run) {
  switch (call.mixer.decay) {
    case Decay::kNone:
      return WithPolicyOf<Decay::kNone>(call, run);
    case Decay::kScalar:
      return WithPolicyOf<Decay::kScalar>(call, run);
    case Decay::kPerChannel:
      return WithPolicyOf<Decay::kPerChannel>(call, run);
  }
}

struct HeadTask {
  const ChunkCall& call;
  const TokenList &queries, &keys;
  int64_t sequence, key_head;

  int64_t value_head(int64_t g) const { return key_head * call.shape.G + g; }
  TokenRows Q(const Array& a) const { return {a, queries, key_head}; }
  TokenRows K(const Array& a) const { return {a, keys, key_head}; }
  TokenRows V(const Array& a, int64_t g) const { return {a, keys, value_head(g)}; }
  TokenRows O(const Array& a, int64_t g) const { return {a, queries, value_head(g)}; }
};

// Consecutive key heads of one sequence.
struct Task {
  const ChunkCall& call;
  const TokenList &queries, &keys;
  int64_t sequence, first_head, heads;

  // run(head, its share of the scratch) for each head.
  template <class Scratch, class Run>
  void ForEachHead(const Scratch& w, const Run& run) const {
    for (int64_t i = 0; i < heads; ++i)
      run(HeadTask{call, queries, keys, sequence, first_head + i}, w.Of(call.shape, i));
  }
};

// run(task, floats) for every task; `floats` is the calling thread's share of the scratch.
template <class Run>
void ForEachTask(const ChunkCall& call, const Sequences& sequences, ThreadScratch scratch,
                 const Run& run) {
  const int64_t N = static_cast<int64_t>(sequences.queries.size()), H = call.in.q.shape[2];
  const int64_t heads = call.shape.heads, blocks = (H + heads - 1) / heads;
#pragma omp parallel for schedule(dynamic, 1) if (N * blocks > 1)
  for (int64_t i = 0; i < N * blocks; ++i) {
    const int64_t n = i / blocks, first = i % blocks * heads;
    const Task task{call,  sequences.queries[n],      sequences.keys[n], n,
                    first, std::min(heads, H - first)};
    run(task, scratch.Of(omp_get_thread_num()));
  }
}

// Asks for rows [begin, begin + n), as far as they exist, ahead of their use in the next chunk: a
// head's rows lie a token's width apart, where the hardware does not look for them. Rows to be
// written are asked for too (4 to 12% faster); with prefetchw, or in the order of memory for all
// heads together, it gains less or nothing.
HWY_INLINE void PrefetchRows(const TokenRows& rows, int64_t begin, int64_t n) {
  const auto& [array, tokens, head] = rows;
  if (begin < 0 || !array.present()) return;
  const int64_t size = SizeOf(array.dtype), bytes = rows.channels() * size;
  const char* data = static_cast<const char*>(array.data) + head * array.stride[2] * size +
                     tokens.row * array.stride[0] * size;
  for (int64_t i = begin; i < std::min(begin + n, tokens.length); ++i)
    for (int64_t byte = 0; byte < bytes; byte += 64)
      __builtin_prefetch(data + tokens[i] * array.stride[1] * size + byte, 0, 2);
}

// First token of the last chunk; negative if there is none.
inline int64_t LastChunk(int64_t length, int64_t C) {
  return length == 0 ? -1 : (length - 1) / C * C;
}

// y [n,F] = phi of tokens [begin, begin + n); raw [n,K] keeps what phi was applied to, unless phi
// is the identity.
inline void LoadFeatures(const FeatureMap& phi, const TokenRows& rows, int64_t begin, int64_t n,
                         float* raw, float* y) {
  if (IsIdentity(phi)) return LoadRows(rows, begin, n, y);
  LoadRows(rows, begin, n, raw);
  phi.Forward(raw, n, rows.array.shape[3], y);
}

// Q [n,F] = scale phi(q), K [n,F] = phi(k); raw [n,K] as LoadFeatures leaves it.
inline void LoadQueries(const HeadTask& task, const ForwardScratch& w, int64_t begin, int64_t n) {
  const ChunkCall& call = task.call;
  LoadFeatures(call.phi, task.Q(call.in.q), begin, n, w.raw, w.Q);
  if (call.scale != 1) Scale(call.scale, w.Q, n * call.shape.F);
}
inline void LoadKeys(const HeadTask& task, const ForwardScratch& w, int64_t begin, int64_t n) {
  LoadFeatures(task.call.key_phi, task.K(task.call.in.k), begin, n, w.raw, w.K);
}

}  // namespace HWY_NAMESPACE
}  // namespace linattn
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
