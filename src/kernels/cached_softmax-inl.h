// Softmax attention of one query over a cache of keys and values, which is read once and in order.
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
#include "kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace linattn {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr int64_t kCachedKeys = 64;  // in a block of scores; a multiple of all vector lengths

// scores[s] = scale q . k[s] for the keys k [n,K].
HWY_INLINE void ScoreKeys(const float* HWY_RESTRICT q, const float* HWY_RESTRICT k, int64_t n,
                          int64_t K, float scale, float* HWY_RESTRICT scores) {
  const FloatTag d;
  constexpr int kTogether = 4;  // hides the latency of the products
  const auto score = [&](auto count, int64_t s) HWY_ATTR {
    FloatVector sum[count()];
    for (int r = 0; r < count(); ++r) sum[r] = hn::Zero(d);
    ForEachVector(K, [&](auto load, auto, int64_t c) HWY_ATTR {
      const auto part = load(q + c);
      for (int r = 0; r < count(); ++r)
        sum[r] = hn::MulAdd(part, load(k + (s + r) * K + c), sum[r]);
    });
    for (int r = 0; r < count(); ++r)
      scores[s + r] = scale * hn::GetLane(hn::SumOfLanes(d, sum[r]));
  };
  int64_t s = 0;
  for (; s + kTogether <= n; s += kTogether) score(std::integral_constant<int, kTogether>(), s);
  for (; s < n; ++s) score(std::integral_constant<int, 1>(), s);
}

// o = shrink o + sum_s p[s] v[s] for the values v [n,V].
HWY_INLINE void AddValues(const float* HWY_RESTRICT p, const float* HWY_RESTRICT v, int64_t n,
                          int64_t V, float shrink, float* HWY_RESTRICT o) {
  const FloatTag d;
  ForEachVector(V, [&](auto load, auto store, int64_t c) HWY_ATTR {
    auto even = hn::Mul(hn::Set(d, shrink), load(o + c)), odd = hn::Zero(d);
    int64_t s = 0;
    for (; s + 2 <= n; s += 2) {
      even = hn::MulAdd(hn::Set(d, p[s]), load(v + s * V + c), even);
      odd = hn::MulAdd(hn::Set(d, p[s + 1]), load(v + (s + 1) * V + c), odd);
    }
    if (s < n) even = hn::MulAdd(hn::Set(d, p[s]), load(v + s * V + c), even);
    store(hn::Add(even, odd), o + c);
  });
}

// o [V] of one query q [K] over n >= 1 keys k [n,K] and values v [n,V].
HWY_INLINE void AttendCache(const float* q, const float* k, const float* v, int64_t n, int64_t K,
                            int64_t V, float scale, float* o) {
  const FloatTag d;
  constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
  HWY_ALIGN float p[kCachedKeys];
  float max = kMinusInfinity, sum = 0;
  std::fill_n(o, V, 0.0f);
  for (int64_t begin = 0; begin < n; begin += kCachedKeys) {
    const int64_t keys = std::min(kCachedKeys, n - begin);
    ScoreKeys(q, k + begin * K, keys, K, scale, p);
    std::fill(p + keys, p + kCachedKeys, kMinusInfinity);
    auto largest = hn::Set(d, max);
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
    const float shrink = std::exp(max - new_max);
    sum = sum * shrink + hn::GetLane(hn::SumOfLanes(d, total));
    max = new_max;
    AddValues(p, v + begin * V, keys, V, shrink, o);
  }
  ForEachVector(V, [&](auto load, auto store, int64_t c)
                       HWY_ATTR { store(hn::Div(load(o + c), hn::Set(d, sum)), o + c); });
}

}  // namespace HWY_NAMESPACE
}  // namespace linattn
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
