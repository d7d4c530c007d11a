#include "kernels/short_conv.h"

#include <gtest/gtest.h>
#include <omp.h>

#include <cmath>
#include <random>
#include <vector>

#include "base/error.h"
#include "kernels/simd_testing.h"

namespace linattn {
namespace {

std::vector<float> Random(int64_t n, int seed) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(n);
  for (float& v : x) v = ToFloat(ToBF16(normal(engine)));  // exact in both types
  return x;
}

struct Shape {
  int64_t B, T, C, W;
};

double Silu(double x) { return x / (1 + std::exp(-x)); }
double SiluSlope(double x) {
  const double s = 1 / (1 + std::exp(-x));
  return s * (1 + x * (1 - s));
}

// Sums before silu, [B,T,C].
std::vector<double> Sums(const Shape& s, const std::vector<float>& x, const std::vector<float>& w) {
  std::vector<double> sums(s.B * s.T * s.C);
  for (int64_t b = 0; b < s.B; ++b)
    for (int64_t t = 0; t < s.T; ++t)
      for (int64_t c = 0; c < s.C; ++c)
        for (int64_t j = std::max<int64_t>(0, s.W - 1 - t); j < s.W; ++j)
          sums[(b * s.T + t) * s.C + c] +=
              double{w[j * s.C + c]} * x[(b * s.T + t - s.W + 1 + j) * s.C + c];
  return sums;
}

double Worst(const std::vector<float>& got, const std::vector<double>& want) {
  double worst = 0, largest = 1e-3;
  for (size_t i = 0; i < want.size(); ++i) {
    if (std::isnan(got[i])) return INFINITY;
    worst = std::max(worst, std::abs(got[i] - want[i]));
    largest = std::max(largest, std::abs(want[i]));
  }
  return worst / largest;
}

const Shape kShapes[] = {{1, 1, 1, 4}, {2, 3, 5, 4}, {1, 9, 64, 4}, {3, 20, 133, 2}, {2, 7, 70, 1}};

TEST(ShortConvTest, MatchesFloat64) {
  OnEveryTarget([] {
    for (const Shape& s : kShapes) {
      const auto x = Random(s.B * s.T * s.C, 1), w = Random(s.W * s.C, 2);
      auto want = Sums(s, x, w);
      for (double& v : want) v = Silu(v);
      std::vector<float> y(x.size() + 1, NAN);
      y.back() = -777;
      const ShortConv conv{w.data(), s.W, s.C};
      ShortConvForward(conv, MakeArray(x.data(), {s.B, s.T, s.C}), nullptr,
                       MakeArray(y.data(), {s.B, s.T, s.C}));
      EXPECT_EQ(y.back(), -777);
      EXPECT_LT(Worst(y, want), 1e-6) << s.C;
      std::vector<float> in_place = x;
      const Array both = MakeArray(in_place.data(), {s.B, s.T, s.C});
      ShortConvForward(conv, both, nullptr, both);
      y.pop_back();
      EXPECT_EQ(in_place, y);
    }
  });
}

// However the tokens are cut into calls, in place, in rows that are wider than the channels; and
// the history is the last W-1 inputs.
TEST(ShortConvTest, PiecesGiveTheSameBits) {
  OnEveryTarget([] {
    const Shape s{1, 12, 71, 4};
    const int64_t width = s.C + 5;
    const auto x = Random(s.T * width, 1), w = Random(s.W * s.C, 2);
    const ShortConv conv{w.data(), s.W, s.C};
    const auto run = [&](const std::vector<int64_t>& pieces) {
      std::vector<float> row = x, history((s.W - 1) * s.C, 0.0f);
      float* pointer = history.data();
      int64_t begin = 0;
      for (const int64_t n : pieces) {
        Array part = MakeArray(row.data() + begin * width, {1, n, s.C});
        part.stride = {n * width, width, 1};
        ShortConvForward(conv, part, &pointer, part);
        begin += n;
      }
      row.insert(row.end(), history.begin(), history.end());
      return row;
    };
    const auto want = run({12});
    for (int64_t i = 0; i < s.T; ++i) EXPECT_EQ(want[i * width + s.C], x[i * width + s.C]);
    for (int64_t j = 0; j < 3; ++j)
      EXPECT_EQ(want[s.T * width + j * s.C + 7], x[(s.T - 3 + j) * width + 7]);
    EXPECT_EQ(run({3, 4, 5}), want);
    EXPECT_EQ(run({1, 1, 0, 1, 9}), want);
    EXPECT_EQ(run(std::vector<int64_t>(12, 1)), want);
  });
}

TEST(ShortConvTest, BackwardMatchesFloat64AndIsTheSameForAnyThreadCount) {
  const int threads = omp_get_max_threads();
  OnEveryTarget([&] {
    for (const Shape& s : kShapes) {
      const auto x = Random(s.B * s.T * s.C, 1), w = Random(s.W * s.C, 2),
                 d_y = Random(s.B * s.T * s.C, 3);
      const auto sums = Sums(s, x, w);
      std::vector<double> d_x(x.size()), d_w(w.size());
      for (int64_t b = 0; b < s.B; ++b)
        for (int64_t t = 0; t < s.T; ++t)
          for (int64_t c = 0; c < s.C; ++c)
            for (int64_t j = std::max<int64_t>(0, s.W - 1 - t); j < s.W; ++j) {
              const int64_t at = (b * s.T + t) * s.C + c, from = at + (j - s.W + 1) * s.C;
              const double d = d_y[at] * SiluSlope(sums[at]);
              d_x[from] += d * w[j * s.C + c], d_w[j * s.C + c] += d * x[from];
            }
      std::vector<float> first;
      for (const int count : {1, 3}) {
        omp_set_num_threads(count);
        std::vector<float> fast = d_y, fast_w(w.size(), NAN);  // in place of d_y
        const auto view = [&](const auto& a) { return MakeArray(a.data(), {s.B, s.T, s.C}); };
        ShortConvBackward({w.data(), s.W, s.C}, {view(x), view(fast), view(fast), fast_w.data()});
        EXPECT_LT(Worst(fast, d_x), 2e-6) << s.C;
        EXPECT_LT(Worst(fast_w, d_w), 2e-6) << s.C;
        fast.insert(fast.end(), fast_w.begin(), fast_w.end());
        if (count == 1) first = fast;
        EXPECT_EQ(fast, first);
      }
    }
  });
  omp_set_num_threads(threads);
}

TEST(ShortConvTest, BFloat16IsRoundedOnceAndNaNStays) {
  const Shape s{1, 6, 40, 4};
  const auto x = Random(s.T * s.C, 1), w = Random(s.W * s.C, 2);
  auto want = Sums(s, x, w);
  std::vector<BF16> x16, y16(x.size());
  for (const float v : x) x16.push_back(ToBF16(v));
  ShortConvForward({w.data(), s.W, s.C}, MakeArray(x16.data(), {1, s.T, s.C}), nullptr,
                   MakeArray(y16.data(), {1, s.T, s.C}));
  for (size_t i = 0; i < want.size(); ++i)
    EXPECT_NEAR(ToFloat(y16[i]), Silu(want[i]), 0.004 * std::abs(Silu(want[i])) + 1e-6);
  std::vector<float> bad = x, y(x.size());
  bad[2 * s.C] = NAN;
  ShortConvForward({w.data(), s.W, s.C}, MakeArray(bad.data(), {1, s.T, s.C}), nullptr,
                   MakeArray(y.data(), {1, s.T, s.C}));
  for (int64_t t = 0; t < s.T; ++t) EXPECT_EQ(std::isnan(y[t * s.C]), t >= 2) << t;
  EXPECT_FALSE(std::isnan(y[2 * s.C + 1]));
}

TEST(ShortConvTest, WrongShapesAreRefused) {
  std::vector<float> w(8), x(24);
  const Array a = MakeArray(x.data(), {1, 6, 4});
  EXPECT_THROW(ShortConvForward({w.data(), 2, 3}, a, nullptr, a), Error);
  EXPECT_THROW(ShortConvForward({w.data(), 65, 4}, a, nullptr, a), Error);
  EXPECT_THROW(ShortConvForward({w.data(), 2, 4}, a, nullptr, MakeArray(x.data(), {1, 5, 4})),
               Error);
}

}  // namespace
}  // namespace linattn
