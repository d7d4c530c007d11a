#include "kernels/gemm.h"

#include <gtest/gtest.h>
#include <hwy/targets.h>
#include <omp.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>

#include "base/error.h"
#include "kernels/native_dots.h"
#include "kernels/simd_testing.h"

namespace linattn {
namespace {

constexpr WeightType kTypes[] = {WeightType::kFloat32, WeightType::kBFloat16, WeightType::kInt8};

// Every SIMD target, and the best one without the one-instruction products of bfloat16 and int8.
void OnEveryMachine(const std::function<void()>& body) {
  OnEveryTarget(body);
  SCOPED_TRACE("without native dot products");
  SetDotsForTest({false, false});
  body();
  SetDotsForTest({true, true});
}

void ForEachType(const std::function<void(WeightType)>& body) {
  for (const WeightType type : kTypes) {
    SCOPED_TRACE(WeightTypeName(type));
    OnEveryMachine([&] { body(type); });
  }
}

std::vector<float> Normal(int64_t n, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(n);
  for (float& value : x) value = normal(random);
  return x;
}

double Largest(const float* x, int64_t n) {
  double largest = 0;
  for (int64_t i = 0; i < n; ++i) largest = std::max(largest, std::abs(double{x[i]}));
  return largest;
}

struct Case {
  int64_t M, in, out;
};
const Case kCases[] = {{1, 1, 1},    {1, 256, 1024}, {1, 33, 31},   {2, 5, 33},    {3, 64, 64},
                       {4, 65, 200}, {7, 17, 96},    {8, 32, 100},  {12, 63, 129}, {13, 130, 65},
                       {29, 31, 97}, {16, 256, 77},  {65, 48, 130}, {130, 7, 257}};

// One row times one output in float64, and a bound on the error of the fast path.
struct Expected {
  double value, bound;
};
Expected RowTimesOutput(WeightType type, const float* x, const float* w, int64_t in, double bias) {
  double sum = bias, size = std::abs(bias), left = 0, right = 0;
  for (int64_t k = 0; k < in; ++k) {
    const double term = double{x[k]} * w[k];
    sum += term;
    size += std::abs(term);
    left += std::abs(double{x[k]});
    right += std::abs(double{w[k]});
  }
  const double rounding = 4e-7 * size;  // of a float32 sum of `in` terms
  switch (type) {
    case WeightType::kFloat32:
      return {sum, rounding};
    case WeightType::kBFloat16:  // both factors to 8 bits: 2^-8 each
      return {sum, rounding + 1.01 / 128 * size};
    case WeightType::kInt8: {  // both factors to half a step of 1/127 of the largest
      const double x_half = Largest(x, in) / 254, w_half = Largest(w, in) / 254;
      const double n = static_cast<double>(in);
      return {sum, rounding + 1.001 * (x_half * right + w_half * left + n * x_half * w_half)};
    }
  }
  return {};
}

void MatchesFloat64(const Case& c, WeightType type) {
  const auto& [M, in, out] = c;
  const int64_t x_stride = in + 3, y_stride = out + 5;
  const auto x = Normal(M * x_stride, 1), weight = Normal(out * in, 2), bias = Normal(out, 3);
  std::vector<Expected> expected;
  for (int64_t m = 0; m < M; ++m)
    for (int64_t n = 0; n < out; ++n)
      expected.push_back(RowTimesOutput(type, &x[m * x_stride], &weight[n * in], in, bias[n]));
  const auto w = PackedMatrix::Pack(weight.data(), bias.data(), out, in, type);
  OnEveryMachine([&, M = M, out = out] {
    std::vector<float> y(M * y_stride, -777.0f);
    MatMul(M, {x.data(), x_stride}, w, {y.data(), y_stride});
    for (int64_t i = 0; i < M * y_stride; ++i) {
      const int64_t m = i / y_stride, n = i % y_stride;
      if (n < out) {
        const auto [value, bound] = expected[m * out + n];
        ASSERT_NEAR(y[i], value, bound) << m << "," << n;
      } else {
        ASSERT_EQ(y[i], -777.0f) << "wrote behind row " << m;
      }
    }
  });
}

TEST(GemmTest, MatchesFloat64) {
  for (const WeightType type : kTypes)
    for (const Case& c : kCases) {
      SCOPED_TRACE(testing::Message()
                   << WeightTypeName(type) << " M=" << c.M << " in=" << c.in << " out=" << c.out);
      MatchesFloat64(c, type);
    }
}

// A row's result must not depend on its batch, or generation would depend on a neighbour.
TEST(GemmTest, RowsAreIndependentOfBatchAndThreads) {
  const int64_t M = 301, in = 96, out = 289;
  const auto x = Normal(M * in, 1), weight = Normal(out * in, 2), bias = Normal(out, 3);
  const int threads = omp_get_max_threads();
  ForEachType([&](WeightType type) {
    const PackedMatrix w = PackedMatrix::Pack(weight.data(), bias.data(), out, in, type);
    std::vector<float> alone(M * out);
    omp_set_num_threads(1);
    for (int64_t m = 0; m < M; ++m)
      MatMul(1, {x.data() + m * in, in}, w, {alone.data() + m * out, out});
    omp_set_num_threads(3);
    for (const int64_t rows : {2, 4, 5, 11, 67, 301}) {
      std::vector<float> together(rows * out);
      MatMul(rows, {x.data(), in}, w, {together.data(), out});
      EXPECT_TRUE(std::equal(together.begin(), together.end(), alone.begin())) << rows << " rows";
    }
  });
  omp_set_num_threads(threads);
}

// Parts by panels make the same rows bit by bit and touch nothing else; parts by inputs add up.
TEST(GemmTest, PartsMakeTheWhole) {
  constexpr int64_t kPanel = PackedMatrix::kPanel;
  const int64_t M = 2, in = 192, out = 3 * kPanel + 30, split = 64;
  const auto x = Normal(M * in, 1), weight = Normal(out * in, 2), bias = Normal(out, 3);
  ForEachType([&](WeightType type) {
    const PackedMatrix w = PackedMatrix::Pack(weight.data(), bias.data(), out, in, type);
    std::vector<float> whole(M * out), y(M * out, -777.0f);
    MatMul(M, {x.data(), in}, w, {whole.data(), out});
    PreparedRows rows(M, in);
    rows.Shape(type, M, in);
    rows.Fill(1, M, {x.data(), in});
    rows.Fill(0, 1, {x.data(), in});
    MatMulPanels(rows, w, {1, 3}, {y.data(), out});
    for (int64_t i = 0; i < M * out; ++i)
      ASSERT_EQ(y[i], i % out >= kPanel && i % out < 3 * kPanel ? whole[i] : -777.0f) << i;
    rows.Prepare(type, M, split, {x.data(), in});
    MatMulPanels(rows, w, {.panel_begin = 0, .panel_end = w.panels()}, {y.data(), out});
    rows.Prepare(type, M, in - split, {x.data() + split, in});
    MatMulPanels(rows, w,
                 {.panel_begin = 0,
                  .panel_end = w.panels(),
                  .input_begin = split,
                  .bias = false,
                  .add = true},
                 {y.data(), out});
    for (int64_t i = 0; i < M * out; ++i) {
      const int64_t m = i / out, n = i % out;
      const auto [value, bound] = RowTimesOutput(type, &x[m * in], &weight[n * in], in, bias[n]);
      ASSERT_NEAR(y[i], value, bound) << i;
    }
  });
}

TEST(GemmTest, LayOutChangesNothing) {
  const int64_t M = 3, in = 100, out = 5 * PackedMatrix::kPanel - 3;
  const auto x = Normal(M * in, 1), weight = Normal(2 * out * in, 2), bias = Normal(out, 3);
  for (const WeightType type : kTypes) {
    SCOPED_TRACE(WeightTypeName(type));
    auto a = PackedMatrix::Pack(weight.data(), bias.data(), out, in, type);
    auto b = PackedMatrix::Pack(&weight[out * in], nullptr, out, in, type);
    const PackedMatrix before[] = {a, b};
    const PanelRange order[] = {{&a, 0, 2}, {&b, 0, 3}, {&a, 2, 5}, {&b, 3, 5}};
    LayOut(order);
    EXPECT_EQ(b.panel(0) - a.panel(1), a.panel(1) - a.panel(0));
    const PackedMatrix* after[] = {&a, &b};
    for (const int i : {0, 1}) {
      std::vector<float> expected(M * out), y(M * out);
      MatMul(M, {x.data(), in}, before[i], {expected.data(), out});
      MatMul(M, {x.data(), in}, *after[i], {y.data(), out});
      EXPECT_EQ(y, expected);
    }
    EXPECT_THROW(LayOut({{{&a, 0, 2}, {&a, 1, 5}}}), Error);
    EXPECT_THROW(LayOut({{{&a, 0, 4}}}), Error);
    EXPECT_THROW(LayOut({{{&a, 0, 6}}}), Error);
  }
}

// What is not finite must show, in its own row alone.
TEST(GemmTest, NonFiniteInputSurfaces) {
  const int64_t M = 3, in = 70, out = 40;
  const auto weight = Normal(out * in, 2);
  const float infinity = std::numeric_limits<float>::infinity();
  ForEachType([&](WeightType type) {
    const PackedMatrix w = PackedMatrix::Pack(weight.data(), nullptr, out, in, type);
    for (const float bad :
         {std::nanf(""), std::bit_cast<float>(0x7fffffffu), infinity, -infinity}) {
      auto x = Normal(M * in, 1);
      x[in + 69] = bad;
      std::vector<float> y(M * out);
      MatMul(M, {x.data(), in}, w, {y.data(), out});
      for (int64_t i = 0; i < M * out; ++i)
        ASSERT_EQ(std::isfinite(y[i]), i / out != 1) << bad << " at " << i;
    }
  });
  ForEachType([&](WeightType type) {
    for (const float bad : {std::nanf(""), infinity}) {
      auto broken = weight;
      broken[7 * in + 3] = bad;
      const auto x = Normal(in, 1);
      std::vector<float> y(out);
      MatMul(1, {x.data(), in}, PackedMatrix::Pack(broken.data(), nullptr, out, in, type),
             {y.data(), out});
      for (int64_t n = 0; n < out; ++n) ASSERT_EQ(std::isfinite(y[n]), n != 7) << n;
    }
  });
}

// Beside the usual bounds tiny values meet the smallest float (f32), products' inputs below 1.2e-38
// taken as zero (the bfloat16 instruction) and half of the smallest step, 1.5e-39 (int8).
TEST(GemmTest, ZeroTinyAndHugeRows) {
  const int64_t in = 65, out = 33;
  const auto weight = Normal(out * in, 2), x = Normal(in, 1);
  ForEachType([&](WeightType type) {
    const PackedMatrix w = PackedMatrix::Pack(weight.data(), nullptr, out, in, type);
    const double tiny[] = {1.4e-45, 1.2e-38, 1.5e-39};
    for (const float factor : {0.0f, 1e-42f, 1e-38f, 1e-37f, 1e-30f, 1e30f}) {
      std::vector<float> row(in), y(out);
      for (int64_t k = 0; k < in; ++k) row[k] = factor * x[k];
      MatMul(1, {row.data(), in}, w, {y.data(), out});
      for (int64_t n = 0; n < out; ++n) {
        const float* weights = &weight[n * in];
        double slack = 1;
        for (int64_t k = 0; k < in; ++k) slack += std::abs(double{weights[k]});
        const auto [value, bound] = RowTimesOutput(type, row.data(), weights, in, 0);
        ASSERT_NEAR(y[n], value, bound + 1.01 * slack * tiny[static_cast<int>(type)])
            << factor << " " << n;
      }
    }
  });
}

// One input and a weight of 1 show the rounding of either: ties to even, no overflow of a carry.
TEST(GemmTest, BFloat16RoundsToNearestEven) {
  const uint32_t cases[][2] = {{0x3f800000, 0x3f800000}, {0x3f807fff, 0x3f800000},
                               {0x3f808000, 0x3f800000}, {0x3f808001, 0x3f810000},
                               {0x3f818000, 0x3f820000}, {0xbf818000, 0xbf820000},
                               {0x3fffffff, 0x40000000}, {0x7f7fffff, 0x7f800000}};
  OnEveryMachine([&] {
    for (const auto& [bits, rounded] : cases) {
      const auto value = std::bit_cast<float>(bits), one = 1.0f;
      for (const auto& [x, weight] : {std::pair{value, one}, {one, value}}) {
        float y = 0;
        MatMul(1, {&x, 1}, PackedMatrix::Pack(&weight, nullptr, 1, 1, WeightType::kBFloat16),
               {&y, 1});
        EXPECT_EQ(y, std::bit_cast<float>(rounded)) << value;
      }
    }
  });
}

TEST(GemmTest, TypesAreNamed) {
  for (const WeightType type : kTypes) EXPECT_EQ(ParseWeightType(WeightTypeName(type)), type);
  EXPECT_THROW(ParseWeightType("fp16"), Error);
}

TEST(GemmTest, RefusesWhatDoesNotFit) {
  EXPECT_THROW(PackedMatrix::Pack(nullptr, nullptr, 0, 4), Error);
  const std::vector<float> zeros(64 * 4);
  float y[4];
  const auto w = PackedMatrix::Pack(zeros.data(), nullptr, 4, 64, WeightType::kBFloat16);
  PreparedRows rows;
  rows.Prepare(WeightType::kFloat32, 1, 64, {zeros.data(), 64});
  EXPECT_THROW(MatMulPanels(rows, w, {0, 1}, {y, 4}), Error);
  rows.Prepare(WeightType::kBFloat16, 1, 32, {zeros.data(), 32});
  EXPECT_THROW(MatMulPanels(rows, w, {.panel_begin = 0, .panel_end = 1, .input_begin = 16}, {y, 4}),
               Error);
  EXPECT_THROW(MatMulPanels(rows, w, {.panel_begin = 0, .panel_end = 1, .input_begin = 64}, {y, 4}),
               Error);
}

}  // namespace
}  // namespace linattn
