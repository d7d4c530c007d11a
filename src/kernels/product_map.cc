#include <algorithm>
#include <cmath>

#include "kernels/feature_map_table.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/product_map.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/row-inl.h"

#ifndef LINATTN_KERNELS_PRODUCT_MAP_PART_
#define LINATTN_KERNELS_PRODUCT_MAP_PART_
namespace linattn {

// dpfp: features [y, y + n) are r_j r_{(j-i) mod 2K} for n consecutive j, where
// r_j = max(sign_a x[a + .], 0) and r_{j-i} = max(sign_b x[b + .], 0).
struct DpfpPart {
  int64_t y, n, a, b;
  int sign_a, sign_b;
};

// run(part) for all parts of a row: 2K nu features, cut where r passes from x to -x.
template <class Run>
void ForEachDpfpPart(int64_t K, int64_t nu, const Run& run) {
  for (int64_t i = 1; i <= nu; ++i) {
    for (int64_t j = 0, n; j < 2 * K; j += n) {
      const int64_t other = (j - i % (2 * K) + 2 * K) % (2 * K);
      const auto left = [K](int64_t at) { return (at < K ? K : 2 * K) - at; };
      n = std::min(left(j), left(other));
      run(DpfpPart{.y = 2 * K * (i - 1) + j,
                   .n = n,
                   .a = j % K,
                   .b = other % K,
                   .sign_a = j < K ? 1 : -1,
                   .sign_b = other < K ? 1 : -1});
    }
  }
}

// hadamard: features of K numbers; a last one without a partner stays as it is.
constexpr int64_t HadamardFeatures(int64_t K) { return (K + 1) / 2; }

// taylor2: the weights of x_i, x_i x_j and x_i^2, with which phi(q).phi(k) = 1 + a + a^2/2.
struct TaylorWeights {
  double linear, product, square;
  explicit TaylorWeights(int64_t K)
      : linear(std::pow(static_cast<double>(K), -0.25)),
        product(std::pow(static_cast<double>(K), -0.5)),
        square(product * std::sqrt(0.5)) {}
};

}  // namespace linattn
#endif

