#pragma once

#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

namespace linattn {

using TensorList = std::vector<at::Tensor>;

// The autograd gradients of `f` against central differences, for every element of every input that
// requires a gradient, of L = sum over outputs of <output, cotangent> with random cotangents. All
// float64. Returns the worst |analytic - numeric| / max(1, largest |numeric| of that input).
// Undefined outputs are skipped; an input that autograd gave no gradient counts as a gradient of
// zero.
inline double GradientError(const std::function<TensorList(const TensorList&)>& f,
                            TensorList inputs, double step = 1e-5) {
  TensorList cotangents;
  const auto loss = [&](const TensorList& x) {
    const TensorList outputs = f(x);
    at::Tensor sum = at::zeros({}, at::kDouble);
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (i == cotangents.size())
        cotangents.push_back(outputs[i].defined() ? at::randn_like(outputs[i]) : at::Tensor());
      if (outputs[i].defined()) sum = sum + (outputs[i] * cotangents[i].detach()).sum();
    }
    return sum;
  };
  for (auto& x : inputs)
    if (x.defined() && x.requires_grad()) x = x.detach().clone().requires_grad_();
  loss(inputs).backward();
  torch::NoGradGuard no_grad;
  double worst = 0;
  for (auto& x : inputs) {
    if (!x.defined() || !x.requires_grad()) continue;
    at::Tensor numeric = at::zeros_like(x), flat = x.view(-1);
    for (int64_t i = 0; i < x.numel(); ++i) {
      double* element = x.data_ptr<double>() + i;
      const double kept = *element;
      *element = kept + step;
      const double above = loss(inputs).item<double>();
      *element = kept - step;
      const double below = loss(inputs).item<double>();
      *element = kept;
      numeric.view(-1)[i] = (above - below) / (2 * step);
    }
    const at::Tensor analytic = x.grad().defined() ? x.grad() : at::zeros_like(x);
    const double size = x.numel() ? std::max(1.0, numeric.abs().max().item<double>()) : 1.0;
    const double error = x.numel() ? (analytic - numeric).abs().max().item<double>() / size : 0.0;
    worst = std::isnan(error) ? INFINITY : std::max(worst, error);
  }
  return worst;
}

}  // namespace linattn
