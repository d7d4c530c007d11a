#include "kernels/rotary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "base/error.h"
#include "kernels/mixer_testing.h"

namespace linattn {
namespace {

// The definition, in extended precision: the test's own, so that positions of 1e6 show what is
// lost.
std::vector<double> Rotated(const std::vector<double>& x, const std::vector<int64_t>& positions,
                            int64_t heads, int64_t C, double base, int direction) {
  std::vector<double> y(x.size());
  for (int64_t i = 0; i < C / 2; ++i) {
    const long double theta =
        std::pow(static_cast<long double>(base), -2.0L * i / static_cast<long double>(C));
    for (size_t row = 0; row < x.size() / C; ++row) {
      const long double angle = direction * theta * positions[row / heads];
      const double low = x[row * C + i], high = x[row * C + C / 2 + i];
      y[row * C + i] = static_cast<double>(low * std::cos(angle) - high * std::sin(angle));
      y[row * C + C / 2 + i] = static_cast<double>(high * std::cos(angle) + low * std::sin(angle));
    }
  }
  return y;
}

struct Problem {
  Problem(int64_t T, int64_t heads, int64_t C) : T(T), heads(heads), C(C) {
    std::mt19937 random(3);
    std::normal_distribution<double> normal;
    for (int64_t i = 0; i < T * heads * C; ++i) x.push_back(std::round(normal(random) * 32) / 32);
    for (int64_t t = 0; t < T; ++t) positions.push_back(t * 997 % 1000003);
    positions.back() = 1000000;
  }
  int64_t T, heads, C;
  std::vector<double> x;
  std::vector<int64_t> positions;
};

double Largest(const std::vector<double>& x, const std::vector<double>& y) {
  double worst = 0;
  for (size_t i = 0; i < x.size(); ++i) worst = std::max(worst, std::abs(x[i] - y[i]));
  return worst;
}

TEST(Rotary, MatchesFloat64Reference) {
  for (const int64_t C : {2, 6, 32, 34, 64}) {
    const Problem p(300, 3, C);
    const auto positions = MakeArray(p.positions.data(), {1, p.T});
    const Rotary rotary(C);
    for (const int direction : {1, -1}) {
      SCOPED_TRACE(testing::Message() << "C=" << C << " direction " << direction);
      const auto ref = Rotated(p.x, p.positions, p.heads, C, 10000, direction);
      std::vector<double> wide(p.x.size());
      const Array x = MakeArray(p.x.data(), {1, p.T, p.heads, C});
      const Array y = MakeArray(wide.data(), {1, p.T, p.heads, C});
      direction == 1 ? rotary.Forward(x, positions, y) : rotary.Backward(x, positions, y);
      EXPECT_LT(Largest(wide, ref), 1e-9);
      OnEveryTarget([&] {
        std::vector<float> narrow(p.x.begin(), p.x.end());
        const Array z = MakeArray(narrow.data(), {1, p.T, p.heads, C});  // in place
        direction == 1 ? rotary.Forward(z, positions, z) : rotary.Backward(z, positions, z);
        EXPECT_LT(Largest({narrow.begin(), narrow.end()}, ref), 2e-6);  // |x| up to 4
      });
    }
  }
}

TEST(Rotary, BackwardUndoesForwardAndKeepsLengths) {
  const Problem p(50, 2, 16);
  const auto positions = MakeArray(p.positions.data(), {1, p.T});
  std::vector<double> y(p.x.size()), z(p.x.size());
  const auto view = [&](const std::vector<double>& a) {
    return MakeArray(a.data(), {1, p.T, p.heads, p.C});
  };
  const Rotary rotary(16, 500);
  rotary.Forward(view(p.x), positions, view(y));
  rotary.Backward(view(y), positions, view(z));
  EXPECT_LT(Largest(z, p.x), 1e-14);
}

TEST(Rotary, ScoresDependOnTheDistance) {
  // q . k at positions (5, 2) and (900005, 900002).
  const Problem p(2, 1, 64);
  double scores[2];
  for (int far = 0; far < 2; ++far) {
    const std::vector<int64_t> at = {5 + far * 900000, 2 + far * 900000};
    std::vector<float> x(p.x.begin(), p.x.end());
    const Array a = MakeArray(x.data(), {1, 2, 1, 64});
    Rotary(64).Forward(a, MakeArray(at.data(), {1, 2}), a);
    scores[far] = 0;
    for (int i = 0; i < 64; ++i) scores[far] += double{x[i]} * x[64 + i];
  }
  EXPECT_NEAR(scores[0], scores[1], 2e-5);
}

TEST(Rotary, StridedShortRowsShareTheirPositions) {
  // q of a fused [B,T,2D] array in bfloat16 and float16; one row of positions for both b.
  const int64_t B = 2, T = 5, H = 2, C = 20, D = H * C;
  const Problem p(B * T, H, C);
  std::vector<int64_t> positions = {7, 8, 9, 10, 400000}, twice = positions;
  twice.insert(twice.end(), positions.begin(), positions.end());
  const auto ref = Rotated(p.x, twice, H, C, 10000, 1);
  Array row = MakeArray(positions.data(), {B, T});
  row.stride[0] = 0;
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    const bool bf16 = dtype == DType::kBF16;
    std::vector<uint16_t> fused(B * T * 2 * D, 0x1234);
    for (int64_t i = 0; i < B * T * D; ++i)
      fused[i / D * 2 * D + i % D] = bf16 ? ToBF16(p.x[i]).bits : ToF16(p.x[i]).bits;
    Array q = MakeArray(fused.data(), dtype, {B, T, H, C});
    q.stride = {T * 2 * D, 2 * D, C, 1};
    Rotary(C).Forward(q, row, q);
    for (int64_t i = 0; i < B * T * D; ++i) {
      const uint16_t bits = fused[i / D * 2 * D + i % D];
      const float y = bf16 ? ToFloat(BF16{bits}) : ToFloat(F16{bits});
      EXPECT_NEAR(y, ref[i], (bf16 ? 0x1p-8 : 0x1p-11) * std::abs(ref[i]) + 2e-6);
      EXPECT_EQ(fused[i / D * 2 * D + D + i % D], 0x1234);
    }
  }
}

TEST(Rotary, RefusesWhatItWouldMisread) {
  std::vector<float> x(24);
  std::vector<int64_t> positions(4);
  const auto rotate = [&](const Array& a, const Array& at, int64_t channels = 6) {
    Rotary(channels).Forward(a, at, a);
  };
  const Array good = MakeArray(x.data(), {1, 2, 2, 6}), at = MakeArray(positions.data(), {1, 2});
  EXPECT_NO_THROW(rotate(good, at));
  EXPECT_THROW(rotate(good, at, 4), Error);
  EXPECT_THROW(rotate(good, at, 5), Error);
  EXPECT_THROW(rotate(good, MakeArray(positions.data(), {1, 3})), Error);
  EXPECT_THROW(rotate(good, MakeArray(x.data(), {1, 2})), Error);
  Array across = good;
  across.stride = {24, 12, 1, 2};
  EXPECT_THROW(rotate(across, at), Error);
  EXPECT_THROW(Rotary(6).Forward(good, at, MakeArray(x.data(), {1, 2, 6, 2})), Error);
  EXPECT_THROW(Rotary(6, 0), Error);
}

}  // namespace
}  // namespace linattn
