#include "kernels/layer_norm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "kernels/simd_testing.h"

namespace linattn {
namespace {

std::vector<float> Random(int64_t n, int seed, float mean = 0) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal(mean, 1.5f);
  std::vector<float> x(n);
  for (float& v : x) v = normal(engine);
  return x;
}

// Row r of the definition in float64.
std::vector<double> Reference(const LayerNormParameters& p, const float* x) {
  double mean = 0, variance = 0;
  for (int64_t i = 0; p.centred && i < p.dim; ++i) mean += x[i] / static_cast<double>(p.dim);
  for (int64_t i = 0; i < p.dim; ++i) variance += (x[i] - mean) * (x[i] - mean) / p.dim;
  std::vector<double> y(p.dim);
  for (int64_t i = 0; i < p.dim; ++i) {
    y[i] = (x[i] - mean) / std::sqrt(variance + p.eps) * p.weight[i];
    if (p.centred) y[i] += p.bias[i];
  }
  return y;
}

TEST(LayerNormTest, MatchesFloat64ForAnyWidthAndRows) {
  OnEveryTarget([] {
    for (int64_t dim : {1, 5, 16, 31, 128, 257}) {
      for (int64_t rows : {0, 1, 3, 300}) {
        const std::vector<float> x = Random(rows * dim, 1, 2.0f);
        const std::vector<float> weight = Random(dim, 2), bias = Random(dim, 3);
        LayerNormParameters p{weight.data(), bias.data(), dim, 1e-5f};
        if (rows == 3) p.centred = false, p.bias = nullptr;  // RMSNorm
        std::vector<float> y(rows * dim + 1, 99.0f);
        LayerNorm(p, x.data(), rows, y.data());
        EXPECT_EQ(y[rows * dim], 99.0f);
        for (int64_t r = 0; r < rows; ++r) {
          const std::vector<double> want = Reference(p, &x[r * dim]);
          double largest = 1e-3;
          for (double w : want) largest = std::max(largest, std::abs(w));
          for (int64_t i = 0; i < dim; ++i) {
            ASSERT_NEAR(y[r * dim + i], want[i], 1e-6 * largest) << dim << " " << r << " " << i;
          }
        }
      }
    }
  });
}

TEST(LayerNormTest, AddFirstThenNormAlsoInPlace) {
  OnEveryTarget([] {
    const int64_t dim = 37, rows = 4;
    const std::vector<float> x = Random(rows * dim, 1), delta = Random(rows * dim, 2);
    const std::vector<float> weight = Random(dim, 3), bias = Random(dim, 4);
    const LayerNormParameters p{weight.data(), bias.data(), dim, 1e-5f};
    std::vector<float> sum(x), y(rows * dim), want(rows * dim);
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += delta[i];
    LayerNorm(p, sum.data(), rows, want.data());

    std::vector<float> stream = x;
    const Terms one{delta.data(), 1, 0};
    AddLayerNorm(p, one, rows, stream.data(), y.data());
    EXPECT_EQ(stream, sum);
    EXPECT_EQ(y, want);
    std::vector<float> post = x;
    AddLayerNorm(p, one, rows, post.data(), post.data());
    EXPECT_EQ(post, want);
  });
}

TEST(LayerNormTest, TermsAreSummedFirst) {
  OnEveryTarget([] {
    const int64_t dim = 37, rows = 4, n = dim * rows;
    const std::vector<float> x = Random(n, 1), terms = Random(3 * n, 2);
    const std::vector<float> weight = Random(dim, 3), bias = Random(dim, 4);
    const LayerNormParameters p{weight.data(), bias.data(), dim, 1e-5f};
    std::vector<float> want(x), y(n), stream(x), norm(n);
    for (int64_t i = 0; i < n; ++i) want[i] += (terms[i] + terms[n + i]) + terms[2 * n + i];
    AddTerms({terms.data(), 3, n}, n, stream.data());
    EXPECT_EQ(stream, want);
    stream = x;
    AddLayerNorm(p, {terms.data(), 3, n}, rows, stream.data(), y.data());
    LayerNorm(p, want.data(), rows, norm.data());
    EXPECT_EQ(stream, want);
    EXPECT_EQ(y, norm);
  });
}

TEST(LayerNormTest, ConstantRowIsTheBias) {
  const std::vector<float> x(64, 3.0f), weight(64, 2.0f), bias(64, 0.5f);
  std::vector<float> y(64);
  LayerNorm({weight.data(), bias.data(), 64, 1e-5f}, x.data(), 1, y.data());
  EXPECT_EQ(y, bias);
}

}  // namespace
}  // namespace linattn
