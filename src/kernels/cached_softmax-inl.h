// Softmax attention of one query over chosen rows of a cache of keys and values, float32 or bfloat16.
// Included once a SIMD target, inside foreach_target's loop.
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

// scores[s] = scale q . k[rows[s]] for the keys k [*,K].
template <class T>
HWY_INLINE void ScoreKeys(const CachedQuery& query, const T* k, int64_t K, const int64_t* rows,
                          int64_t n, float* HWY_RESTRICT scores) {
  const FloatTag d;
  constexpr int kTogether = 4;  // hides the latency of the products
  const auto score = [&](auto count, int64_t s) HWY_ATTR {
    FloatVector sum[count()];
    for (int r = 0; r < count(); ++r) sum[r] = hn::Zero(d);
    for (int64_t c = 0; c < K; c += kLanes) {
      const auto part = LoadLeft(query.q + c, K - c);
      for (int r = 0; r < count(); ++r)
        sum[r] = hn::MulAdd(part, LoadLeft(k + rows[s + r] * K + c, K - c), sum[r]);
    }
    for (int r = 0; r < count(); ++r)
      scores[s + r] = query.scale * hn::GetLane(hn::SumOfLanes(d, sum[r]));
  };
  int64_t s = 0;
  for (; s + kTogether <= n; s += kTogether) score(std::integral_constant<int, kTogether>(), s);
  for (; s < n; ++s) score(std::integral_constant<int, 1>(), s);
}

// o = shrink o + sum_s p[s] v[rows[s]] for the values v [*,V].
template <class T>
HWY_INLINE void AddValues(const float* HWY_RESTRICT p, const T* v, int64_t V, const int64_t* rows,
                          int64_t n, float shrink, float* HWY_RESTRICT o) {
  const FloatTag d;
  ForEachVector(V, [&](auto load, auto store, int64_t c) HWY_ATTR {
    auto even = hn::Mul(hn::Set(d, shrink), load(o + c)), odd = hn::Zero(d);
    const auto value = [&](int64_t s) HWY_ATTR { return LoadLeft(v + rows[s] * V + c, V - c); };
    int64_t s = 0;
    for (; s + 2 <= n; s += 2) {
      even = hn::MulAdd(hn::Set(d, p[s]), value(s), even);
      odd = hn::MulAdd(hn::Set(d, p[s + 1]), value(s + 1), odd);
    }
    if (s < n) even = hn::MulAdd(hn::Set(d, p[s]), value(s), even);
    store(hn::Add(even, odd), o + c);
  });
}

// Takes in n <= kCachedKeys rows (eq. 21 to 23).
template <class T>
HWY_INLINE void AttendRowsOf(CachedQuery& query, const T* k, const T* v, const int64_t* rows,
                             int64_t n) {
  const FloatTag d;
  constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
  HWY_ALIGN float p[kCachedKeys];
  ScoreKeys(query, k, query.K, rows, n, p);
  std::fill(p + n, p + kCachedKeys, kMinusInfinity);
  auto largest = hn::Set(d, query.max);
  for (int64_t i = 0; i < kCachedKeys; i += kLanes)
    largest = hn::Max(largest, hn::Load(d, p + i));
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
  AddValues(p, v, query.V, rows, n, shrink, query.o);
}

}  // namespace HWY_NAMESPACE
}  // namespace linattn
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
