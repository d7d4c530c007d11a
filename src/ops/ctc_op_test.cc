#include "ops/ctc_op.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "ops/gradcheck.h"

namespace linattn {
namespace {

using at::Tensor;

const std::vector<int64_t> kLengths = {9, 6, 1};
const std::vector<std::vector<int32_t>> kLabels = {{1, 1, 3}, {2}, {1, 2}};  // the last: too short

TEST(CtcOp, GradientMatchesFiniteDifferences) {
  at::manual_seed(1);
  const Tensor logits = at::randn({2, 9, 4}, at::kDouble).set_requires_grad(true);
  const auto loss = [&]() -> TensorList {
    return {CtcLossOp(logits, {kLengths.data(), 2}, {kLabels.data(), 2}, 0)};
  };
  EXPECT_LT(GradientError(loss, {logits}), 1e-7);
}

// LibTorch's own, where it is right: behind log_softmax.
TEST(CtcOp, AgreesWithLibTorch) {
  at::manual_seed(2);
  const Tensor logits = at::randn({3, 9, 4}).set_requires_grad(true);
  const Tensor ours = CtcLossOp(logits, kLengths, kLabels, 0);
  EXPECT_TRUE(std::isinf(ours[2].item<double>()));
  ours.sum().backward();  // the infinite loss leaves no trace
  const Tensor gradient = logits.grad().clone();
  logits.mutable_grad().zero_();
  const Tensor targets = at::tensor({1, 1, 3, 2, 1, 2}, at::kLong);
  const Tensor theirs = at::ctc_loss(at::log_softmax(logits, -1).transpose(0, 1), targets, kLengths,
                                     {3, 1, 2}, 0, at::Reduction::None, /*zero_infinity=*/true);
  theirs.sum().backward();
  EXPECT_LT((ours.narrow(0, 0, 2) - theirs.narrow(0, 0, 2)).abs().max().item<double>(), 1e-5);
  EXPECT_LT((gradient - logits.grad()).abs().max().item<double>(), 1e-5);
}

// Why ours is used: what LibTorch calls the gradient by log-probabilities is not (case E8).
TEST(CtcOp, LibTorchsGradientIsNotThatOfLogProbabilities) {
  at::manual_seed(3);
  const Tensor y = at::log_softmax(at::randn({5, 1, 3}, at::kDouble), -1).set_requires_grad(true);
  const auto loss = [&]() -> TensorList {
    const std::vector<int64_t> frames = {5}, labels = {2};
    return {at::ctc_loss(y, at::tensor({1, 2}, at::kLong), frames, labels, 0, at::Reduction::None)};
  };
  EXPECT_GT(GradientError(loss, {y}), 0.01);
}

}  // namespace
}  // namespace linattn
