#include "nn/loss.h"

#include <gtest/gtest.h>
#include <torch/utils.h>

#include <limits>

#include "base/error.h"

namespace linattn {
namespace {

using at::Tensor;

ModelConfig Config(const std::string& head) {
  ModelConfig c;
  c.head = head, c.vocab = head == "categorical" ? 5 : 256, c.mixtures = 2;
  return c;
}

TEST(TokenLoss, CategoricalIsMinusTheLogOfTheSoftmax) {
  const Tensor outputs = at::tensor({0.0, 1.0, 2.0, 0.0, 0.0}, at::kFloat).view({1, 1, 5});
  const Tensor loss = TokenLoss(Config("categorical"), outputs, at::full({1, 1}, 2, at::kLong));
  // log(3 + e + e^2) - 2
  EXPECT_NEAR(loss.item<double>(), 0.5731723, 1e-6);
}

// Whatever stands where nothing is predicted (NaN too) reaches neither loss nor gradient.
TEST(TokenLoss, UnscoredTargetsAreLeftOut) {
  torch::manual_seed(2);
  for (const char* head : {"categorical", "logistic_mixture"}) {
    const auto c = Config(head);
    Tensor outputs = at::randn({2, 3, c.outputs()}), targets = at::randint(0, 5, {2, 3}, at::kLong);
    const Tensor all = TokenLoss(c, outputs, targets);
    targets[0][1] = -1;
    outputs[0][1].fill_(std::numeric_limits<float>::quiet_NaN());
    outputs.requires_grad_();
    const Tensor loss = TokenLoss(c, outputs, targets);
    EXPECT_EQ(loss[0][1].item<float>(), 0);
    EXPECT_TRUE(at::equal(loss[1], all[1]));
    loss.sum().backward();
    EXPECT_EQ(outputs.grad()[0][1].abs().sum().item<float>(), 0);
    EXPECT_TRUE(at::isfinite(outputs.grad()).all().item<bool>());
    targets.fill_(-1);
    EXPECT_EQ(TokenLoss(c, outputs, targets).sum().item<float>(), 0);
  }
}

TEST(TokenLoss, RefusesTargetsOutOfRange) {
  const auto c = Config("categorical");
  const Tensor outputs = at::zeros({1, 2, 5});
  EXPECT_THROW(TokenLoss(c, outputs, at::full({1, 2}, 5, at::kLong)), Error);
  EXPECT_THROW(TokenLoss(c, outputs, at::full({1, 2}, -2, at::kLong)), Error);
  EXPECT_THROW(TokenLoss(c, outputs, at::zeros({1, 3}, at::kLong)), Error);
  EXPECT_THROW(TokenLoss(c, outputs.narrow(2, 0, 4), at::zeros({1, 2}, at::kLong)), Error);
}

}  // namespace
}  // namespace linattn
