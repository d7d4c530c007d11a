#include "kernels/gelu.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "kernels/simd_testing.h"

namespace linattn {
namespace {

double ExactSlope(double x) {
  return 0.5 * std::erfc(-x / std::sqrt(2.0)) + x * std::exp(-0.5 * x * x) / std::sqrt(2 * M_PI);
}

// 24003 points in [-12,12] and a few far out.
std::vector<float> Points() {
  std::vector<float> x;
  for (int i = -12'001; i <= 12'001; ++i) x.push_back(static_cast<float>(i) * 1e-3f);
  for (float big : {1e-30f, 100.0f, -100.0f, 3e38f, -3e38f}) x.push_back(big);
  return x;
}

TEST(GeluTest, BackwardIsWithinItsStatedError) {
  const auto x = Points();
  const auto n = static_cast<int64_t>(x.size());
  OnEveryTarget([&] {
    std::vector<float> d_y(x.size(), 2.0f), d_x(x.size());
    GeluBackward(MakeArray(x.data(), {n}), MakeArray(d_y.data(), {n}), MakeArray(d_x.data(), {n}));
    for (size_t i = 0; i < x.size(); ++i)
      ASSERT_NEAR(d_x[i], 2 * ExactSlope(x[i]), 6e-7 * std::max(1.0, std::abs(double{x[i]})))
          << x[i];
  });
}

TEST(GeluTest, BFloat16IsTheRoundedFloat32) {
  const auto points = Points();
  const auto n = static_cast<int64_t>(points.size());
  OnEveryTarget([&] {
    std::vector<BF16> x, y(points.size()), d_y, d_x(points.size());
    std::vector<float> x32, y32(points.size()), d_y32, d_x32(points.size());
    for (float p : points) {
      x.push_back(ToBF16(p)), d_y.push_back(ToBF16(-p / 3));
      x32.push_back(ToFloat(x.back())), d_y32.push_back(ToFloat(d_y.back()));
    }
    GeluForward(MakeArray(x.data(), {n}), MakeArray(y.data(), {n}));
    GeluForward(MakeArray(x32.data(), {n}), MakeArray(y32.data(), {n}));
    GeluBackward(MakeArray(x.data(), {n}), MakeArray(d_y.data(), {n}), MakeArray(d_x.data(), {n}));
    GeluBackward(MakeArray(x32.data(), {n}), MakeArray(d_y32.data(), {n}),
                 MakeArray(d_x32.data(), {n}));
    for (size_t i = 0; i < x.size(); ++i) {
      ASSERT_EQ(y[i].bits, ToBF16(y32[i]).bits) << x32[i];
      ASSERT_EQ(d_x[i].bits, ToBF16(d_x32[i]).bits) << x32[i];
    }
  });
}

TEST(GeluTest, NanStaysAndNothingBehindTheEndIsTouched) {
  OnEveryTarget([&] {
    std::vector<float> x(20, 1.0f), d_y(20, 1.0f);
    x[2] = x[17] = std::numeric_limits<float>::quiet_NaN();
    GeluBackward(MakeArray(x.data(), {19}), MakeArray(d_y.data(), {19}),
                 MakeArray(d_y.data(), {19}));
    EXPECT_TRUE(std::isnan(d_y[2]) && std::isnan(d_y[17]));
    EXPECT_NEAR(d_y[18], 1.0833155, 1e-6);  // Phi(1) + exp(-1/2) / sqrt(2 pi)
    EXPECT_EQ(d_y[19], 1.0f);
  });
}

}  // namespace
}  // namespace linattn
