#include "kernels/gates.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "kernels/output_gate.h"
#include "kernels/simd_testing.h"
#include "kernels/swiglu.h"

namespace linattn {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Ordinary values, both ends, and the place where softplus becomes the identity.
std::vector<float> Logits() {
  std::vector<float> x;
  for (float v = -30; v <= 30; v += 0.37f) x.push_back(v);
  for (const float v : {0.0f, 19.9f, 20.1f, 88.0f, -88.0f, -104.0f, 500.0f, -500.0f, 1e30f, -1e30f,
                        kInfinity, -kInfinity})
    x.push_back(v);
  return x;
}

double Softplus(double x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x))); }
double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

// Two rows of n logits each, in rows that are wider; calls check(x, fast) for each.
template <class Run, class Want>
void ExpectRows(const Run& run, const Want& want) {
  const std::vector<float> x = Logits();
  const auto n = static_cast<int64_t>(x.size()), stride = n + 3;
  std::vector<float> rows(2 * stride, -777.0f);
  for (int64_t i = 0; i < n; ++i) rows[i] = x[i], rows[stride + i] = x[n - 1 - i];
  run(Rows{rows.data(), stride}, n);
  for (int64_t i = 0; i < n; ++i) {
    const double wanted = want(x[i], i);
    for (const float fast : {rows[i], rows[stride + n - 1 - i]}) {
      const bool infinite = std::isinf(static_cast<float>(wanted));
      EXPECT_EQ(std::isinf(fast), infinite) << x[i];
      if (!infinite) {
        EXPECT_NEAR(fast, wanted, 1e-6 * std::abs(wanted) + 1e-37) << x[i];
      }
    }
  }
  for (int64_t i = n; i < stride; ++i) EXPECT_EQ(rows[i], -777.0f);
  float bad[2] = {std::numeric_limits<float>::quiet_NaN(), 1};
  run(Rows{bad, 2}, 1);
  EXPECT_TRUE(std::isnan(bad[0]));
}

TEST(GatesTest, LogSigmoidDecay) {
  OnEveryTarget([] {
    ExpectRows([](Rows x, int64_t n) { LogSigmoidDecay(x, n > 1 ? 2 : 1, n, 16); },
               [](float x, int64_t) { return -Softplus(-double{x}) / 16; });
  });
}

TEST(GatesTest, SigmoidGateUpToTwo) {
  OnEveryTarget([] {
    for (const double factor : {1.0, 2.0})
      ExpectRows([&](Rows x, int64_t n) { SigmoidGate(x, n > 1 ? 2 : 1, n, factor); },
                 [&](float x, int64_t) { return std::max(factor * Sigmoid(x), 1e-38); });
  });
}

TEST(GatesTest, SoftplusDecayNeverRises) {
  OnEveryTarget([] {
    const std::vector<float> x = Logits();
    const auto n = static_cast<int64_t>(x.size());
    std::vector<float> rate(n), bias(n), g = x;
    for (int64_t i = 0; i < n; ++i) rate[i] = 0.5f + i % 7, bias[i] = 0.25f * (i % 5) - 0.5f;
    SoftplusDecay({g.data(), n}, 1, n, {rate.data(), bias.data()});
    for (int64_t i = 0; i < n; ++i) {
      const double want = -double{rate[i]} * Softplus(double{x[i] + bias[i]});
      EXPECT_LE(g[i], 0);
      if (std::isfinite(g[i])) {
        EXPECT_NEAR(g[i], want, 2e-6 * std::abs(want) + 1e-36) << x[i];
      }
      EXPECT_EQ(std::isinf(g[i]), want < -3.4e38) << x[i];
    }
  });
}

TEST(GatesTest, OutputStageNormsEachHeadThenGates) {
  OnEveryTarget([] {
    const int64_t dim = 5, heads = 3, rows = 2, width = heads * dim, stride = width + 4;
    const std::vector<float> weight = {1, 2, 0.5f, -1, 1.5f};
    std::vector<float> o0(rows * width), gate(rows * stride);
    for (size_t i = 0; i < o0.size(); ++i) o0[i] = std::sin(1.0f + i);
    for (size_t i = 0; i < gate.size(); ++i) gate[i] = std::cos(2.0f + 3 * i) * 3;
    for (const bool norm : {true, false})
      for (const auto kind : {OutputGate::kNone, OutputGate::kSwish, OutputGate::kSigmoid}) {
        OutputStage stage;
        stage.norm = {norm ? weight.data() : nullptr, nullptr, dim, 1e-3f, false};
        stage.gate = kind, stage.heads = heads;
        std::vector<float> o = o0;
        ApplyOutputStage(stage, {gate.data(), stride}, rows, {o.data(), width});
        for (int64_t i = 0; i < rows * width; ++i) {
          double squares = 0, want = o0[i];
          for (int64_t j = i / dim * dim; j < i / dim * dim + dim; ++j)
            squares += double{o0[j]} * o0[j] / dim;
          if (norm) want *= weight[i % dim] / std::sqrt(squares + 1e-3f);
          const double g = gate[i / width * stride + i % width];
          if (kind != OutputGate::kNone) want *= Sigmoid(g);
          if (kind == OutputGate::kSwish) want *= g;
          EXPECT_NEAR(o[i], want, 2e-6) << i;
        }
      }
  });
}

TEST(SwiGluTest, MatchesFloat64WithGradientsAlsoInPlace) {
  OnEveryTarget([] {
    const int64_t rows = 3, m = 19;
    std::vector<float> x(rows * 2 * m), d_y(rows * m), y(rows * m), d_x(rows * 2 * m);
    for (size_t i = 0; i < x.size(); ++i) x[i] = std::sin(1.0f + i) * 5;
    for (size_t i = 0; i < d_y.size(); ++i) d_y[i] = std::cos(3.0f + i);
    const auto array = [&](std::vector<float>& a) {
      return MakeArray(a.data(), {rows, static_cast<int64_t>(a.size()) / rows});
    };
    SwiGluForward(array(x), array(y));
    SwiGluBackward(array(x), array(d_y), array(d_x));
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t i = 0; i < m; ++i) {
        const double a = x[r * 2 * m + i], b = x[r * 2 * m + m + i], d = d_y[r * m + i];
        const double s = Sigmoid(a);
        EXPECT_NEAR(y[r * m + i], a * s * b, 5e-6);
        EXPECT_NEAR(d_x[r * 2 * m + i], d * b * s * (1 + a * (1 - s)), 5e-6);
        EXPECT_NEAR(d_x[r * 2 * m + m + i], d * a * s, 5e-6);
      }
    std::vector<float> in_place = x;
    Array first = array(in_place);
    first.shape[1] = m;
    SwiGluForward(array(in_place), first);
    for (int64_t i = 0; i < rows * m; ++i) EXPECT_EQ(in_place[i / m * 2 * m + i % m], y[i]);
    SwiGluBackward(array(x), array(d_y), array(x));
    EXPECT_EQ(x, d_x);
  });
}

}  // namespace
}  // namespace linattn
