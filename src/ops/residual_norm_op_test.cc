#include "ops/residual_norm_op.h"

#include <gtest/gtest.h>
#include <torch/utils.h>

#include "base/error.h"
#include "ops/gelu_op.h"
#include "ops/gradcheck.h"

namespace linattn {
namespace {

using at::Tensor;

double Worst(const Tensor& x, const Tensor& ref) {
  return ((x.to(at::kDouble) - ref).abs().max() / ref.abs().max()).item<double>();
}

// y, sum and the gradients of x, delta, weight, bias, with both outputs in use, in one precision.
TensorList RunOnce(bool with_delta, bool use_sum, at::ScalarType type, at::ScalarType narrow,
                   bool with_bias) {
  torch::manual_seed(6);
  const auto leaf = [](const Tensor& x, at::ScalarType t) {
    return x.to(at::kBFloat16).to(t).requires_grad_();  // exact in every type
  };
  const Tensor x = leaf(at::randn({3, 7, 24}), type), weight = leaf(at::randn({24}), type),
               bias = leaf(at::randn({24}), type);
  const Tensor delta = with_delta ? leaf(at::randn({3, 7, 24}), narrow) : Tensor();
  const Tensor d_y = at::randn({3, 7, 24}).to(at::kBFloat16), d_sum = at::randn({3, 7, 24});
  const auto out = AddNorm(x, delta, weight, with_bias ? bias : Tensor(), 1e-5, narrow);
  Tensor loss = (out.y * d_y.to(narrow)).sum(at::kDouble);
  if (use_sum) loss = loss + (out.sum * d_sum.to(type)).sum(at::kDouble);
  loss.backward();
  TensorList list{out.y.detach(), out.sum.detach(), x.grad(), weight.grad()};
  if (with_bias) list.push_back(bias.grad());
  if (with_delta) list.push_back(delta.grad());
  return list;
}

TEST(AddNorm, MatchesFloat64) {
  for (const bool with_delta : {true, false})
    for (const bool use_sum : {true, false})
      for (const auto narrow : {at::kFloat, at::kBFloat16})
        for (const bool with_bias : {true, false}) {  // false: RMSNorm
          const auto ref = RunOnce(with_delta, use_sum, at::kDouble, at::kDouble, with_bias);
          const auto fast = RunOnce(with_delta, use_sum, at::kFloat, narrow, with_bias);
          for (size_t i = 0; i < ref.size(); ++i)
            EXPECT_LT(Worst(fast[i], ref[i]), fast[i].scalar_type() == at::kFloat ? 2e-6 : 4e-3)
                << "tensor " << i << " delta " << with_delta << " sum " << use_sum;
        }
}

TEST(AddNorm, RefusesWrongShapes) {
  const Tensor x = at::randn({2, 4}), weight = at::ones({4}), bias = at::zeros({4});
  EXPECT_THROW(AddNorm(x, at::randn({2, 3}), weight, bias, 1e-5, at::kFloat), Error);
  EXPECT_THROW(AddNorm(x, {}, at::ones({5}), bias, 1e-5, at::kFloat), Error);
  EXPECT_THROW(AddNorm(x.to(at::kBFloat16), {}, weight, bias, 1e-5, at::kFloat), Error);
}

TEST(GeluOp, MatchesFloat64) {
  torch::manual_seed(4);
  const Tensor points = (at::randn({5, 30}) * 2).to(at::kBFloat16);
  const auto run = [&](at::ScalarType type) {
    const Tensor x = points.to(type).detach().clone().requires_grad_(), y = Gelu(x);
    (y * points.to(type)).sum(at::kDouble).backward();
    return TensorList{y.detach(), x.grad()};
  };
  const auto ref = run(at::kDouble);
  for (const auto type : {at::kFloat, at::kBFloat16})
    for (int i = 0; i < 2; ++i)
      EXPECT_LT(Worst(run(type)[i], ref[i]), type == at::kFloat ? 1e-6 : 8e-3) << i;
}

}  // namespace
}  // namespace linattn
