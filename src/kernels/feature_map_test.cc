#include "kernels/feature_map.h"

#include <gmock/gmock.h>

#include <limits>
#include <numeric>

#include "base/error.h"
#include "kernels/feature_map_testing.h"
#include "kernels/mixer_testing.h"

namespace linattn {
namespace {

constexpr const char* kElementwise[] = {"elu1", "relu", "squared_relu", "identity"};

using namespace feature_map_testing;

// Numbers of both signs that float holds, none of them 0.
template <class R>
std::vector<R> SomeRows(int64_t n, unsigned seed = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  std::vector<R> x(static_cast<size_t>(n));
  for (R& value : x) value = static_cast<R>(std::round(normal(random) * 64) / 64 + 1.0 / 128);
  return x;
}

TEST(FeatureMapTest, HasTheRightValues) {
  const Row x = {-2, -0.5, 0, 0.25, 3};
  const std::map<std::string, Row> expected = {{"elu1", {std::exp(-2), std::exp(-0.5), 1, 1.25, 4}},
                                               {"relu", {0, 0, 0, 0.25, 3}},
                                               {"squared_relu", {0, 0, 0, 0.0625, 9}},
                                               {"identity", {-2, -0.5, 0, 0.25, 3}}};
  for (const auto& [name, values] : expected) EXPECT_EQ(Map(FeatureMapByName(name), x), values);
}

TEST(FeatureMapTest, RowMapsHaveTheRightValues) {
  const double third = 1.0 / 3, root = std::sqrt(0.5);
  const std::vector<std::tuple<std::string, Row, Row>> cases = {
      {"l2", {3, -4}, {3 / std::sqrt(25 + 1e-6), -4 / std::sqrt(25 + 1e-6)}},
      {"exp", {0, std::log(2)}, {third, 2 * third}},
      {"hedgehog", {0, std::log(2)}, {third, 2 * third, 2 * third, third}},
      // r = 1 0 0 2: products with the one before, two before, three before.
      {"dpfp", {1, -2}, {2, 0, 0, 0}},
      {"dpfp", {3, 5}, {0, 15, 0, 0}},
      {"dpfp2", {3, 5}, {0, 15, 0, 0, 0, 0, 0, 0}},
      {"dpfp3", {3, 5}, {0, 15, 0, 0, 0, 0, 0, 0, 15, 0, 0, 0}},
      {"dpfp4", {3}, {0, 0, 9, 0, 0, 0, 9, 0}},
      {"hadamard", {2, 3, 5, 7}, {10, 21}},
      {"hadamard", {2, 3, 5}, {10, 3}},
      {"taylor2", {2}, {1, 2, 4 * root}},
      {"taylor2",
       {2, 3},
       {1, 2 * std::pow(2, -0.25), 3 * std::pow(2, -0.25), 4 * root * root, 6 * root,
        9 * root * root}}};
  for (const auto& [name, x, y] : cases) {
    const Row result = Map(FeatureMapByName(name), x);
    ASSERT_EQ(result.size(), y.size()) << name;
    for (size_t i = 0; i < y.size(); ++i) EXPECT_NEAR(result[i], y[i], 1e-14) << name << " " << i;
  }
}

// 1 + a + a^2/2 with a = q.k K^-1/2 (Based).
TEST(FeatureMapTest, Taylor2IsTheSecondOrderExpansion) {
  const FeatureMap& map = FeatureMapByName("taylor2");
  for (const int64_t K : {1, 2, 5, 16}) {
    const Row q = SomeRows<double>(K, 1), k = SomeRows<double>(K, 2);
    const double a = Dot(q, k) / std::sqrt(static_cast<double>(K));
    EXPECT_NEAR(Dot(Map(map, q), Map(map, k)), 1 + a + a * a / 2, 1e-12);
    EXPECT_EQ(map.Features(K), 1 + K + K * (K + 1) / 2);
  }
}

TEST(FeatureMapTest, SoftmaxMapsSumToOne) {
  for (const int64_t K : {1, 7, 64}) {
    const Row x = SomeRows<double>(K);
    const Row exp = Map(FeatureMapByName("exp"), x),
              hedgehog = Map(FeatureMapByName("hedgehog"), x);
    EXPECT_NEAR(std::accumulate(exp.begin(), exp.end(), 0.0), 1, 1e-14);
    EXPECT_NEAR(std::accumulate(hedgehog.begin(), hedgehog.end(), 0.0), 2, 1e-14);
    EXPECT_THAT(exp, testing::Each(testing::Gt(0)));
  }
}

// At most nu of the products of K numbers with themselves are left by dpfp: features of rows with
// other signs do not overlap.
TEST(FeatureMapTest, DpfpOfOppositeRowsIsOrthogonal) {
  for (const char* name : {"dpfp", "dpfp2", "dpfp3", "dpfp4"}) {
    const FeatureMap& map = FeatureMapByName(name);
    const Row x = SomeRows<double>(9);
    Row minus = x;
    for (double& value : minus) value = -value;
    EXPECT_EQ(Dot(Map(map, x), Map(map, minus)), 0) << name;
    EXPECT_GT(Dot(Map(map, x), Map(map, x)), 0) << name;
  }
}

// On every SIMD target, with tails, several rows; nothing behind the end is touched.
void ExpectFloatMatchesDouble(const FeatureMap& map, int64_t rows, int64_t K) {
  SCOPED_TRACE(testing::Message() << map.name() << " rows " << rows << " K " << K);
  const int64_t F = map.Features(K);
  const auto x = SomeRows<float>(rows * K), d_y = SomeRows<float>(rows * F, 2);
  const Row x64(x.begin(), x.end()), d64(d_y.begin(), d_y.end());
  Row y64(d64.size()), d_x64(x64.size());
  map.Forward(x64.data(), rows, K, y64.data());
  map.Backward(x64.data(), y64.data(), d64.data(), rows, K, d_x64.data());
  std::vector<float> y(y64.size() + 1, -777.0f), d_x(x64.size() + 1, -777.0f);
  map.Forward(x.data(), rows, K, y.data());
  map.Backward(x.data(), y.data(), d_y.data(), rows, K, d_x.data());
  EXPECT_EQ(y.back(), -777.0f);
  EXPECT_EQ(d_x.back(), -777.0f);
  const auto expect_close = [](const std::vector<float>& fast, const Row& ref) {
    double size = 0;
    for (const double value : ref) size = std::max(size, std::abs(value));
    for (size_t i = 0; i < ref.size(); ++i) EXPECT_NEAR(fast[i], ref[i], 4e-6 * size) << i;
  };
  expect_close(y, y64);
  // A gradient that the definition makes 0 (softmax of one number) is left with rounding.
  if (K > 1) expect_close(d_x, d_x64);
}

TEST(FeatureMapTest, FloatMatchesDouble) {
  OnEveryTarget([] {
    for (const FeatureMap* map : AllFeatureMaps())
      for (const int64_t K : {1, 2, 3, 7, 16, 33, 64})
        for (const int64_t rows : {1, 19}) ExpectFloatMatchesDouble(*map, rows, K);
  });
}

TEST(FeatureMapTest, GradientsMatchFiniteDifferences) {
  for (const FeatureMap* map : AllFeatureMaps()) {
    for (const int64_t K : {1, 2, 3, 5, 8}) {
      SCOPED_TRACE(testing::Message() << map->name() << " K " << K);
      const Row x = SomeRows<double>(K), y = Map(*map, x);
      const Row d_y = SomeRows<double>(map->Features(K), 2);
      Row d_x(x.size(), 777);
      map->Backward(x.data(), y.data(), d_y.data(), 1, K, d_x.data());
      for (size_t i = 0; i < x.size(); ++i) {
        Row up = x, down = x;
        up[i] += 1e-6, down[i] -= 1e-6;
        const double slope = (Dot(Map(*map, up), d_y) - Dot(Map(*map, down), d_y)) / 2e-6;
        EXPECT_NEAR(d_x[i], slope, 1e-7 * std::max(1.0, std::abs(slope))) << i;
      }
    }
  }
}

// Zeros are rows like others: no 0/0, and no gradient that is not finite.
TEST(FeatureMapTest, RowsOfZerosStayFinite) {
  for (const FeatureMap* map : AllFeatureMaps()) {
    for (const int64_t K : {1, 5, 16}) {
      const auto F = static_cast<size_t>(map->Features(K));
      const std::vector<float> x(static_cast<size_t>(K), 0.0f), d_y(F, 1.0f);
      std::vector<float> y(F), d_x(x.size());
      map->Forward(x.data(), 1, K, y.data());
      map->Backward(x.data(), y.data(), d_y.data(), 1, K, d_x.data());
      for (const auto& values : {y, d_x})
        for (const float value : values) EXPECT_TRUE(std::isfinite(value)) << map->name();
      if (map->name() == "l2") {
        EXPECT_THAT(y, testing::Each(0.0f));
        EXPECT_THAT(d_x, testing::Each(testing::FloatNear(1000, 1e-3)));
      }
    }
  }
}

TEST(FeatureMapTest, LargeValuesDoNotOverflow) {
  const std::map<std::string, float> limits = {
      {"squared_relu", 1e18f}, {"dpfp", 1e18f},     {"dpfp2", 1e18f},   {"dpfp3", 1e18f},
      {"dpfp4", 1e18f},        {"hadamard", 1e18f}, {"taylor2", 1e18f}, {"favor", 1e35f}};
  OnEveryTarget([&] {
    for (const FeatureMap* map : AllFeatureMaps()) {
      const auto limit = limits.find(std::string(map->name()));
      for (const int64_t K : {1, 5, 37}) {
        const float size = limit == limits.end() ? 3e38f : limit->second;
        auto x = SomeRows<float>(K);
        for (float& value : x) value = value > 0 ? size : -size / 2;
        std::vector<float> y(static_cast<size_t>(map->Features(K)));
        map->Forward(x.data(), 1, K, y.data());
        for (const float value : y) EXPECT_TRUE(std::isfinite(value)) << map->name() << value;
      }
    }
    const float x[] = {3e38f, 0, -3e38f};
    float y[3];
    FeatureMapByName("l2").Forward(x, 1, 3, y);
    EXPECT_NEAR(y[0], std::sqrt(0.5), 1e-6);
    EXPECT_NEAR(y[2], -std::sqrt(0.5), 1e-6);
  });
}

TEST(FeatureMapTest, ElementwiseExtremes) {
  const float inf = std::numeric_limits<float>::infinity();
  const float x[] = {-inf, -1e30f, -200.0f, -100.0f, 1e30f, std::nanf("")};
  OnEveryTarget([&] {
    float y[6];
    FeatureMapByName("elu1").Forward(x, 1, 6, y);
    for (int i = 0; i < 3; ++i) EXPECT_EQ(y[i], 0) << x[i];
    EXPECT_LT(y[3], 1e-40f);
    EXPECT_EQ(y[4], 1e30f);
  });
}

// A diverged model must not look sound.
TEST(FeatureMapTest, NanStaysNan) {
  OnEveryTarget([] {
    for (const FeatureMap* map : AllFeatureMaps()) {
      for (const int64_t K : {3, 40}) {
        for (const int64_t at : {int64_t{0}, K - 1}) {
          std::vector<float> x(static_cast<size_t>(K), 1.0f);
          x[at] = std::nanf("");
          std::vector<float> y(static_cast<size_t>(map->Features(K)));
          map->Forward(x.data(), 1, K, y.data());
          EXPECT_TRUE(std::any_of(y.begin(), y.end(), [](float v) { return std::isnan(v); }))
              << map->name() << " hides a NaN at " << at;
        }
      }
    }
  });
}

// Where the header allows it: elementwise maps, l2 and exp.
TEST(FeatureMapTest, GradientMayOverwriteItsCotangent) {
  std::vector<std::string> names(std::begin(kElementwise), std::end(kElementwise));
  names.insert(names.end(), {"l2", "exp"});
  OnEveryTarget([&] {
    for (const std::string& name : names) {
      const FeatureMap& map = FeatureMapByName(name);
      const auto x = SomeRows<float>(3 * 21), d_y = SomeRows<float>(3 * 21, 2);
      std::vector<float> y(x.size()), apart(x.size()), in_place = d_y;
      map.Forward(x.data(), 3, 21, y.data());
      map.Backward(x.data(), y.data(), d_y.data(), 3, 21, apart.data());
      map.Backward(x.data(), y.data(), in_place.data(), 3, 21, in_place.data());
      EXPECT_EQ(in_place, apart) << name;
    }
  });
}

TEST(FeatureMapTest, UnknownNameIsRefusedWithTheKnownOnes) {
  EXPECT_THAT([] { FeatureMapByName("elu"); },
              testing::ThrowsMessage<Error>(
                  testing::AllOf(testing::HasSubstr("elu1, relu, squared_relu, identity, l2"),
                                 testing::HasSubstr("favor"), testing::HasSubstr("'elu'"))));
}

}  // namespace
}  // namespace linattn
