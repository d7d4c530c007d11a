#include "kernels/feature_map.h"

#include <gmock/gmock.h>

#include <limits>

#include "base/error.h"
#include "kernels/mixer_testing.h"

namespace linattn {
namespace {

constexpr const char* kNames[] = {"elu1", "relu", "squared_relu", "identity"};

TEST(FeatureMapTest, HasTheRightValues) {
  const double x[] = {-2, -0.5, 0, 0.25, 3};
  const std::map<std::string, std::vector<double>> expected = {
      {"elu1", {std::exp(-2), std::exp(-0.5), 1, 1.25, 4}},
      {"relu", {0, 0, 0, 0.25, 3}},
      {"squared_relu", {0, 0, 0, 0.0625, 9}},
      {"identity", {-2, -0.5, 0, 0.25, 3}}};
  for (const auto& [name, values] : expected) {
    double y[5];
    FeatureMapByName(name).Forward(x, 1, 5, y);
    for (int i = 0; i < 5; ++i) EXPECT_DOUBLE_EQ(y[i], values[i]) << name << " of " << x[i];
  }
}

// On every SIMD target, with tails, and in place; nothing behind the end is touched.
TEST(FeatureMapTest, FloatMatchesDouble) {
  for (const char* name : kNames) {
    const FeatureMap& map = FeatureMapByName(name);
    mixer_testing::OnEveryTarget([&] {
      for (const int64_t n : {1, 7, 16, 33, 1000}) {
        std::vector<float> x(n), d_y(n), y(n + 1, -777.0f), d_x;
        for (int64_t i = 0; i < n; ++i) {
          x[i] = static_cast<float>(i % 41 - 20) * 0.37f;
          d_y[i] = 1.0f + static_cast<float>(i % 3);
        }
        const std::vector<double> x64(x.begin(), x.end()), d64(d_y.begin(), d_y.end());
        std::vector<double> y64(n), d_x64(n);
        map.Forward(x64.data(), 1, n, y64.data());
        map.Backward(x64.data(), y64.data(), d64.data(), 1, n, d_x64.data());
        map.Forward(x.data(), 1, n, y.data());
        d_x = d_y;
        map.Backward(x.data(), y.data(), d_x.data(), 1, n, d_x.data());
        for (int64_t i = 0; i < n; ++i) {
          EXPECT_NEAR(y[i], y64[i], 3e-7 * std::abs(y64[i])) << name << " of " << x[i];
          EXPECT_NEAR(d_x[i], d_x64[i], 3e-7 * std::abs(d_x64[i])) << name << " at " << x[i];
        }
        EXPECT_EQ(y[n], -777.0f);
      }
    });
  }
}

TEST(FeatureMapTest, DerivativesMatchFiniteDifferences) {
  for (const char* name : kNames) {
    for (const double x : {-3.0, -0.7, 0.4, 2.0}) {
      const FeatureMap& map = FeatureMapByName(name);
      const double up = x + 1e-6, down = x - 1e-6, one = 1;
      double y, y_up, y_down, d_x;
      map.Forward(&x, 1, 1, &y), map.Forward(&up, 1, 1, &y_up), map.Forward(&down, 1, 1, &y_down);
      map.Backward(&x, &y, &one, 1, 1, &d_x);
      EXPECT_NEAR(d_x, (y_up - y_down) / 2e-6, 1e-8) << name << " at " << x;
    }
  }
}

TEST(FeatureMapTest, ExtremesStayFiniteOrNaN) {
  const float inf = std::numeric_limits<float>::infinity();
  const float x[] = {-inf, -1e30f, -200.0f, -100.0f, 1e30f, std::nanf("")};
  mixer_testing::OnEveryTarget([&] {
    float y[6];
    FeatureMapByName("elu1").Forward(x, 1, 6, y);
    for (int i = 0; i < 3; ++i) EXPECT_EQ(y[i], 0) << x[i];
    EXPECT_LT(y[3], 1e-40f);
    EXPECT_EQ(y[4], 1e30f);
    for (const char* name : kNames) {
      FeatureMapByName(name).Forward(x, 1, 6, y);
      EXPECT_TRUE(std::isnan(y[5])) << name << " hides a NaN";
    }
  });
}

TEST(FeatureMapTest, UnknownNameIsRefusedWithTheKnownOnes) {
  try {
    FeatureMapByName("elu");
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(),
                testing::AllOf(testing::HasSubstr("elu1, relu, squared_relu, identity"),
                               testing::HasSubstr("'elu'")));
  }
}

}  // namespace
}  // namespace linattn
