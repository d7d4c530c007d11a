#include "kernels/favor_map.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/favor_map.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/exp-inl.h"
#include "kernels/gemm-inl.h"
#include "kernels/row-inl.h"

#ifndef LINATTN_KERNELS_FAVOR_MAP_WEIGHTS_
#define LINATTN_KERNELS_FAVOR_MAP_WEIGHTS_
namespace linattn {

constexpr double kFloor = 1e-4;          // added to every exponential
constexpr double kLargestExponent = 60;  // float sums of e^60 keep far from 3e38

struct FavorWeights {
  const float *W, *WT;  // [M,K], [K,M], times K^-1/4
  int64_t K, M;
  FavorMap::Form form;

  double factor() const { return 1 / std::sqrt(static_cast<double>(M)); }
  double half_norm() const { return 0.5 / std::sqrt(static_cast<double>(K)); }  // of x, not y
};

}  // namespace linattn
#endif

HWY_BEFORE_NAMESPACE();
namespace linattn {
namespace HWY_NAMESPACE {

// a [M] -> phi, in place.
HWY_INLINE void Exponentiate(const FavorWeights& w, float shift, float* y) {
  const float factor = static_cast<float>(w.factor());
  ForEachVector(w.M, [=](auto load, auto store, int64_t j) HWY_ATTR {
    const FloatTag d;
    const auto top = hn::Set(d, static_cast<float>(kLargestExponent));
    const auto exponent = hn::Sub(load(y + j), hn::Set(d, shift));
    const auto cut = hn::IfThenElse(hn::Gt(exponent, top), top, exponent);  // NaN stays
    const auto raised = hn::Add(ExpOrNaN(cut), hn::Set(d, static_cast<float>(kFloor)));
    store(hn::Mul(raised, hn::Set(d, factor)), y + j);
  });
}

void FavorForward(const FavorWeights& w, const float* x, int64_t rows, float* y) {
  Gemm({rows, w.M, w.K}, {x, w.K, 1}, {w.WT, w.M}, {y, w.M});
  for (int64_t i = 0; i < rows; ++i, x += w.K, y += w.M) {
    float shift = w.form.row_maximum ? MaxOf(1, y, w.M) : static_cast<float>(w.form.shift);
    if (w.form.subtract_norm) shift += static_cast<float>(w.half_norm()) * Dot(x, x, w.K);
    Exponentiate(w, shift, y);
  }
}

// d_a of n features: d_y times the exponential, which is y without its floor; 0 where it was cut.
HWY_INLINE float ExponentGradient(const FavorWeights& w, const float* y, const float* d_y,
                                  int64_t n, float* d_a) {
  const float factor = static_cast<float>(w.factor());
  const float most = factor * (std::exp(static_cast<float>(kLargestExponent)) * 0.9999f);
  return SumOf(n, [=](auto load, int64_t j) HWY_ATTR {
    const FloatTag d;
    const auto value = load(y + j);
    const auto slope = hn::Sub(value, hn::Set(d, factor * static_cast<float>(kFloor)));
    const auto step = hn::Mul(load(d_y + j), slope);
    const auto kept = hn::IfThenZeroElse(hn::Gt(value, hn::Set(d, most)), step);
    if (n - j >= kLanes)
      hn::StoreU(kept, d, d_a + j);
    else
      StorePartial(kept, d_a + j, n - j);
    return n - j >= kLanes ? kept : hn::IfThenElseZero(hn::FirstN(d, n - j), kept);
  });
}

// d_x -= total dc/dx, where every exponent has lost n + c.
HWY_INLINE void SubtractShiftGradient(const FavorWeights& w, const float* x, const float* y,
                                      float total, float* d_x) {
  if (w.form.subtract_norm) AddScaled(-2 * static_cast<float>(w.half_norm()) * total, x, w.K, d_x);
  if (w.form.row_maximum && !w.form.constant_maximum)
    AddScaled(-total, w.W + (std::max_element(y, y + w.M) - y) * w.K, w.K, d_x);
}

void FavorBackward(const FavorWeights& w, const float* x, const float* y, const float* d_y,
                   int64_t rows, float* d_x) {
  constexpr int64_t kRows = 16, kColumns = 128;
  HWY_ALIGN float d_a[kRows * kColumns];
  for (int64_t begin = 0; begin < rows; begin += kRows) {
    const int64_t n = std::min(kRows, rows - begin);
    float totals[kRows] = {};
    float* to = d_x + begin * w.K;
    for (int64_t j = 0; j < w.M; j += kColumns) {
      const int64_t columns = std::min(kColumns, w.M - j);
      for (int64_t i = 0; i < n; ++i) {
        const int64_t at = (begin + i) * w.M + j;
        totals[i] += ExponentGradient(w, y + at, d_y + at, columns, d_a + i * kColumns);
      }
      Gemm({n, w.K, columns}, {d_a, kColumns, 1}, {w.W + j * w.K, w.K}, {to, w.K, j > 0});
    }
    for (int64_t i = 0; i < n; ++i)
      SubtractShiftGradient(w, x + (begin + i) * w.K, y + (begin + i) * w.M, totals[i],
                            to + i * w.K);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace linattn
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace linattn {
namespace {

HWY_EXPORT(FavorForward);
HWY_EXPORT(FavorBackward);

constexpr FavorMap::Form StreamingForm(FavorRole role) {
  const bool query = role == FavorRole::kQuery;
  return {.subtract_norm = !query, .row_maximum = query, .constant_maximum = false, .shift = 0};
}

}  // namespace

FavorMap::FavorMap(const Form& form, std::span<const float> projection, int64_t K)
    : form_(form), K_(K), M_(K > 0 ? std::ssize(projection) / K : 0) {
  Check(K >= 1 && M_ >= 1 && M_ * K == std::ssize(projection), "favor",
        "the projection must be [M,K] with K={}, but has {} numbers", K, projection.size());
  const double fourth_root = std::pow(static_cast<double>(K), -0.25);
  W64_.assign(projection.begin(), projection.end());
  WT_.resize(projection.size());
  for (int64_t m = 0; m < M_; ++m) {
    for (int64_t k = 0; k < K; ++k) {
      W_.push_back(static_cast<float>(fourth_root * W64_[m * K + k]));
      WT_[k * M_ + m] = W_.back();
    }
  }
}

FavorMap::FavorMap(FavorRole role, std::span<const float> projection, int64_t K)
    : FavorMap(StreamingForm(role), projection, K) {}

FavorMap FavorMap::Published(FavorRole role, std::span<const float> projection, int64_t K,
                             double shift) {
  return {Form{.subtract_norm = true,
               .row_maximum = role == FavorRole::kQuery,
               .constant_maximum = true,
               .shift = shift},
          projection, K};
}

int64_t FavorMap::Features(int64_t K) const {
  Check(K == K_, "favor", "rows must have K={} numbers, as the projection's, but have {}", K_, K);
  return M_;
}

void FavorMap::Forward(const float* x, int64_t rows, int64_t, float* y) const {
  HWY_DYNAMIC_DISPATCH(FavorForward)({W_.data(), WT_.data(), K_, M_, form_}, x, rows, y);
}

void FavorMap::Backward(const float* x, const float* y, const float* d_y, int64_t rows, int64_t,
                        float* d_x) const {
  HWY_DYNAMIC_DISPATCH(FavorBackward)
  ({W_.data(), WT_.data(), K_, M_, form_}, x, y, d_y, rows, d_x);
}

// ---- The definition ----

namespace {

// a [M] of one row.
void Project(const std::vector<double>& W, const double* x, int64_t K, double* a) {
  const double fourth_root = std::pow(static_cast<double>(K), -0.25);
  for (size_t j = 0; j * K < W.size(); ++j) {
    a[j] = 0;
    for (int64_t k = 0; k < K; ++k) a[j] += W[j * K + k] * fourth_root * x[k];
  }
}

// |y|^2/2 of one row.
double HalfNorm(const double* x, int64_t K) {
  double sum = 0;
  for (int64_t k = 0; k < K; ++k) sum += x[k] * x[k];
  return sum / (2 * std::sqrt(static_cast<double>(K)));
}

}  // namespace

void FavorMap::Forward(const double* x, int64_t rows, int64_t K, double* y) const {
  for (int64_t i = 0; i < rows; ++i, x += K, y += M_) {
    Project(W64_, x, K, y);
    const double n = form_.subtract_norm ? HalfNorm(x, K) : 0;
    const double c = form_.row_maximum ? *std::max_element(y, y + M_) : form_.shift;
    for (int64_t j = 0; j < M_; ++j) {
      const double exponent = y[j] - n - c;
      y[j] = (std::exp(exponent > kLargestExponent ? kLargestExponent : exponent) + kFloor) /
             std::sqrt(static_cast<double>(M_));
    }
  }
}

void FavorMap::Backward(const double* x, const double* y, const double* d_y, int64_t rows,
                        int64_t K, double* d_x) const {
  const double root = std::sqrt(static_cast<double>(M_));
  const double fourth_root = std::pow(static_cast<double>(K), -0.25);
  for (int64_t i = 0; i < rows; ++i, x += K, y += M_, d_y += M_, d_x += K) {
    double total = 0;
    std::fill_n(d_x, K, 0.0);
    const auto add = [&](int64_t j, double d_a) {
      for (int64_t k = 0; k < K; ++k) d_x[k] += d_a * fourth_root * W64_[j * K + k];
    };
    for (int64_t j = 0; j < M_; ++j) {
      const double exponential = y[j] * root - kFloor;
      if (exponential >= std::exp(kLargestExponent) * (1 - 1e-12)) continue;  // cut
      const double d_a = d_y[j] * exponential / root;
      add(j, d_a);
      total += d_a;
    }
    if (form_.subtract_norm)
      for (int64_t k = 0; k < K; ++k) d_x[k] -= total * fourth_root * fourth_root * x[k];
    if (form_.row_maximum && !form_.constant_maximum) add(std::max_element(y, y + M_) - y, -total);
  }
}

double FavorShift(const double* x, int64_t rows, std::span<const float> projection, int64_t K) {
  const std::vector<double> W(projection.begin(), projection.end());
  std::vector<double> a(projection.size() / static_cast<size_t>(K));
  double shift = -std::numeric_limits<double>::infinity();
  for (int64_t i = 0; i < rows; ++i) {
    Project(W, x + i * K, K, a.data());
    shift = std::max(shift, *std::max_element(a.begin(), a.end()));
  }
  return shift;
}

}  // namespace linattn
#endif  // HWY_ONCE
