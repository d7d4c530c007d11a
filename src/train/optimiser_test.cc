#include "train/optimiser.h"

#include <gtest/gtest.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cmath>
#include <limits>

#include "base/error.h"

namespace linattn {
namespace {

TrainConfig Config(const std::string& optimiser) {
  TrainConfig config;
  config.optimiser = optimiser;
  config.lr = 1e-2, config.beta1 = 0.9, config.beta2 = 0.99, config.eps = 1e-8;
  config.weight_decay = 0.1;
  return config;
}

// The gradient that step n gives element i: smooth, of both signs, of sizes 1e-3 to 1.
double GradientOf(int64_t n, int64_t i) { return std::sin(0.7 * n + i) * std::pow(10.0, -i % 4); }

// Liu et al. 2019, algorithm 2, for one number in plain float64 arithmetic, with the decoupled
// decay.
struct PlainRAdam {
  double x, m = 0, v = 0;
  void Step(const TrainConfig& c, int64_t t, double g) {
    m = c.beta1 * m + (1 - c.beta1) * g;
    v = c.beta2 * v + (1 - c.beta2) * g * g;
    const double rho_inf = 2 / (1 - c.beta2) - 1;
    const double b2t = std::pow(c.beta2, t);
    const double rho = rho_inf - 2 * t * b2t / (1 - b2t);
    const double m_hat = m / (1 - std::pow(c.beta1, t));
    x -= c.lr * c.weight_decay * x;
    if (rho > 4) {
      const double v_hat = std::sqrt(v / (1 - b2t));
      const double r =
          std::sqrt((rho - 4) * (rho - 2) * rho_inf / ((rho_inf - 4) * (rho_inf - 2) * rho));
      x -= c.lr * r * m_hat / v_hat;
    } else {
      x -= c.lr * m_hat;
    }
  }
};

// As above for Adam (coupled decay) and AdamW (decoupled), Kingma & Ba 2015, Loshchilov & Hutter
// 2019.
struct PlainAdam {
  double x, m = 0, v = 0;
  void Step(const TrainConfig& c, int64_t t, double g) {
    if (c.optimiser == "adam") g += c.weight_decay * x;
    if (c.optimiser == "adamw") x -= c.lr * c.weight_decay * x;
    m = c.beta1 * m + (1 - c.beta1) * g;
    v = c.beta2 * v + (1 - c.beta2) * g * g;
    x -= c.lr * (m / (1 - std::pow(c.beta1, t))) /
         (std::sqrt(v / (1 - std::pow(c.beta2, t))) + c.eps);
  }
};

template <class Plain>
void ExpectFollows(const std::string& name) {
  const TrainConfig config = Config(name);
  const int64_t size = 6;
  at::Tensor x = torch::linspace(-1, 1, size, torch::kDouble).requires_grad_(true);
  std::vector<Plain> plain;
  for (int64_t i = 0; i < size; ++i) plain.push_back({x[i].item<double>()});
  Optimiser optimiser(config, {{"x", x}});
  for (int64_t n = 1; n <= 60; ++n) {
    at::Tensor gradient = torch::empty(size, torch::kDouble);
    for (int64_t i = 0; i < size; ++i) {
      gradient[i] = GradientOf(n, i);
      plain[i].Step(config, n, GradientOf(n, i));
    }
    optimiser.ZeroGradients();
    x.mutable_grad() = gradient;
    optimiser.Step(config.lr);
    for (int64_t i = 0; i < size; ++i) {
      // eps stands beside sqrt(v) before the bias correction here, after it there: relative 1e-5.
      ASSERT_NEAR(x[i].item<double>(), plain[i].x, 2e-7)
          << name << " step " << n << " element " << i;
    }
  }
  EXPECT_EQ(optimiser.updates(), 60);
}

TEST(Optimiser, RAdamFollowsThePublishedUpdate) { ExpectFollows<PlainRAdam>("radam"); }
TEST(Optimiser, AdamFollowsThePublishedUpdate) { ExpectFollows<PlainAdam>("adam"); }
TEST(Optimiser, AdamWFollowsThePublishedUpdate) { ExpectFollows<PlainAdam>("adamw"); }

TEST(Optimiser, RestoredMomentsContinueBitForBit) {
  for (const char* name : {"adam", "adamw", "radam"}) {
    const auto step = [](Optimiser& optimiser, at::Tensor& x, int64_t n) {
      x.mutable_grad() = torch::sin(x.detach() * 3 + n);
      optimiser.Step(1e-2);
    };
    at::Tensor x = torch::linspace(-1, 1, 33).requires_grad_(true);
    Optimiser whole(Config(name), {{"x", x}});
    for (int64_t n = 1; n <= 10; ++n) step(whole, x, n);

    at::Tensor y = x.detach().clone().requires_grad_(true);
    Optimiser resumed(Config(name), {{"x", y}});
    const NamedTensors from = whole.Moments(), to = resumed.Moments();
    ASSERT_EQ(from.size(), 2u);
    for (size_t i = 0; i < from.size(); ++i) {
      EXPECT_EQ(from[i].first, to[i].first);
      to[i].second.copy_(from[i].second);
    }
    resumed.SetUpdates(whole.updates());
    for (int64_t n = 11; n <= 20; ++n) step(whole, x, n), step(resumed, y, n);
    EXPECT_TRUE(torch::equal(x, y)) << name;
  }
}

TEST(AccumulateGradients, WeighsTokensNotBatches) {  // D1
  // 10 tokens of loss 2 and 100 of loss 1: 120 / 110, not 1.5.
  const std::vector<Batch> batches = {{{}, {}, 10}, {{}, {}, 100}};
  at::Tensor w = torch::ones(1, torch::kDouble).requires_grad_(true);
  const double mean = AccumulateGradients(batches, [&](const Batch& batch) {
    return (w * (batch.tokens == 10 ? 2.0 : 1.0) * static_cast<double>(batch.tokens)).sum();
  });
  EXPECT_NEAR(mean, 1.0909090909, 1e-9);
  EXPECT_NEAR(w.grad().item<double>(), 1.0909090909, 1e-9);
}

TEST(AccumulateGradients, EqualsTheFullBatch) {
  at::Tensor x = torch::randn({12, 5}, torch::kDouble);
  at::Tensor w = torch::randn({5}, torch::kDouble).requires_grad_(true);
  const auto gradient = [&](const std::vector<int64_t>& sizes) {
    std::vector<Batch> batches;
    int64_t begin = 0;
    for (const int64_t size : sizes) {
      batches.push_back({x.slice(0, begin, begin + size), {}, size});
      begin += size;
    }
    w.mutable_grad() = at::Tensor();
    AccumulateGradients(batches, [&](const Batch& b) { return (b.inputs.matmul(w)).pow(2).sum(); });
    return w.grad().clone();
  };
  EXPECT_TRUE(torch::allclose(gradient({12}), gradient({1, 8, 3}), 1e-12, 1e-12));
}

TEST(Clipping, BringsTheGlobalNormDown) {
  at::Tensor a = torch::zeros(2).requires_grad_(true), b = torch::zeros(1).requires_grad_(true);
  at::Tensor none = torch::zeros(1).requires_grad_(true);
  a.mutable_grad() = torch::tensor({3.f, 0.f});
  b.mutable_grad() = torch::tensor({4.f});
  EXPECT_NEAR(GradientNorm({{"a", a}, {"none", none}, {"b", b}}), 5, 1e-6);
  EXPECT_EQ(ClipScale(5, 10), 1);  // below the limit: untouched
  EXPECT_NEAR(ClipScale(5, 1), 0.2, 1e-12);
  EXPECT_EQ(ClipScale(5, 0), 1);  // 0: never scaled
}

TEST(Clipping, StepSeesScaledGradients) {
  for (const char* name : {"adam", "adamw", "radam"}) {
    at::Tensor x = torch::linspace(-1, 1, 33).requires_grad_(true);
    at::Tensor y = x.detach().clone().requires_grad_(true);
    Optimiser scaled(Config(name), {{"x", x}}), plain(Config(name), {{"y", y}});
    for (int64_t n = 1; n <= 10; ++n) {
      x.mutable_grad() = torch::sin(y.detach() * 3 + n);
      y.mutable_grad() = x.grad() * 0.25;
      scaled.Step(1e-2, 0.25), plain.Step(1e-2);
    }
    EXPECT_TRUE(torch::equal(x, y)) << name;
  }
}

TEST(Clipping, NonFiniteNormIsSeen) {  // D7
  at::Tensor a = torch::ones(3).requires_grad_(true), b = torch::ones(1).requires_grad_(true);
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), INFINITY}) {
    a.mutable_grad() = torch::tensor({3.f, bad, 1.f});
    b.mutable_grad() = torch::tensor({4.f});
    const NamedTensors parameters = {{"a", a}, {"b", b}};
    const double norm = GradientNorm(parameters);
    EXPECT_FALSE(std::isfinite(norm));
    EXPECT_EQ(ClipScale(norm, 1), 1);
    EXPECT_EQ(FirstNonFiniteTensor(Gradients(parameters)), "a");
  }
}

TEST(WeightAverage, ForgetsTheFirstWeightsSoon) {
  at::Tensor x = torch::zeros(1).requires_grad_(true);
  WeightAverage average(0.9, {{"x", x}});
  double expected = 0;
  for (int64_t n = 1; n <= 200; ++n) {
    {
      torch::NoGradGuard guard;
      x.fill_(static_cast<double>(n));
    }
    average.Update(n);
    const double decay = std::min(0.9, (1.0 + n) / (10.0 + n));
    expected = decay * expected + (1 - decay) * n;
    ASSERT_NEAR(average.means()[0].second.item<double>(), expected, 1e-3 * n);
  }
  EXPECT_NEAR(expected, 191, 0.1);  // the mean lags by decay / (1 - decay) = 9 steps
}

}  // namespace
}  // namespace linattn
