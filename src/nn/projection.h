#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <vector>

#include "ops/residual_norm_op.h"

namespace linattn::nn {

// Standard deviations of initial weights. Keeps the variance of x through a projection at a third,
// as LibTorch's own default does; the outputs into the residual stream are smaller, so that the sum
// over 2 L of them stays of the size of one.
double InputDeviation(int64_t in);
double OutputDeviation(int64_t in, int64_t layers);

at::Tensor Normal(at::IntArrayRef shape, double standard_deviation);

// y = x W^T + b, in the dtype of x.
struct Projection : torch::nn::Module {
  Projection(int64_t in, int64_t out, double standard_deviation, bool with_bias);
  at::Tensor Forward(const at::Tensor& x) const;
  at::Tensor weight, bias;  // [out, in]; [out] or undefined
};

// The outputs of several projections of one x, side by side, as one product: x is read once, and
// its gradient written once. Null ones are left out.
at::Tensor ForwardTogether(const at::Tensor& x,
                           const std::vector<std::shared_ptr<Projection>>& projections);

// LayerNorm, or RMSNorm without a bias. Takes the residual sum along: see AddNorm. Computed in
// float32; y is bfloat16 if `narrow`.
struct Norm : torch::nn::Module {
  Norm(int64_t dim, double eps, bool with_bias);
  NormResult Forward(const at::Tensor& x, const at::Tensor& delta, bool narrow) const;
  at::Tensor weight, bias;  // [dim]; [dim] or undefined
  double eps;
};

}  // namespace linattn::nn
