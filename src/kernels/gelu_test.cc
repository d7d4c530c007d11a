#include "kernels/gelu.h"

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <cmath>
#include <functional>
#include <limits>
#include <vector>

namespace linattn {
namespace {

void OnEveryTarget(const std::function<void()>& body) {
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    body();
    hwy::SetSupportedTargetsForTest(0);
  }
}

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

TEST(GeluTest, BFloat16IsTheExactValueRounded) {
  std::vector<BF16> x, d_y;
  for (uint32_t bits = 0; bits < (1 << 16); ++bits)
    if (std::isfinite(ToFloat(BF16{static_cast<uint16_t>(bits)}))) {
      x.push_back(BF16{static_cast<uint16_t>(bits)});
      d_y.push_back(ToBF16(0.375f));
    }
  const auto n = static_cast<int64_t>(x.size());
  OnEveryTarget([&] {
    std::vector<BF16> y(x.size()), d_x(x.size());
    GeluForward(MakeArray(x.data(), {n}), MakeArray(y.data(), {n}));
    GeluBackward(MakeArray(x.data(), {n}), MakeArray(d_y.data(), {n}), MakeArray(d_x.data(), {n}));
    for (size_t i = 0; i < x.size(); ++i) {
      const double v = ToFloat(x[i]), exact = v * 0.5 * std::erfc(-v / std::sqrt(2.0));
      ASSERT_NEAR(ToFloat(y[i]), exact, std::abs(exact) / 256 + 1e-38) << v;
      const double slope = 0.375 * ExactSlope(v);
      ASSERT_NEAR(ToFloat(d_x[i]), slope, std::abs(slope) / 256 + 1e-38) << v;
    }
  });
}

TEST(GeluTest, BFloat16KeepsNanAndInfinity) {
  const float inf = std::numeric_limits<float>::infinity(), nan = std::nanf("");
  std::vector<BF16> x{ToBF16(nan), ToBF16(inf), ToBF16(-inf)}, d_y(3, ToBF16(1)), y(3), d_x(3);
  GeluForward(MakeArray(x.data(), {3}), MakeArray(y.data(), {3}));
  GeluBackward(MakeArray(x.data(), {3}), MakeArray(d_y.data(), {3}), MakeArray(d_x.data(), {3}));
  EXPECT_TRUE(std::isnan(ToFloat(y[0])) && std::isnan(ToFloat(d_x[0])));
  EXPECT_EQ(ToFloat(y[1]), inf);
  EXPECT_EQ(ToFloat(d_x[1]), 1);
  EXPECT_EQ(ToFloat(y[2]), 0);
  EXPECT_EQ(ToFloat(d_x[2]), 0);
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
