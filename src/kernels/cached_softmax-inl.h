// Softmax attention of one query over chosen rows of a cache of keys and values, float32 or
// bfloat16. Included once a SIMD target, inside foreach_target's loop.
#if defined(LINATTN_KERNELS_CACHED_SOFTMAX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LINATTN_KERNELS_CACHED_SOFTMAX_INL_H_
#undef LINATTN_KERNELS_CACHED_SOFTMAX_INL_H_
#else
#define LINATTN_KERNELS_CACHED_SOFTMAX_INL_H_
#endif

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

// scores[s] = scale q . rows[s], for kRows keys [K].
template <int kRows, class T>
HWY_INLINE void ScoreRows(const CachedQuery& query, const T* const* rows,
                          float* HWY_RESTRICT scores) {
  const FloatTag d;
  FloatVector sum[kRows];
  for (int r = 0; r < kRows; ++r) sum[r] = hn::Zero(d);
  int64_t c = 0;
  for (; c + kLanes <= query.K; c += kLanes) {
    const auto part = hn::LoadU(d, query.q + c);
    for (int r = 0; r < kRows; ++r) sum[r] = hn::MulAdd(part, LoadWide(rows[r] + c), sum[r]);
  }
  if (c < query.K) {
    const auto part = LoadLeft(query.q + c, query.K - c);
    for (int r = 0; r < kRows; ++r)
      sum[r] = hn::MulAdd(part, LoadLeft(rows[r] + c, query.K - c), sum[r]);
  }
  for (int r = 0; r < kRows; ++r) scores[r] = query.scale * hn::GetLane(hn::SumOfLanes(d, sum[r]));
}

// Channels [c, c + kVectors kLanes) of o = shrink o + sum_s p[s] rows[s], for n values [V].
template <int kVectors, class T>
HWY_INLINE void AddStrip(const float* HWY_RESTRICT p, const T* const* rows, int64_t n, float shrink,
                         int64_t c, float* HWY_RESTRICT o) {
  const FloatTag d;
  FloatVector even[kVectors], odd[kVectors];
  for (int i = 0; i < kVectors; ++i) {
    even[i] = hn::Mul(hn::Set(d, shrink), hn::LoadU(d, o + c + i * kLanes));
    odd[i] = hn::Zero(d);
  }
  int64_t s = 0;
  for (; s + 2 <= n; s += 2) {
    const auto first = hn::Set(d, p[s]), second = hn::Set(d, p[s + 1]);
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
HWY_INLINE void AddValues(const float* HWY_RESTRICT p, const T* const* rows, int64_t n, int64_t V,
                          float shrink, float* HWY_RESTRICT o) {
  int64_t c = 0;
  for (; c + 4 * kLanes <= V; c += 4 * kLanes) AddStrip<4>(p, rows, n, shrink, c, o);
  for (; c + 2 * kLanes <= V; c += 2 * kLanes) AddStrip<2>(p, rows, n, shrink, c, o);
  for (; c + kLanes <= V; c += kLanes) AddStrip<1>(p, rows, n, shrink, c, o);
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
  int64_t s = 0;
  for (; s + 4 <= n; s += 4) ScoreRows<4>(query, keys + s, p + s);
  for (; s < n; ++s) ScoreRows<1>(query, keys + s, p + s);
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
  AddValues(p, values, n, query.V, shrink, query.o);
}

}  // namespace HWY_NAMESPACE
}  // namespace linattn
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
