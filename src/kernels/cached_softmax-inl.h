// Softmax attention of one query over chosen rows of a cache of keys and values, float32 or
// bfloat16. Included once a SIMD target, inside foreach_target's loop.
#if defined(LINATTN_KERNELS_CACHED_SOFTMAX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LINATTN_KERNELS_CACHED_SOFTMAX_INL_H_
#undef LINATTN_KERNELS_CACHED_SOFTMAX_INL_H_
#else
#define LINATTN_KERNELS_CACHED_SOFTMAX_INL_H_
#endif

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels/exp-inl.h"
#include "kernels/narrow-inl.h"
#include "kernels/softmax_kernels.h"
#include "kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace linattn {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// The floats at p, of which a row has n left.
HWY_INLINE FloatVector LoadLeft(const float* p, int64_t n) {
  return n >= kLanes ? hn::LoadU(FloatTag(), p) : LoadPartial(p, n);
}
HWY_INLINE FloatVector LoadLeft(const BF16* p, int64_t n) { return LoadRow(p, n); }

// Lane r of the result: the sum of the lanes of sum[r]. Neighbours are added in each round, so that
// a vector holds twice as many sums after it, half as far on their way.
template <int kVectors>
HWY_INLINE FloatVector SumsOfLanes(const FloatVector* sum) {
#if HWY_TARGET != HWY_SCALAR
  if constexpr (kVectors > 1) {
    const FloatTag d;
    FloatVector half[kVectors / 2];
#pragma GCC unroll 8
    for (int i = 0; i < kVectors / 2; ++i)
      half[i] = hn::Add(hn::ConcatEven(d, sum[2 * i + 1], sum[2 * i]),
                        hn::ConcatOdd(d, sum[2 * i + 1], sum[2 * i]));
    return SumsOfLanes<kVectors / 2>(half);
  }
#endif
  return sum[0];
}

// The row that is read kCachedKeys rows later, in the next block, if rows come in order: the
// hardware prefetches no further than a page, which is often what a block has.
template <class T>
HWY_INLINE void PrefetchBehind(const T* row, int64_t channels) {
  hwy::Prefetch(row + kCachedKeys * channels);
}

// scores[s] = scale q . rows[s], for kLanes keys [K].
template <class T>
HWY_INLINE void ScoreRows(const CachedQuery& query, const T* const* rows,
                          float* HWY_RESTRICT scores) {
  constexpr int kRows = static_cast<int>(kLanes);
  const FloatTag d;
  FloatVector sum[kRows];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) sum[r] = hn::Zero(d);
  int64_t c = 0;
  for (; c + kLanes <= query.K; c += kLanes) {
    const auto part = hn::LoadU(d, query.q + c);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      PrefetchBehind(rows[r] + c, query.K);
      sum[r] = hn::MulAdd(part, LoadWide(rows[r] + c), sum[r]);
    }
  }
  if (c < query.K) {
    const auto part = LoadLeft(query.q + c, query.K - c);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r)
      sum[r] = hn::MulAdd(part, LoadLeft(rows[r] + c, query.K - c), sum[r]);
  }
  hn::StoreU(hn::Mul(hn::Set(d, query.scale), SumsOfLanes<kRows>(sum)), d, scores);
}

// n values [V] with their weights.
template <class T>
struct WeightedRows {
  const float* p;
  const T* const* rows;
  int64_t n, V;
};

// Channels [c, c + kVectors kLanes) of o = shrink o + sum_s p[s] rows[s].
template <int kVectors, class T>
HWY_INLINE void AddStrip(const WeightedRows<T>& w, float shrink, int64_t c, float* HWY_RESTRICT o) {
  const auto& [p, rows, n, V] = w;
  const FloatTag d;
  FloatVector even[kVectors], odd[kVectors];
  for (int i = 0; i < kVectors; ++i) {
    even[i] = hn::Mul(hn::Set(d, shrink), hn::LoadU(d, o + c + i * kLanes));
    odd[i] = hn::Zero(d);
  }
  int64_t s = 0;
  for (; s + 2 <= n; s += 2) {
    const auto first = hn::Set(d, p[s]), second = hn::Set(d, p[s + 1]);
    PrefetchBehind(rows[s] + c, V), PrefetchBehind(rows[s + 1] + c, V);
    for (int i = 0; i < kVectors; ++i) {
      even[i] = hn::MulAdd(first, LoadWide(rows[s] + c + i * kLanes), even[i]);
      odd[i] = hn::MulAdd(second, LoadWide(rows[s + 1] + c + i * kLanes), odd[i]);
    }
  }
  for (int i = 0; i < kVectors; ++i) {
    if (s < n) even[i] = hn::MulAdd(hn::Set(d, p[s]), LoadWide(rows[s] + c + i * kLanes), even[i]);
    hn::StoreU(hn::Add(even[i], odd[i]), d, o + c + i * kLanes);
  }
}

template <class T>
HWY_INLINE void AddValues(const WeightedRows<T>& w, float shrink, float* HWY_RESTRICT o) {
  const auto& [p, rows, n, V] = w;
  int64_t c = 0;
  for (; c + 4 * kLanes <= V; c += 4 * kLanes) AddStrip<4>(w, shrink, c, o);
  for (; c + 2 * kLanes <= V; c += 2 * kLanes) AddStrip<2>(w, shrink, c, o);
  for (; c + kLanes <= V; c += kLanes) AddStrip<1>(w, shrink, c, o);
  if (c == V) return;
  const FloatTag d;
  auto sum = hn::Mul(hn::Set(d, shrink), LoadLeft(o + c, V - c));
  for (int64_t s = 0; s < n; ++s)
    sum = hn::MulAdd(hn::Set(d, p[s]), LoadLeft(rows[s] + c, V - c), sum);
  StorePartial(sum, o + c, V - c);
}

// Takes in n <= kCachedKeys rows (eq. 21 to 23).
template <class T>
HWY_INLINE void AttendRowsOf(CachedQuery& query, const T* k, const T* v, const int64_t* rows,
                             int64_t n) {
  const FloatTag d;
  constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
  HWY_ALIGN float p[kCachedKeys];
  const T *keys[kCachedKeys], *values[kCachedKeys];
  for (int64_t s = 0; s < n; ++s)
    keys[s] = k + rows[s] * query.K, values[s] = v + rows[s] * query.V;
  for (int64_t s = n; s % kLanes != 0; ++s) keys[s] = keys[n - 1];  // to whole vectors of keys
  for (int64_t s = 0; s < n; s += kLanes) ScoreRows(query, keys + s, p + s);
  std::fill(p + n, p + kCachedKeys, kMinusInfinity);
  auto largest = hn::Set(d, query.max);
  for (int64_t i = 0; i < kCachedKeys; i += kLanes) largest = hn::Max(largest, hn::Load(d, p + i));
  largest = hn::MaxOfLanes(d, largest);
  auto total = hn::Zero(d);
  for (int64_t i = 0; i < kCachedKeys; i += kLanes) {
    const auto weight = ExpOrNaN(hn::Sub(hn::Load(d, p + i), largest));
    hn::Store(weight, d, p + i);
    total = hn::Add(total, weight);
  }
  const float new_max = hn::GetLane(largest);
  const float shrink = std::exp(query.max - new_max);
  query.sum = query.sum * shrink + hn::GetLane(hn::SumOfLanes(d, total));
  query.max = new_max;
  AddValues(WeightedRows<T>{p, values, n, query.V}, shrink, query.o);
}

}  // namespace HWY_NAMESPACE
}  // namespace linattn
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
