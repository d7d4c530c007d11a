#include "kernels/gemm.h"

#include <gtest/gtest.h>
#include <hwy/targets.h>
#include <omp.h>

#include <cmath>
#include <random>

#include "base/error.h"
#include "kernels/simd_testing.h"

namespace linattn {
namespace {

std::vector<float> Normal(int64_t n, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(n);
  for (float& value : x) value = normal(random);
  return x;
}

struct Case {
  int64_t M, in, out;
};
const Case kCases[] = {{1, 1, 1},   {1, 256, 1024}, {1, 33, 31},   {2, 5, 33},    {3, 64, 64},
                       {7, 17, 96}, {8, 32, 100},   {16, 256, 77}, {65, 48, 130}, {130, 7, 257}};

// Each element against a float64 sum; the bound is that of a float32 sum of `in` products.
TEST(GemmTest, MatchesFloat64OnEveryTarget) {
  OnEveryTarget([&] {
    for (const auto& [M, in, out] : kCases) {
      SCOPED_TRACE(testing::Message() << "M=" << M << " in=" << in << " out=" << out);
      const int64_t x_stride = in + 3, y_stride = out + 5;
      const auto x = Normal(M * x_stride, 1), weight = Normal(out * in, 2), bias = Normal(out, 3);
      std::vector<float> y(M * y_stride, -777.0f);
      MatMul(M, {x.data(), x_stride}, PackedMatrix::Pack(weight.data(), bias.data(), out, in),
             {y.data(), y_stride});
      for (int64_t m = 0; m < M; ++m) {
        for (int64_t n = 0; n < y_stride; ++n) {
          if (n >= out) {
            ASSERT_EQ(y[m * y_stride + n], -777.0f) << "wrote behind row " << m;
            continue;
          }
          double sum = bias[n], size = std::abs(bias[n]);
          for (int64_t k = 0; k < in; ++k) {
            const double term = double{x[m * x_stride + k]} * weight[n * in + k];
            sum += term;
            size += std::abs(term);
          }
          ASSERT_NEAR(y[m * y_stride + n], sum, 4e-7 * size) << m << "," << n;
        }
      }
    }
  });
}

// A row's result must not depend on its batch, or generation would depend on a neighbour.
TEST(GemmTest, RowsAreIndependentOfBatchAndThreads) {
  const int64_t M = 67, in = 96, out = 289;
  const auto x = Normal(M * in, 1), weight = Normal(out * in, 2), bias = Normal(out, 3);
  const PackedMatrix w = PackedMatrix::Pack(weight.data(), bias.data(), out, in);
  std::vector<float> together(M * out), alone(M * out);
  const int threads = omp_get_max_threads();
  OnEveryTarget([&] {
    omp_set_num_threads(3);
    MatMul(M, {x.data(), in}, w, {together.data(), out});
    omp_set_num_threads(1);
    for (int64_t m = 0; m < M; ++m)
      MatMul(1, {x.data() + m * in, in}, w, {alone.data() + m * out, out});
    EXPECT_EQ(together, alone);
  });
  omp_set_num_threads(threads);
}

TEST(GemmTest, PackRefusesAnEmptyWeight) {
  EXPECT_THROW(PackedMatrix::Pack(nullptr, nullptr, 0, 4), Error);
}

}  // namespace
}  // namespace linattn
