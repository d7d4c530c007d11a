#include "ops/logistic_mixture_op.h"

#include <gtest/gtest.h>
#include <torch/utils.h>

#include "base/error.h"
#include "ops/gradcheck.h"

namespace linattn {
namespace {

using at::Tensor;

struct Case {
  Tensor params, pixels;  // float64 [2,6,9], uint8 [2,6]
};

Case MakeCase() {
  torch::manual_seed(3);
  const Tensor pixels = at::tensor({0, 1, 30, 127, 128, 255, 255, 0, 200, 77, 254, 5}, at::kByte);
  return {at::randn({2, 6, 9}, at::kDouble), pixels.view({2, 6})};
}

TEST(LogisticMixtureOp, GradientsMatchDifferences) {
  const auto c = MakeCase();
  const Tensor params = c.params.requires_grad_();
  const auto f = [&] { return TensorList{LogisticMixtureLoss(params, c.pixels)}; };
  EXPECT_LT(GradientError(f, {params}), 1e-7);
}

TEST(LogisticMixtureOp, Float32MatchesFloat64) {
  const auto c = MakeCase();
  const auto run = [&](at::ScalarType type) {
    const Tensor x = c.params.detach().to(type).requires_grad_();
    const Tensor loss = LogisticMixtureLoss(x, c.pixels);
    (loss * at::arange(1, 13, type).view({2, 6})).sum().backward();
    return TensorList{loss.detach().to(at::kDouble), x.grad().to(at::kDouble)};
  };
  const auto ref = run(at::kDouble), fast = run(at::kFloat);
  EXPECT_LT(((fast[0] - ref[0]).abs().max() / ref[0].abs().max()).item<double>(), 2e-6);
  EXPECT_LT(((fast[1] - ref[1]).abs().max() / ref[1].abs().max()).item<double>(), 3e-5);
}

// The probabilities of all 256 values sum to 1.
TEST(LogisticMixtureOp, IsADistribution) {
  const Tensor params = MakeCase().params[0][0].to(at::kFloat).expand({256, 9});
  const Tensor loss = LogisticMixtureLoss(params, at::arange(256, at::kByte));
  EXPECT_NEAR(at::exp(-loss).sum().item<double>(), 1, 1e-3);
}

TEST(LogisticMixtureOp, RefusesWrongShapes) {
  const auto c = MakeCase();
  EXPECT_THROW(LogisticMixtureLoss(c.params.narrow(2, 0, 8), c.pixels), Error);
  EXPECT_THROW(LogisticMixtureLoss(c.params, c.pixels.narrow(1, 0, 5)), Error);
  EXPECT_THROW(LogisticMixtureLoss(c.params, c.pixels.to(at::kLong)), Error);
}

}  // namespace
}  // namespace linattn
