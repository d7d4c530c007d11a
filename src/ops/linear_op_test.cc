#include "ops/linear_op.h"

#include <gtest/gtest.h>
#include <torch/utils.h>

#include <thread>

#include "base/error.h"
#include "ops/gradcheck.h"

namespace linattn {
namespace {

using at::Tensor;

// max|x - ref| / max|ref|
double Error(const Tensor& x, const Tensor& ref) {
  return ((x.to(at::kDouble) - ref).abs().max() / ref.abs().max()).item<double>();
}

struct Case {
  Tensor x, weight, bias, d_y;  // float32
};

Case MakeCase(at::IntArrayRef rows, int64_t in, int64_t out) {
  torch::manual_seed(7);
  auto shape = rows.vec();
  shape.push_back(in);
  auto y_shape = rows.vec();
  y_shape.push_back(out);
  return {at::randn(shape), at::randn({out, in}), at::randn({out}), at::randn(y_shape)};
}

TensorList RunWithGradients(Tensor x, Tensor weight, Tensor bias, const Tensor& d_y,
                            bool reference) {
  x = x.detach().clone().requires_grad_();
  weight = weight.detach().clone().requires_grad_();
  if (bias.defined()) bias = bias.detach().clone().requires_grad_();
  const Tensor y = reference ? at::linear(x, weight, bias) : Linear(x, weight, bias);
  y.backward(d_y);
  return {y.detach(), x.grad(), weight.grad(), bias.defined() ? bias.grad() : Tensor()};
}

void ExpectCloseToFloat64(const Case& c, at::ScalarType type, double tolerance) {
  const auto rounded = [&](const Tensor& t) { return t.to(type).to(at::kDouble); };
  const auto fast = RunWithGradients(c.x.to(type), c.weight, c.bias, c.d_y.to(type), false);
  const auto ref = RunWithGradients(rounded(c.x), rounded(c.weight), c.bias.to(at::kDouble),
                                    rounded(c.d_y), true);
  EXPECT_EQ(fast[0].scalar_type(), type);
  EXPECT_EQ(fast[1].scalar_type(), type);
  EXPECT_EQ(fast[2].scalar_type(), at::kFloat);
  EXPECT_EQ(fast[3].scalar_type(), at::kFloat);
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(fast[i].sizes(), ref[i].sizes());
    EXPECT_LT(Error(fast[i], ref[i]), tolerance) << "tensor " << i;
  }
}

TEST(LinearOp, Float32MatchesFloat64) {
  for (const auto& c : {MakeCase({5, 7}, 12, 3), MakeCase({1}, 1, 1), MakeCase({130}, 257, 65),
                        MakeCase({65}, 33, 100), MakeCase({2, 3, 4}, 8, 30)})
    ExpectCloseToFloat64(c, at::kFloat, 2e-6);  // sums of up to 257 terms of size 1
}

TEST(LinearOp, BFloat16MatchesFloat64OfTheRoundedInputs) {
  for (const auto& c : {MakeCase({5, 7}, 12, 3), MakeCase({130}, 257, 65), MakeCase({1}, 1, 1),
                        MakeCase({65}, 33, 100)})
    ExpectCloseToFloat64(c, at::kBFloat16, 4e-3);  // outputs have 8 bits: 2^-8
}

TEST(LinearOp, WithoutBiasAndWithStridedInputs) {
  torch::manual_seed(1);
  const Tensor wide = at::randn({6, 40}), weight = at::randn({5, 10});
  const Tensor x = wide.narrow(1, 20, 10), transposed = at::randn({10, 6}).t();
  EXPECT_LT(Error(Linear(x, weight, {}), at::linear(x.to(at::kDouble), weight.to(at::kDouble))),
            1e-6);
  EXPECT_LT(Error(Linear(transposed, weight, {}),
                  at::linear(transposed.to(at::kDouble), weight.to(at::kDouble))),
            1e-6);
  const Tensor expanded_gradient = at::ones({1, 1}).expand({6, 5});
  const auto grads = RunWithGradients(x, weight, {}, expanded_gradient, false);
  EXPECT_LT(Error(grads[2], x.to(at::kDouble).sum(0, true).expand({5, 10})), 1e-6);
}

TEST(LinearOp, Float64GradientsMatchDifferences) {
  torch::manual_seed(2);
  const auto leaf = [](at::IntArrayRef s) { return at::randn(s, at::kDouble).requires_grad_(); };
  const Tensor x = leaf({2, 3, 4}), weight = leaf({5, 4}), bias = leaf({5});
  const auto f = [&] { return TensorList{Linear(x, weight, bias)}; };
  EXPECT_LT(GradientError(f, {x, weight, bias}), 1e-8);
}

TEST(LinearOp, ManyThreadsAtOnce) {
  torch::manual_seed(3);
  const Tensor x = at::randn({64, 32}), weight = at::randn({16, 32}), bias = at::randn({16});
  const Tensor expected = Linear(x, weight, bias);
  std::vector<std::thread> threads;
  std::atomic<int> wrong = 0;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&, i] {
      for (int n = 1; n < 50; ++n) {
        const int64_t rows = 1 + (n * 7 + i * 3) % 64;
        const Tensor y = Linear(x.narrow(0, 0, rows), weight, bias);
        if (!at::allclose(y, expected.narrow(0, 0, rows), 1e-5, 1e-5)) ++wrong;
      }
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

// What exact resumption of a run rests on.
TEST(LinearOp, SameBitsFromRunToRun) {
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    const auto c = MakeCase({3000}, 48, 96);
    const auto run = [&] {
      return RunWithGradients(c.x.to(type), c.weight, c.bias, c.d_y.to(type), false);
    };
    const auto first = run(), second = run();
    for (int i = 0; i < 4; ++i) EXPECT_TRUE(at::equal(first[i], second[i])) << "tensor " << i;
  }
}

TEST(LinearOp, EmptyBatchAndBadShapes) {
  const Tensor weight = at::randn({3, 4}), bias = at::randn({3});
  EXPECT_EQ(Linear(at::randn({0, 4}), weight, bias).sizes(), (std::vector<int64_t>{0, 3}));
  EXPECT_THROW(Linear(at::randn({2, 5}), weight, bias), linattn::Error);
  EXPECT_THROW(Linear(at::randn({2, 4}), weight, at::randn({4})), linattn::Error);
}

}  // namespace
}  // namespace linattn