HWY_BEFORE_NAMESPACE();
namespace linattn {
namespace HWY_NAMESPACE {

HWY_INLINE FloatVector Signed(int sign, FloatVector x) { return sign > 0 ? x : hn::Neg(x); }

void DpfpForward(const float* x, int64_t rows, int64_t K, int64_t nu, float* y) {
  for (int64_t row = 0; row < rows; ++row, x += K, y += 2 * K * nu)
    ForEachDpfpPart(K, nu, [=](const DpfpPart& p) HWY_ATTR {
      ForEachVector(p.n, [&](auto load, auto store, int64_t i) HWY_ATTR {
        const auto a = Positive(Signed(p.sign_a, load(x + p.a + i)));
        const auto b = Positive(Signed(p.sign_b, load(x + p.b + i)));
        store(hn::Mul(a, b), y + p.y + i);
      });
    });
}

// d_x += the gradient of n features d_y through one factor, sign x, the other being other_sign
// other.
struct DpfpFactor {
  const float *x, *other, *d_y;
  int sign, other_sign;
};
HWY_INLINE void AddFactorGradient(const DpfpFactor& f, int64_t n, float* d_x) {
  ForEachVector(n, [&](auto load, auto store, int64_t i) HWY_ATTR {
    const auto mine = Signed(f.sign, load(f.x + i));
    const auto other = Positive(Signed(f.other_sign, load(f.other + i)));
    const auto step =
        hn::IfThenElseZero(hn::Gt(mine, hn::Zero(FloatTag())), hn::Mul(other, load(f.d_y + i)));
    store(hn::Add(load(d_x + i), Signed(f.sign, step)), d_x + i);
  });
}

void DpfpBackward(const float* x, const float* d_y, int64_t rows, int64_t K, int64_t nu,
                  float* d_x) {
  std::fill_n(d_x, rows * K, 0.0f);
  for (int64_t row = 0; row < rows; ++row, x += K, d_y += 2 * K * nu, d_x += K)
    ForEachDpfpPart(K, nu, [=](const DpfpPart& p) HWY_ATTR {
      const float *a = x + p.a, *b = x + p.b, *d = d_y + p.y;
      AddFactorGradient({a, b, d, p.sign_a, p.sign_b}, p.n, d_x + p.a);
      AddFactorGradient({b, a, d, p.sign_b, p.sign_a}, p.n, d_x + p.b);
    });
}

void HadamardForward(const float* x, int64_t rows, int64_t K, float* y) {
  const int64_t F = HadamardFeatures(K);
  for (int64_t row = 0; row < rows; ++row, x += K, y += F) {
    y[F - 1] = x[F - 1];
    ForEachVector(K - F, [=](auto load, auto store, int64_t i)
                             HWY_ATTR { store(hn::Mul(load(x + i), load(x + F + i)), y + i); });
  }
}

void HadamardBackward(const float* x, const float* d_y, int64_t rows, int64_t K, float* d_x) {
  const int64_t F = HadamardFeatures(K);
  for (int64_t row = 0; row < rows; ++row, x += K, d_y += F, d_x += K) {
    d_x[F - 1] = d_y[F - 1];
    ForEachVector(K - F, [=](auto load, auto store, int64_t i) HWY_ATTR {
      const auto first = load(x + i), second = load(x + F + i), d = load(d_y + i);
      store(hn::Mul(second, d), d_x + i);
      store(hn::Mul(first, d), d_x + F + i);
    });
  }
}

void Taylor2Forward(const float* x, int64_t rows, int64_t K, float* y) {
  const TaylorWeights weights(K);
  for (int64_t row = 0; row < rows; ++row, x += K) {
    *y++ = 1;
    ScaleInto(static_cast<float>(weights.linear), x, K, y);
    y += K;
    for (int64_t i = 0; i < K; y += K - i, ++i) {
      ScaleInto(static_cast<float>(weights.product) * x[i], x + i, K - i, y);
      *y = static_cast<float>(weights.square) * x[i] * x[i];
    }
  }
}

// d_x of the products with first factor x_i, d_y [K-i]: x_j gets x_i d_y_j and x_i gets the sum of
// x_j d_y_j, j > i, both times the weight.
HWY_INLINE void AddProductGradient(float weight, const float* x, const float* d_y, int64_t n,
                                   float* d_x) {
  const float first = weight * x[0];
  d_x[0] += weight * Dot(x + 1, d_y + 1, n - 1);
  AddScaled(first, d_y + 1, n - 1, d_x + 1);
}

void Taylor2Backward(const float* x, const float* d_y, int64_t rows, int64_t K, float* d_x) {
  const TaylorWeights weights(K);
  const float linear = static_cast<float>(weights.linear);
  const float product = static_cast<float>(weights.product);
  const float square = static_cast<float>(weights.square);
  for (int64_t row = 0; row < rows; ++row, x += K, d_x += K) {
    ++d_y;  // of the constant
    for (int64_t i = 0; i < K; ++i) d_x[i] = linear * d_y[i];
    d_y += K;
    for (int64_t i = 0; i < K; d_y += K - i, ++i) {
      d_x[i] += 2 * square * x[i] * d_y[0];
      AddProductGradient(product, x + i, d_y, K - i, d_x + i);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace linattn
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace linattn {
namespace {

HWY_EXPORT(DpfpForward);
HWY_EXPORT(DpfpBackward);
HWY_EXPORT(HadamardForward);
HWY_EXPORT(HadamardBackward);
HWY_EXPORT(Taylor2Forward);
HWY_EXPORT(Taylor2Backward);

// ---- The definitions ----

// r_j of r = max([x,-x], 0).
double Rectified(const double* x, int64_t K, int64_t j) {
  const double value = j < K ? x[j] : -x[j - K];
  return value < 0 ? 0 : value;
}

template <int64_t nu>
void DpfpRow(const double* x, int64_t K, double* y) {
  for (int64_t i = 1; i <= nu; ++i)
    for (int64_t j = 0; j < 2 * K; ++j)
      *y++ = Rectified(x, K, j) * Rectified(x, K, (j - i + 2 * K * nu) % (2 * K));
}

template <int64_t nu>
void DpfpBackwardRow(const double* x, const double*, const double* d_y, int64_t K, double* d_x) {
  std::fill_n(d_x, K, 0.0);
  const auto add = [&](int64_t j, double d_r) {
    if (Rectified(x, K, j) > 0) d_x[j % K] += j < K ? d_r : -d_r;
  };
  for (int64_t i = 1; i <= nu; ++i) {
    for (int64_t j = 0; j < 2 * K; ++j, ++d_y) {
      const int64_t other = (j - i + 2 * K * nu) % (2 * K);
      add(j, Rectified(x, K, other) * *d_y);
      add(other, Rectified(x, K, j) * *d_y);
    }
  }
}

template <int64_t nu>
RowFunctions Dpfp(std::string_view name) {
  return {
      .name = name,
      .features = [](int64_t K) { return 2 * K * nu; },
      .forward =
          [](const float* x, int64_t rows, int64_t K, float* y) {
            HWY_DYNAMIC_DISPATCH(DpfpForward)
            (x, rows, K, nu, y);
          },
      .backward =
          [](const float* x, const float*, const float* d_y, int64_t rows, int64_t K, float* d_x) {
            HWY_DYNAMIC_DISPATCH(DpfpBackward)
            (x, d_y, rows, K, nu, d_x);
          },
      .forward_row = DpfpRow<nu>,
      .backward_row = DpfpBackwardRow<nu>};
}

void HadamardRow(const double* x, int64_t K, double* y) {
  const int64_t F = HadamardFeatures(K);
  for (int64_t i = 0; i < F; ++i) y[i] = x[i] * (F + i < K ? x[F + i] : 1);
}

void HadamardBackwardRow(const double* x, const double*, const double* d_y, int64_t K,
                         double* d_x) {
  const int64_t F = HadamardFeatures(K);
  for (int64_t i = 0; i < F; ++i) {
    d_x[i] = d_y[i] * (F + i < K ? x[F + i] : 1);
    if (F + i < K) d_x[F + i] = d_y[i] * x[i];
  }
}

void Taylor2Row(const double* x, int64_t K, double* y) {
  const TaylorWeights weights(K);
  *y++ = 1;
  for (int64_t i = 0; i < K; ++i) *y++ = weights.linear * x[i];
  for (int64_t i = 0; i < K; ++i)
    for (int64_t j = i; j < K; ++j)
      *y++ = (i == j ? weights.square : weights.product) * x[i] * x[j];
}

void Taylor2BackwardRow(const double* x, const double*, const double* d_y, int64_t K, double* d_x) {
  const TaylorWeights weights(K);
  ++d_y;  // of the constant
  for (int64_t i = 0; i < K; ++i) d_x[i] = weights.linear * *d_y++;
  for (int64_t i = 0; i < K; ++i) {
    for (int64_t j = i; j < K; ++j, ++d_y) {
      const double weight = i == j ? weights.square : weights.product;
      d_x[i] += weight * x[j] * *d_y;
      d_x[j] += weight * x[i] * *d_y;
    }
  }
}

}  // namespace

std::span<const FeatureMap* const> ProductMaps() {
  static const RowMap dpfp(Dpfp<1>("dpfp")), dpfp2(Dpfp<2>("dpfp2")), dpfp3(Dpfp<3>("dpfp3")),
      dpfp4(Dpfp<4>("dpfp4"));
  static const RowMap hadamard(
      {.name = "hadamard",
       .features = HadamardFeatures,
       .forward =
           [](const float* x, int64_t rows, int64_t K, float* y) {
             HWY_DYNAMIC_DISPATCH(HadamardForward)
             (x, rows, K, y);
           },
       .backward =
           [](const float* x, const float*, const float* d_y, int64_t rows, int64_t K, float* d_x) {
             HWY_DYNAMIC_DISPATCH(HadamardBackward)
             (x, d_y, rows, K, d_x);
           },
       .forward_row = HadamardRow,
       .backward_row = HadamardBackwardRow});
  static const RowMap taylor2(
      {.name = "taylor2",
       .features = [](int64_t K) { return 1 + K + K * (K + 1) / 2; },
       .forward =
           [](const float* x, int64_t rows, int64_t K, float* y) {
             HWY_DYNAMIC_DISPATCH(Taylor2Forward)
             (x, rows, K, y);
           },
       .backward =
           [](const float* x, const float*, const float* d_y, int64_t rows, int64_t K, float* d_x) {
             HWY_DYNAMIC_DISPATCH(Taylor2Backward)
             (x, d_y, rows, K, d_x);
           },
       .forward_row = Taylor2Row,
       .backward_row = Taylor2BackwardRow});
  static const FeatureMap* const maps[] = {&dpfp, &dpfp2, &dpfp3, &dpfp4, &taylor2, &hadamard};
  return maps;
}

}  // namespace linattn
#endif  // HWY_ONCE
