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
#include "kernels/gemm-inl.h"
#include "kernels/mixer.h"
#include "kernels/token_rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace linattn {
namespace HWY_NAMESPACE {

// One of the recurrences: what a mixer's functions are templates over.
template <Decay decay, Write write, bool normalised>
struct Policy {
  static constexpr Decay kDecay = decay;
  static constexpr Write kWrite = write;
  static constexpr bool kNormalised = normalised;
};

// run(Policy) for the policy of this call.
template <class Run>
void WithPolicy(const ChunkCall& call, const Run& run) {
  if (call.mixer.normalised && call.in.options.normalise)
    run(Policy<Decay::kNone, Write::kAdd, true>());
  else
    run(Policy<Decay::kNone, Write::kAdd, false>());
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

// Rows are contiguous, `stride` floats apart.
struct Block {
  const float* data;
  int64_t rows, columns, stride;
};

// y [columns,rows] = transpose of x, rows of y `stride` floats apart.
HWY_INLINE void Transpose(Block x, float* HWY_RESTRICT y, int64_t stride) {
  int64_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  const hn::FixedTag<float, 4> d;
  const hn::FixedTag<double, 2> pairs;
  for (; i + 4 <= x.rows; i += 4) {
    const float* HWY_RESTRICT row = x.data + i * x.stride;
    int64_t j = 0;
    for (; j + 4 <= x.columns; j += 4) {
      const auto r0 = hn::LoadU(d, row + j), r1 = hn::LoadU(d, row + x.stride + j);
      const auto r2 = hn::LoadU(d, row + 2 * x.stride + j);
      const auto r3 = hn::LoadU(d, row + 3 * x.stride + j);
      const auto low01 = hn::BitCast(pairs, hn::InterleaveLower(d, r0, r1));
      const auto low23 = hn::BitCast(pairs, hn::InterleaveLower(d, r2, r3));
      const auto high01 = hn::BitCast(pairs, hn::InterleaveUpper(d, r0, r1));
      const auto high23 = hn::BitCast(pairs, hn::InterleaveUpper(d, r2, r3));
      float* HWY_RESTRICT to = y + j * stride + i;
      hn::StoreU(hn::BitCast(d, hn::InterleaveLower(pairs, low01, low23)), d, to);
      hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(pairs, low01, low23)), d, to + stride);
      hn::StoreU(hn::BitCast(d, hn::InterleaveLower(pairs, high01, high23)), d, to + 2 * stride);
      hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(pairs, high01, high23)), d, to + 3 * stride);
    }
    for (; j < x.columns; ++j)
      for (int64_t r = 0; r < 4; ++r) y[j * stride + i + r] = row[r * x.stride + j];
  }
#endif
  for (; i < x.rows; ++i)
    for (int64_t j = 0; j < x.columns; ++j) y[j * stride + i] = x.data[i * x.stride + j];
}

HWY_INLINE void Scale(float factor, float* x, int64_t n) {
  ForEachVector(n, [=](auto load, auto store, int64_t i) HWY_ATTR {
    store(hn::Mul(load(x + i), hn::Set(FloatTag(), factor)), x + i);
  });
}

// y += factor x.
HWY_INLINE void AddScaled(float factor, const float* x, int64_t n, float* y) {
  ForEachVector(n, [=](auto load, auto store, int64_t i) HWY_ATTR {
    store(hn::MulAdd(hn::Set(FloatTag(), factor), load(x + i), load(y + i)), y + i);
  });
}

HWY_INLINE float Dot(const float* x, const float* y, int64_t n) {
  FloatVector sum = hn::Zero(FloatTag());
  ForEachVector(n, [&](auto load, auto, int64_t i)
                       HWY_ATTR { sum = hn::MulAdd(load(x + i), load(y + i), sum); });
  return hn::GetLane(hn::SumOfLanes(FloatTag(), sum));
}

// z += sum of the n rows of x [n,F].
HWY_INLINE void AddRows(const float* x, int64_t n, int64_t F, float* z) {
  ForEachVector(F, [=](auto load, auto store, int64_t i) HWY_ATTR {
    FloatVector sum = hn::Zero(FloatTag());
    for (int64_t r = 0; r < n; ++r) sum = hn::Add(sum, load(x + r * F + i));
    store(hn::Add(load(z + i), sum), z + i);
  });
}

// Asks for rows [begin, begin + n), as far as they exist, ahead of their use in the next chunk: a
// head's rows lie a token's width apart, where the hardware does not look for them.
HWY_INLINE void PrefetchRows(const TokenRows& rows, int64_t begin, int64_t n) {
  const auto& [array, tokens, head] = rows;
  if (begin < 0 || !array.present()) return;
  const int64_t size = SizeOf(array.dtype), bytes = array.shape[3] * size;
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

// y [n,F] = phi of tokens [begin, begin + n); raw [n,K] keeps what phi was applied to.
inline void LoadFeatures(const FeatureMap& phi, const TokenRows& rows, int64_t begin, int64_t n,
                         float* raw, float* y) {
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

// Rows [i0, i1) of a lower triangle in [C,C] blocks are computed to column `columns(i1)` only.
constexpr int64_t kTriangleRows = 8;

// A = tril(X Y^T) for X [n,D] and YT [D,C]; A [n,C]: zero above the diagonal as far as products
// read it.
HWY_INLINE void LowerProduct(int64_t n, int64_t D, const float* X, const float* YT, int64_t C,
                             float* A, bool add = false) {
  for (int64_t i = 0; i < n; i += kTriangleRows) {
    const int64_t rows = std::min(kTriangleRows, n - i);
    const int64_t columns = std::min(n, (i + rows + kLanes - 1) / kLanes * kLanes);
    Gemm({rows, columns, D}, {X + i * D, D, 1}, {YT, C}, {A + i * C, C, add});
  }
}

// Zeroes what lies above the diagonal, and adds shift[i] to row i below it.
HWY_INLINE void MaskUpper(int64_t n, int64_t C, const float* shift, float* A) {
  for (int64_t i = 0; i < n; ++i) {
    float* row = A + i * C;
    if (shift)
      for (int64_t j = 0; j <= i; ++j) row[j] += shift[i];
    std::fill(row + i + 1, row + n, 0.0f);
  }
}

// Y (+)= A X for a lower triangle A [n,C] and X [n,D].
HWY_INLINE void LowerTimes(int64_t n, int64_t D, const float* A, int64_t C, const float* X,
                           GemmC y) {
  for (int64_t i = 0; i < n; i += kTriangleRows) {
    const int64_t rows = std::min(kTriangleRows, n - i);
    Gemm({rows, D, i + rows}, {A + i * C, C, 1}, {X, D}, {y.data + i * y.row, y.row, y.add});
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace linattn
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
