#include <algorithm>
#include <cmath>

#include "kernels/feature_map_table.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/normalised_map.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/exp-inl.h"
#include "kernels/row-inl.h"

HWY_BEFORE_NAMESPACE();
namespace linattn {
namespace HWY_NAMESPACE {

// 1 / sqrt(sum x^2 + 1e-6) = shrink * root. Squares of large x, and of small ones that meet a large
// one, are taken after a division by 2^70, which is exact.
struct InverseNorm {
  float shrink, root;
};
HWY_INLINE InverseNorm InverseNormOf(const float* x, int64_t n) {
  const float size = std::max(MaxOf(1, x, n), MaxOf(-1, x, n));
  const float shrink = size > 0x1p60f ? 0x1p-70f : 1.0f;
  const float sum = SumOf(n, [=](auto load, int64_t i) HWY_ATTR {
    const auto small = hn::Mul(load(x + i), hn::Set(FloatTag(), shrink));
    return hn::Mul(small, small);
  });
  return {shrink, 1 / std::sqrt(sum + 1e-6f * shrink * shrink)};
}

void L2Forward(const float* x, int64_t rows, int64_t K, float* y) {
  for (int64_t i = 0; i < rows; ++i, x += K, y += K) {
    const auto [shrink, root] = InverseNormOf(x, K);
    ScaleInto(shrink, x, K, y);
    ScaleInto(root, y, K, y);
  }
}

// d_x = (d_y - y (y . d_y)) / norm.
void L2Backward(const float* x, const float* y, const float* d_y, int64_t rows, int64_t K,
                float* d_x) {
  for (int64_t r = 0; r < rows; ++r, x += K, y += K, d_y += K, d_x += K) {
    const auto [shrink, root] = InverseNormOf(x, K);
    const float factor = shrink * root, along = Dot(y, d_y, K);
    ForEachVector(K, [=](auto load, auto store, int64_t i) HWY_ATTR {
      const auto across = hn::NegMulAdd(load(y + i), hn::Set(FloatTag(), along), load(d_y + i));
      store(hn::Mul(across, hn::Set(FloatTag(), factor)), d_x + i);
    });
  }
}

// y = softmax(sign x).
HWY_INLINE void Softmax(float sign, const float* x, int64_t n, float* y) {
  const float top = MaxOf(sign, x, n);
  ForEachVector(n, [=](auto load, auto store, int64_t i) HWY_ATTR {
    const FloatTag d;
    store(ExpOrNaN(hn::Sub(hn::Mul(load(x + i), hn::Set(d, sign)), hn::Set(d, top))), y + i);
  });
  const float sum = SumOf(n, [=](auto load, int64_t i) HWY_ATTR { return load(y + i); });
  ScaleInto(1 / sum, y, n, y);
}

// d_x (+)= sign y (d_y - y . d_y).
template <bool kAdd>
HWY_INLINE void SoftmaxBackward(float sign, const float* y, const float* d_y, int64_t n,
                                float* d_x) {
  const float mean = Dot(y, d_y, n);
  ForEachVector(n, [=](auto load, auto store, int64_t i) HWY_ATTR {
    const FloatTag d;
    auto step =
        hn::Mul(hn::Mul(load(y + i), hn::Set(d, sign)), hn::Sub(load(d_y + i), hn::Set(d, mean)));
    if constexpr (kAdd) step = hn::Add(step, load(d_x + i));
    store(step, d_x + i);
  });
}

void ExpForward(const float* x, int64_t rows, int64_t K, float* y) {
  for (int64_t i = 0; i < rows; ++i) Softmax(1, x + i * K, K, y + i * K);
}

void ExpBackward(const float*, const float* y, const float* d_y, int64_t rows, int64_t K,
                 float* d_x) {
  for (int64_t i = 0; i < rows; ++i)
    SoftmaxBackward<false>(1, y + i * K, d_y + i * K, K, d_x + i * K);
}

void HedgehogForward(const float* x, int64_t rows, int64_t K, float* y) {
  for (int64_t i = 0; i < rows; ++i, x += K, y += 2 * K) {
    Softmax(1, x, K, y);
    Softmax(-1, x, K, y + K);
  }
}

void HedgehogBackward(const float*, const float* y, const float* d_y, int64_t rows, int64_t K,
                      float* d_x) {
  for (int64_t i = 0; i < rows; ++i, y += 2 * K, d_y += 2 * K, d_x += K) {
    SoftmaxBackward<false>(1, y, d_y, K, d_x);
    SoftmaxBackward<true>(-1, y + K, d_y + K, K, d_x);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace linattn
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace linattn {
namespace {

HWY_EXPORT(L2Forward);
HWY_EXPORT(L2Backward);
HWY_EXPORT(ExpForward);
HWY_EXPORT(ExpBackward);
HWY_EXPORT(HedgehogForward);
HWY_EXPORT(HedgehogBackward);

// ---- The definitions ----

double Dot(const double* x, const double* y, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += x[i] * y[i];
  return sum;
}

double NormOf(const double* x, int64_t K) { return std::sqrt(Dot(x, x, K) + 1e-6); }

void L2Row(const double* x, int64_t K, double* y) {
  const double norm = NormOf(x, K);
  for (int64_t i = 0; i < K; ++i) y[i] = x[i] / norm;
}

void L2BackwardRow(const double* x, const double* y, const double* d_y, int64_t K, double* d_x) {
  const double norm = NormOf(x, K), along = Dot(y, d_y, K);
  for (int64_t i = 0; i < K; ++i) d_x[i] = (d_y[i] - y[i] * along) / norm;
}

void SoftmaxRow(double sign, const double* x, int64_t K, double* y) {
  double top = sign * x[0], sum = 0;
  for (int64_t i = 1; i < K; ++i) top = std::max(top, sign * x[i]);
  for (int64_t i = 0; i < K; ++i) sum += y[i] = std::exp(sign * x[i] - top);
  for (int64_t i = 0; i < K; ++i) y[i] /= sum;
}

void ExpRow(const double* x, int64_t K, double* y) { SoftmaxRow(1, x, K, y); }

void ExpBackwardRow(const double*, const double* y, const double* d_y, int64_t K, double* d_x) {
  const double mean = Dot(y, d_y, K);
  for (int64_t i = 0; i < K; ++i) d_x[i] = y[i] * (d_y[i] - mean);
}

void HedgehogRow(const double* x, int64_t K, double* y) {
  SoftmaxRow(1, x, K, y);
  SoftmaxRow(-1, x, K, y + K);
}

void HedgehogBackwardRow(const double*, const double* y, const double* d_y, int64_t K,
                         double* d_x) {
  const double up = Dot(y, d_y, K), down = Dot(y + K, d_y + K, K);
  for (int64_t i = 0; i < K; ++i) d_x[i] = y[i] * (d_y[i] - up) - y[K + i] * (d_y[K + i] - down);
}

// A function of every SIMD target as a plain one.
#define LINATTN_FORWARD(function)                         \
  [](const float* x, int64_t rows, int64_t K, float* y) { \
    HWY_DYNAMIC_DISPATCH(function)(x, rows, K, y);        \
  }
#define LINATTN_BACKWARD(function)                                                            \
  [](const float* x, const float* y, const float* d_y, int64_t rows, int64_t K, float* d_x) { \
    HWY_DYNAMIC_DISPATCH(function)(x, y, d_y, rows, K, d_x);                                  \
  }

}  // namespace

std::span<const FeatureMap* const> NormalisedMaps() {
  static const RowMap l2({.name = "l2",
                          .features = [](int64_t K) { return K; },
                          .forward = LINATTN_FORWARD(L2Forward),
                          .backward = LINATTN_BACKWARD(L2Backward),
                          .forward_row = L2Row,
                          .backward_row = L2BackwardRow});
  static const RowMap exp({.name = "exp",
                           .features = [](int64_t K) { return K; },
                           .forward = LINATTN_FORWARD(ExpForward),
                           .backward = LINATTN_BACKWARD(ExpBackward),
                           .forward_row = ExpRow,
                           .backward_row = ExpBackwardRow});
  static const RowMap hedgehog({.name = "hedgehog",
                                .features = [](int64_t K) { return 2 * K; },
                                .forward = LINATTN_FORWARD(HedgehogForward),
                                .backward = LINATTN_BACKWARD(HedgehogBackward),
                                .forward_row = HedgehogRow,
                                .backward_row = HedgehogBackwardRow});
  static const FeatureMap* const maps[] = {&l2, &exp, &hedgehog};
  return maps;
}

}  // namespace linattn
#endif  // HWY_ONCE
