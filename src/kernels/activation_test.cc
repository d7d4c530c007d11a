#include "kernels/activation.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "kernels/simd_testing.h"

namespace linattn {
namespace {

double ExactGelu(double x) { return 0.5 * x * std::erfc(-x / std::sqrt(2.0)); }

TEST(ActivationTest, GeluIsWithinItsStatedError) {
  std::vector<float> x;
  for (int i = -120'000; i <= 120'000; ++i) x.push_back(static_cast<float>(i) * 1e-4f);
  for (float big : {1e-30f, -1e-30f, 1e4f, -1e4f, 3e38f, -3e38f}) x.push_back(big);
  OnEveryTarget([&] {
    std::vector<float> y(x.size());
    Gelu(x.data(), static_cast<int64_t>(x.size()), y.data());
    for (size_t i = 0; i < x.size(); ++i) {
      const double error = std::abs(y[i] - ExactGelu(x[i]));
      ASSERT_LE(error, 2.5e-7 * std::max(1.0, std::abs(double{x[i]}))) << x[i];
    }
  });
}

TEST(ActivationTest, TailsAliasingAndNanAreRight) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  OnEveryTarget([&] {
    for (int64_t n : {0, 1, 3, 15, 16, 17, 33}) {
      std::vector<float> x(n + 1, -777.0f);
      for (int64_t i = 0; i < n; ++i) x[i] = i % 5 == 4 ? nan : static_cast<float>(i - n / 2);
      std::vector<float> gelu = x, relu = x;
      Gelu(gelu.data(), n, gelu.data());
      Relu(relu.data(), n, relu.data());
      for (int64_t i = 0; i < n; ++i) {
        if (i % 5 == 4) {
          EXPECT_TRUE(std::isnan(gelu[i]) && std::isnan(relu[i])) << i;
          continue;
        }
        EXPECT_NEAR(gelu[i], ExactGelu(x[i]), 2.5e-7 * std::max(1.0f, std::abs(x[i])));
        EXPECT_EQ(relu[i], std::max(x[i], 0.0f));
      }
      EXPECT_EQ(gelu[n], -777.0f);  // the float behind the last is not touched
      EXPECT_EQ(relu[n], -777.0f);
    }
  });
}

}  // namespace
}  // namespace linattn
