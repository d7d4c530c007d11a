#include "kernels/residual_norm.h"

#include <gtest/gtest.h>
#include <omp.h>

#include <cmath>
#include <random>
#include <vector>

#include "kernels/simd_testing.h"

namespace linattn {
namespace {

using Doubles = std::vector<double>;

// Values that bfloat16 holds exactly, so that both dtypes see the same.
std::vector<float> Random(int64_t n, int seed, float mean = 0) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(mean, 1);
  std::vector<float> x(n);
  for (auto& v : x) v = ToFloat(ToBF16(normal(generator)));
  return x;
}
std::vector<BF16> Narrow(const std::vector<float>& x) {
  std::vector<BF16> y;
  for (float v : x) y.push_back(ToBF16(v));
  return y;
}
std::vector<float> Widen(const std::vector<BF16>& x) {
  std::vector<float> y;
  for (BF16 v : x) y.push_back(ToFloat(v));
  return y;
}

struct Case {
  int64_t rows, dim;
  bool delta, narrow;  // narrow: delta, y and their gradients in bfloat16
  bool centred = true;
};

struct Results {
  std::vector<float> sum, y, d_x, d_delta, d_weight, d_bias;
};

Results RunFast(const Case& c) {
  const int64_t n = c.rows * c.dim;
  const auto x = Random(n, 1, 0.5f), delta = Random(n, 2), weight = Random(c.dim, 3),
             bias = Random(c.dim, 4), d_y = Random(n, 5), d_sum = Random(n, 6);
  const auto delta16 = Narrow(delta), d_y16 = Narrow(d_y);
  const ResidualNorm norm{.rows = c.rows,
                          .dim = c.dim,
                          .eps = 1e-5f,
                          .weight = weight.data(),
                          .bias = c.centred ? bias.data() : nullptr,
                          .centred = c.centred};
  Results r{std::vector<float>(n, NAN),     std::vector<float>(n, NAN),
            std::vector<float>(n, NAN),     std::vector<float>(n, NAN),
            std::vector<float>(c.dim, NAN), std::vector<float>(c.dim, NAN)};
  std::vector<float> statistics(2 * c.rows, NAN);
  std::vector<BF16> y16(n), d_delta16(n);
  const auto array = [&](const std::vector<float>& wide, const std::vector<BF16>& half) {
    return c.narrow ? MakeArray(half.data(), {c.rows, c.dim})
                    : MakeArray(wide.data(), {c.rows, c.dim});
  };
  ResidualNormForward(norm, {.x = x.data(),
                             .delta = c.delta ? array(delta, delta16) : Array(),
                             .sum = r.sum.data(),
                             .y = array(r.y, y16),
                             .statistics = statistics.data()});
  ResidualNormBackward(norm, {.sum = c.delta ? r.sum.data() : x.data(),
                              .statistics = statistics.data(),
                              .d_y = array(d_y, d_y16),
                              .d_sum = c.delta ? d_sum.data() : nullptr,
                              .d_x = r.d_x.data(),
                              .d_delta = c.delta ? array(r.d_delta, d_delta16) : Array(),
                              .d_weight = r.d_weight.data(),
                              .d_bias = c.centred ? r.d_bias.data() : nullptr});
  if (c.narrow) r.y = Widen(y16), r.d_delta = Widen(d_delta16);
  return r;
}

struct Reference {
  Doubles sum, y, d_x, d_weight, d_bias;
};

// The definition, and its derivative by the chain rule through mean and deviation.
Reference RunReference(const Case& c) {
  const int64_t n = c.rows * c.dim;
  const auto x = Random(n, 1, 0.5f), delta = Random(n, 2), weight = Random(c.dim, 3),
             bias = Random(c.dim, 4), d_y = Random(n, 5), d_sum = Random(n, 6);
  Reference r{Doubles(n), Doubles(n), Doubles(n), Doubles(c.dim), Doubles(c.dim)};
  for (int64_t row = 0; row < c.rows; ++row) {
    const int64_t at = row * c.dim;
    double mean = 0, variance = 0, d_mean = 0, d_variance = 0;
    for (int64_t i = 0; i < c.dim; ++i) {
      r.sum[at + i] = double{x[at + i]} + (c.delta ? delta[at + i] : 0);
      if (c.centred) mean += r.sum[at + i] / c.dim;
    }
    for (int64_t i = 0; i < c.dim; ++i) variance += std::pow(r.sum[at + i] - mean, 2) / c.dim;
    const double scale = 1 / std::sqrt(variance + double{1e-5f});
    for (int64_t i = 0; i < c.dim; ++i) {
      const double h = (r.sum[at + i] - mean) * scale, d_h = double{d_y[at + i]} * weight[i];
      r.y[at + i] = h * weight[i] + (c.centred ? bias[i] : 0);
      r.d_weight[i] += d_y[at + i] * h, r.d_bias[i] += d_y[at + i];
      if (c.centred) d_mean -= d_h * scale;
      d_variance -= 0.5 * d_h * (r.sum[at + i] - mean) * std::pow(scale, 3);
    }
    for (int64_t i = 0; i < c.dim; ++i)
      r.d_x[at + i] = double{d_y[at + i]} * weight[i] * scale + d_mean / c.dim +
                      2 * d_variance * (r.sum[at + i] - mean) / c.dim +
                      (c.delta ? d_sum[at + i] : 0);
  }
  return r;
}

double WorstError(const std::vector<float>& x, const Doubles& ref) {
  double worst = 0, size = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    if (std::isnan(x[i])) return INFINITY;
    worst = std::max(worst, std::abs(x[i] - ref[i])), size = std::max(size, std::abs(ref[i]));
  }
  return worst / size;
}

