#include "kernels/favor_map.h"

#include <gmock/gmock.h>

#include <thread>

#include "base/error.h"
#include "kernels/feature_map_testing.h"
#include "kernels/mixer_testing.h"

namespace linattn {
namespace {

using namespace feature_map_testing;

Row NormalRow(int64_t K, unsigned seed, double size = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  Row x(static_cast<size_t>(K));
  for (double& value : x) value = static_cast<float>(size * normal(random));
  return x;
}

// Section 2.4: rows of a block are orthogonal, their lengths those of normal vectors.
TEST(OrthogonalProjectionTest, BlocksAreOrthogonalWithNormalLengths) {
  constexpr int64_t K = 24, M = 60;
  const auto w = OrthogonalProjection(M, K, 7);
  ASSERT_EQ(std::ssize(w), M * K);
  double mean = 0;
  for (int64_t i = 0; i < M; ++i) {
    const Row a(w.begin() + i * K, w.begin() + (i + 1) * K);
    mean += Dot(a, a) / M;
    for (int64_t j = i / K * K; j < i; ++j) {
      const Row b(w.begin() + j * K, w.begin() + (j + 1) * K);
      EXPECT_NEAR(Dot(a, b), 0, 1e-5) << i << " " << j;
    }
  }
  EXPECT_NEAR(mean, K, 0.15 * K);  // chi^2 with K degrees: deviation sqrt(2 K / M)
}

TEST(OrthogonalProjectionTest, IsAFunctionOfItsArguments) {
  EXPECT_EQ(OrthogonalProjection(16, 5, 3), OrthogonalProjection(16, 5, 3));
  EXPECT_NE(OrthogonalProjection(16, 5, 3), OrthogonalProjection(16, 5, 4));
  // Pinned: a model may be drawn again from its seed.
  const auto w = OrthogonalProjection(1, 2, 0);
  EXPECT_NEAR(w[0], -0.13630944, 1e-6);
  EXPECT_NEAR(w[1], -1.39187551, 1e-6);
}

// phi(q).phi(k), without the query's shift, estimates exp(q.k K^-1/2).
TEST(FavorMapTest, EstimatesTheSoftmaxKernel) {
  constexpr int64_t K = 8;
  const auto projection = OrthogonalProjection(1 << 15, K, 5);
  const auto query = FavorMap::Published(FavorRole::kQuery, projection, K);
  const FavorMap key(FavorRole::kKey, projection, K);
  for (unsigned seed = 0; seed < 4; ++seed) {
    const Row q = NormalRow(K, seed, 0.7), k = NormalRow(K, seed + 10, 0.7);
    const double truth = std::exp(Dot(q, k) / std::sqrt(static_cast<double>(K)));
    const double shift = FavorShift(q.data(), 1, projection, K);
    EXPECT_NEAR(Dot(Map(query, q), Map(key, k)) * std::exp(shift), truth, 0.1 * truth);
  }
}

// The query's shift cancels in a normalised output: both forms give the same weights over keys.
TEST(FavorMapTest, FormsAgreeButForTheirFloor) {
  constexpr int64_t K = 8, S = 12;
  const auto projection = OrthogonalProjection(32, K, 1);
  Row all;
  for (unsigned s = 0; s < S; ++s)
    for (const double value : NormalRow(K, 10 + s)) all.push_back(value);
  const double shift = FavorShift(all.data(), S, projection, K);
  const FavorMap query(FavorRole::kQuery, projection, K), key(FavorRole::kKey, projection, K);
  const auto other_query = FavorMap::Published(FavorRole::kQuery, projection, K);
  const auto other_key = FavorMap::Published(FavorRole::kKey, projection, K, shift);
  const Row q = NormalRow(K, 99);
  Row streaming, published;
  double a = 0, b = 0;
  for (int64_t s = 0; s < S; ++s) {
    const Row k(all.begin() + s * K, all.begin() + (s + 1) * K);
    a += streaming.emplace_back(Dot(Map(query, q), Map(key, k)));
    b += published.emplace_back(Dot(Map(other_query, q), Map(other_key, k)));
  }
  for (size_t s = 0; s < S; ++s) EXPECT_NEAR(streaming[s] / a, published[s] / b, 2e-3);
}

// Every form's float code and gradient against the definition; the query's and key's gradients
// against finite differences where no constant is in the way are in feature_map_test.cc.
TEST(FavorMapTest, FloatMatchesDouble) {
  for (const int64_t K : {1, 5, 16, 40}) {
    const auto projection = OrthogonalProjection(3 * K + 1, K, 1);
    const FavorMap maps[] = {{FavorRole::kQuery, projection, K},
                             {FavorRole::kKey, projection, K},
                             FavorMap::Published(FavorRole::kQuery, projection, K),
                             FavorMap::Published(FavorRole::kKey, projection, K, 3.5)};
    for (const FavorMap& map : maps) {
      constexpr int64_t kRows = 21;
      const Row x = NormalRow(kRows * K, 2), d_y = NormalRow(kRows * map.Features(K), 3);
      Row y(d_y.size()), d_x(x.size());
      map.Forward(x.data(), kRows, K, y.data());
      map.Backward(x.data(), y.data(), d_y.data(), kRows, K, d_x.data());
      const std::vector<float> x32(x.begin(), x.end()), d_y32(d_y.begin(), d_y.end());
      OnEveryTarget([&] {
        std::vector<float> y32(y.size()), d_x32(x.size());
        map.Forward(x32.data(), kRows, K, y32.data());
        map.Backward(x32.data(), y32.data(), d_y32.data(), kRows, K, d_x32.data());
        const auto error = [](const std::vector<float>& fast, const Row& ref) {
          double e = 0, size = 0;
          for (size_t i = 0; i < ref.size(); ++i) {
            e = std::max(e, std::abs(fast[i] - ref[i]));
            size = std::max(size, std::abs(ref[i]));
          }
          return size > 0 ? e / size : e;
        };
        EXPECT_LE(error(y32, y), 3e-6) << K;
        EXPECT_LE(error(d_x32, d_x), 5e-6) << K;
      });
    }
  }
}

// The streaming key's gradient is exact, and so is the published one while its shift is fixed.
TEST(FavorMapTest, KeyGradientsMatchFiniteDifferences) {
  constexpr int64_t K = 5;
  const auto projection = OrthogonalProjection(11, K, 1);
  for (const FavorMap& map : {FavorMap(FavorRole::kKey, projection, K),
                              FavorMap::Published(FavorRole::kKey, projection, K, 2)}) {
    const Row x = NormalRow(K, 2), d_y = NormalRow(11, 3), y = Map(map, x);
    Row d_x(K);
    map.Backward(x.data(), y.data(), d_y.data(), 1, K, d_x.data());
    for (size_t i = 0; i < x.size(); ++i) {
      Row up = x, down = x;
      up[i] += 1e-6, down[i] -= 1e-6;
      EXPECT_NEAR(d_x[i], (Dot(Map(map, up), d_y) - Dot(Map(map, down), d_y)) / 2e-6, 1e-7);
    }
  }
}

// The published query's: with the row's maximum held.
TEST(FavorMapTest, PublishedQueryHoldsItsMaximum) {
  constexpr int64_t K = 5, M = 11;
  const auto projection = OrthogonalProjection(M, K, 1);
  const Row x = NormalRow(K, 2), d_y = NormalRow(M, 3);
  const double shift = FavorShift(x.data(), 1, projection, K);
  const auto query = FavorMap::Published(FavorRole::kQuery, projection, K);
  const auto held = FavorMap::Published(FavorRole::kKey, projection, K, shift);
  const Row y = Map(query, x), same = Map(held, x);
  Row d_x(K), expected(K);
  for (int64_t j = 0; j < M; ++j) EXPECT_NEAR(y[j], same[j], 1e-15);
  query.Backward(x.data(), y.data(), d_y.data(), 1, K, d_x.data());
  held.Backward(x.data(), same.data(), d_y.data(), 1, K, expected.data());
  for (int64_t k = 0; k < K; ++k) EXPECT_NEAR(d_x[k], expected[k], 1e-14);
}

// Keys that lie on a row of the projection, the worst case, and far beyond; wide heads.
TEST(FavorMapTest, KeysNeverOverflow) {
  for (const int64_t K : {4, 64, 300}) {
    const auto projection = OrthogonalProjection(K, K, 1);
    const FavorMap map(FavorRole::kKey, projection, K);
    const auto root = static_cast<float>(std::pow(static_cast<double>(K), 0.25));
    for (const float size : {1.0f, root, 3 * root, 1e6f, 1e30f}) {
      std::vector<float> x(projection.begin(), projection.end());
      for (float& value : x) value *= size;
      std::vector<float> y(x.size()), d_y(x.size(), 1.0f), d_x(x.size());
      OnEveryTarget([&] {
        map.Forward(x.data(), K, K, y.data());
        map.Backward(x.data(), y.data(), d_y.data(), K, K, d_x.data());
        for (const auto& values : {y, d_x})
          for (const float value : values) ASSERT_LT(std::abs(value), 1e30f) << K << " " << size;
      });
    }
  }
}

// A key on a row of a wide projection: that row's feature is e^60 M^-1/2, flat from there on.
TEST(FavorMapTest, CutFeaturesHaveNoGradient) {
  constexpr int64_t K = 300, M = 8;
  const auto projection = OrthogonalProjection(M, K, 1);
  const FavorMap map(FavorRole::kKey, projection, K);
  Row x(projection.begin(), projection.begin() + K), d_y(M, 0.0), y(M), d_x(K);
  for (double& value : x) value *= std::pow(static_cast<double>(K), 0.25);
  d_y[0] = 1;
  map.Forward(x.data(), 1, K, y.data());
  map.Backward(x.data(), y.data(), d_y.data(), 1, K, d_x.data());
  EXPECT_NEAR(y[0], std::exp(60) / std::sqrt(8), 1e12);
  EXPECT_THAT(d_x, testing::Each(0.0));
  const std::vector<float> x32(x.begin(), x.end()), d_y32(d_y.begin(), d_y.end());
  OnEveryTarget([&] {
    std::vector<float> y32(M), d_x32(K);
    map.Forward(x32.data(), 1, K, y32.data());
    map.Backward(x32.data(), y32.data(), d_y32.data(), 1, K, d_x32.data());
    EXPECT_THAT(d_x32, testing::Each(0.0f));
  });
}

// One token's features depend on that token alone: rows one by one, bitwise as together.
TEST(FavorMapTest, RowsDoNotDependOnOthers) {
  constexpr int64_t K = 12, kRows = 37;
  const auto projection = OrthogonalProjection(45, K, 1);
  for (const FavorRole role : {FavorRole::kQuery, FavorRole::kKey}) {
    const FavorMap map(role, projection, K);
    const Row x64 = NormalRow(kRows * K, 2);
    const std::vector<float> x(x64.begin(), x64.end());
    OnEveryTarget([&] {
      std::vector<float> together(kRows * 45), alone(45);
      map.Forward(x.data(), kRows, K, together.data());
      for (int64_t i = 0; i < kRows; ++i) {
        map.Forward(x.data() + i * K, 1, K, alone.data());
        for (int64_t j = 0; j < 45; ++j) ASSERT_EQ(alone[j], together[i * 45 + j]) << i;
      }
    });
  }
}

TEST(FavorMapTest, RefusesOtherWidths) {
  const auto projection = OrthogonalProjection(8, 4, 1);
  EXPECT_THAT([&] { FavorMap(FavorRole::kKey, projection, 5); },
              testing::ThrowsMessage<Error>(testing::HasSubstr("[M,K] with K=5")));
  EXPECT_THAT([&] { FavorMap(FavorRole::kKey, projection, 4).Features(3); },
              testing::ThrowsMessage<Error>(testing::HasSubstr("K=4")));
  EXPECT_THAT([] { OrthogonalProjection(0, 4, 1); },
              testing::ThrowsMessage<Error>(testing::HasSubstr("M=0")));
}

TEST(DefaultFavorMapTest, IsOneProjectionAWidthFromAnyThread) {
  const FeatureMap& query = DefaultFavorMap();
  EXPECT_NE(&query, &query.OfKeys());
  EXPECT_EQ(query.Features(64), 272);  // 64 ln 64 = 266.2
  EXPECT_EQ(query.Features(1), 16);
  const Row x = NormalRow(23, 4);
  std::vector<Row> results(4);
  std::vector<std::thread> threads;
  for (Row& result : results) threads.emplace_back([&] { result = Map(query.OfKeys(), x); });
  for (std::thread& thread : threads) thread.join();
  const FavorMap own(FavorRole::kKey, OrthogonalProjection(query.Features(23), 23, 0), 23);
  for (const Row& result : results) EXPECT_EQ(result, Map(own, x));
}

}  // namespace
}  // namespace linattn
