// The ops of modern blocks against LibTorch's own operators in float64.
#include <gtest/gtest.h>
#include <torch/utils.h>

#include "base/error.h"
#include "ops/gradcheck.h"
#include "ops/rotary_op.h"
#include "ops/short_conv_op.h"
#include "ops/swiglu_op.h"

namespace linattn {
namespace {

using at::Tensor;

double Worst(const Tensor& x, const Tensor& ref) {
  return ((x.to(at::kDouble) - ref).abs().max() / ref.abs().max()).item<double>();
}

// y and the gradients of `leaves` of f in one precision; the second and later leaves stay float32.
TensorList RunOnce(const std::function<Tensor(const TensorList&)>& f, const TensorList& values,
                   at::ScalarType type) {
  TensorList leaves;
  for (const Tensor& v : values) {
    const bool narrow = type == at::kBFloat16 && !leaves.empty();
    leaves.push_back(v.to(narrow ? at::kFloat : type).detach().clone().requires_grad_());
  }
  const Tensor y = f(leaves);
  const Tensor cotangent = at::arange(y.numel(), at::kDouble).sin().view(y.sizes());
  (y * cotangent.to(at::kBFloat16).to(type)).sum(at::kDouble).backward();
  TensorList results{y.detach()};
  for (const Tensor& leaf : leaves) results.push_back(leaf.grad());
  return results;
}

// float32 within 2e-6 and bfloat16 within two of its roundings of float64.
void ExpectCloseToFloat64(const std::function<Tensor(const TensorList&)>& f, TensorList values) {
  for (Tensor& v : values) v = v.to(at::kBFloat16);  // exact in every type
  const TensorList ref = RunOnce(f, values, at::kDouble);
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    const TensorList fast = RunOnce(f, values, type);
    for (size_t i = 0; i < ref.size(); ++i)
      EXPECT_LT(Worst(fast[i], ref[i]), type == at::kFloat ? 2e-6 : 8e-3) << i << " " << type;
  }
}

// Columns of a wider product, as attention has them.
Tensor Columns(const Tensor& x) { return x.narrow(-1, 3, x.size(-1) - 5); }

TEST(BlockOps, ShortConvolutionAndItsGradients) {
  torch::manual_seed(1);
  ExpectCloseToFloat64([](const TensorList& x) { return ShortConvolution(Columns(x[0]), x[1]); },
                       {at::randn({2, 19, 45}), at::randn({4, 40})});
  ExpectCloseToFloat64([](const TensorList& x) { return ShortConvolution(x[0], x[1].t()); },
                       {at::randn({1, 3, 150}), at::randn({150, 7})});
}

TEST(BlockOps, SwiGluAndItsGradient) {
  torch::manual_seed(2);
  ExpectCloseToFloat64([](const TensorList& x) { return SwiGlu(Columns(x[0])); },
                       {at::randn({3, 5, 43}) * 3});
}

TEST(BlockOps, RotationsAndTheirGradient) {
  torch::manual_seed(3);
  const auto rotary = std::make_shared<const Rotary>(6, 100);
  const Tensor places = at::randint(0, 50, {2, 7}, at::kLong);
  ExpectCloseToFloat64([&](const TensorList& x) { return Rotated(x[0], places, rotary); },
                       {at::randn({2, 7, 3, 6})});
  // q . k depends on the distance alone.
  const Tensor q = at::randn({1, 1, 1, 6}), k = at::randn({1, 1, 1, 6});
  const auto product = [&](int64_t t, int64_t s) {
    const auto at_place = [&](const Tensor& x, int64_t place) {
      return Rotated(x, at::full({1}, place, at::kLong), rotary);
    };
    return (at_place(q, t) * at_place(k, s)).sum().item<double>();
  };
  EXPECT_NEAR(product(9, 4), product(105, 100), 1e-5);
  EXPECT_GT(std::abs(product(9, 4) - product(9, 5)), 1e-3);
}

TEST(BlockOps, GradientsMatchDifferences) {
  torch::manual_seed(4);
  const Tensor x = at::randn({2, 5, 6}, at::kDouble).requires_grad_();
  const Tensor w = at::randn({4, 6}, at::kDouble).requires_grad_();
  EXPECT_LT(GradientError(
                [&] {
                  return TensorList{ShortConvolution(x, w), SwiGlu(x)};
                },
                {x, w}),
            1e-8);
  const Tensor heads = at::randn({1, 4, 2, 6}, at::kDouble).requires_grad_();
  const auto rotary = std::make_shared<const Rotary>(6, 100);
  const auto rotated = [&] { return TensorList{Rotated(heads, at::arange(4, at::kLong), rotary)}; };
  EXPECT_LT(GradientError(rotated, {heads}), 1e-8);
}

TEST(BlockOps, WrongShapesAreRefused) {
  EXPECT_THROW(ShortConvolution(at::randn({2, 5, 6}), at::randn({4, 5})), Error);
  EXPECT_THROW(ShortConvolution(at::randn({5, 6}), at::randn({4, 6})), Error);
  EXPECT_THROW(SwiGlu(at::randn({2, 5})), Error);
  EXPECT_THROW(Rotated(at::randn({1, 2, 1, 4}), at::arange(2, at::kLong),
                       std::make_shared<const Rotary>(6, 100)),
               Error);
}

}  // namespace
}  // namespace linattn