TEST(ResidualNormTest, MatchesTheDefinition) {
  OnEveryTarget([] {
    for (const Case& c :
         {Case{3, 16, true, false}, Case{1, 2, true, true}, Case{300, 37, true, true},
          Case{129, 128, false, true}, Case{5, 19, false, false}, Case{130, 19, true, false, false},
          Case{7, 40, false, true, false}}) {
      SCOPED_TRACE(testing::Message() << c.rows << "x" << c.dim << (c.narrow ? " BF16" : " F32"));
      const auto fast = RunFast(c);
      const auto ref = RunReference(c);
      const double rounded = c.narrow ? 4e-3 : 2e-6;  // 2^-8 of the largest
      if (c.delta) {
        EXPECT_LT(WorstError(fast.sum, ref.sum), 1e-7);
      }
      EXPECT_LT(WorstError(fast.y, ref.y), rounded);
      EXPECT_LT(WorstError(fast.d_x, ref.d_x), 3e-6);
      if (c.delta) {
        EXPECT_LT(WorstError(fast.d_delta, ref.d_x), rounded);
      }
      EXPECT_LT(WorstError(fast.d_weight, ref.d_weight), 3e-6);
      if (c.centred) {
        EXPECT_LT(WorstError(fast.d_bias, ref.d_bias), 3e-6);
      }
    }
  });
}

TEST(ResidualNormTest, SameForAnyThreadCount) {
  const int threads = omp_get_max_threads();
  const Case c{1000, 24, true, true};
  omp_set_num_threads(1);
  const auto one = RunFast(c);
  omp_set_num_threads(3);
  const auto three = RunFast(c);
  omp_set_num_threads(threads);
  EXPECT_EQ(one.d_weight, three.d_weight);
  EXPECT_EQ(one.d_bias, three.d_bias);
  EXPECT_EQ(one.d_x, three.d_x);
}

TEST(ColumnSumsTest, MatchesDoublesForStridedRowsOfBothTypes) {
  OnEveryTarget([] {
    for (const auto& [rows, columns] : {std::pair<int64_t, int64_t>{1, 1}, {7, 33}, {1000, 130}}) {
      const int64_t stride = columns + 5;
      const auto x = Random(rows * stride, 8, 1);
      const auto x16 = Narrow(x);
      Doubles ref(columns);
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t i = 0; i < columns; ++i) ref[i] += x[r * stride + i];
      for (const bool narrow : {false, true}) {
        std::vector<float> sums(columns + 1, NAN);
        sums[columns] = -777;
        Array view =
            narrow ? MakeArray(x16.data(), {rows, columns}) : MakeArray(x.data(), {rows, columns});
        view.stride[0] = stride;
        ColumnSums(view, sums.data());
        EXPECT_EQ(sums[columns], -777);
        sums.pop_back();
        EXPECT_LT(WorstError(sums, ref), 1e-6);
      }
    }
  });
}

}  // namespace
}  // namespace linattn
