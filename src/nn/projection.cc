#include "nn/projection.h"

#include <ATen/ATen.h>

#include <cmath>

#include "ops/linear_op.h"

namespace linattn::nn {

using at::Tensor;

double InputDeviation(int64_t in) { return 1 / std::sqrt(3.0 * static_cast<double>(in)); }
double OutputDeviation(int64_t in, int64_t layers) {
  return InputDeviation(in) / std::sqrt(2.0 * static_cast<double>(layers));
}

Tensor Normal(at::IntArrayRef shape, double standard_deviation) {
  return at::randn(shape) * standard_deviation;
}

Projection::Projection(int64_t in, int64_t out, double standard_deviation, bool with_bias) {
  weight = register_parameter("weight", Normal({out, in}, standard_deviation));
  if (with_bias) bias = register_parameter("bias", at::zeros({out}));
}

Tensor Projection::Forward(const Tensor& x) const { return Linear(x, weight, bias); }

Tensor ForwardTogether(const Tensor& x,
                       const std::vector<std::shared_ptr<Projection>>& projections) {
  std::vector<Tensor> weights, biases;
  bool any_bias = false;
  for (const auto& p : projections) {
    if (!p) continue;
    weights.push_back(p->weight);
    any_bias |= p->bias.defined();
    biases.push_back(p->bias.defined() ? p->bias
                                       : at::zeros({p->weight.size(0)}, p->weight.options()));
  }
  return Linear(x, at::cat(weights), any_bias ? at::cat(biases) : Tensor());
}

Norm::Norm(int64_t dim, double eps, bool with_bias) : eps(eps) {
  weight = register_parameter("weight", at::ones({dim}));
  if (with_bias) bias = register_parameter("bias", at::zeros({dim}));
}

NormResult Norm::Forward(const Tensor& x, const Tensor& delta, bool narrow) const {
  return AddNorm(x, delta, weight, bias, eps, narrow ? at::kBFloat16 : weight.scalar_type());
}

}  // namespace linattn::nn
