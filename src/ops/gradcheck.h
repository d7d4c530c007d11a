#pragma once

#include <torch/utils.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

namespace linattn {

using TensorList = std::vector<at::Tensor>;

// The autograd gradients of `f` against central differences, for every element of every leaf, of
// L = sum over the outputs of <output, random cotangent>. All float64. `f` reads the leaves, which
// require gradients (undefined ones are skipped, as are undefined outputs) and are changed in place
// meanwhile. Returns the worst |analytic - numeric| / max(1, largest |numeric| of the leaf); a leaf
// that autograd gave no gradient counts as 0.
inline double GradientError(const std::function<TensorList()>& f, const TensorList& leaves,
                            double step = 1e-5) {
  TensorList cotangents;
  const auto loss = [&] {
    const TensorList outputs = f();
    at::Tensor sum = at::zeros({}, at::kDouble);
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (i == cotangents.size())
        cotangents.push_back(outputs[i].defined() ? at::randn_like(outputs[i].detach())
                                                  : at::Tensor());
      if (outputs[i].defined()) sum = sum + (outputs[i] * cotangents[i]).sum();
    }
    return sum;
  };
  loss().backward();
  torch::NoGradGuard no_grad;
  double worst = 0;
  for (const auto& x : leaves) {
    if (!x.defined() || x.numel() == 0) continue;
    const at::Tensor numeric = at::zeros(x.numel(), at::kDouble);
    for (int64_t i = 0; i < x.numel(); ++i) {
      double* element = x.data_ptr<double>() + i;
      const double kept = *element;
      *element = kept + step;
      const double above = loss().item<double>();
      *element = kept - step;
      const double below = loss().item<double>();
      *element = kept;
      numeric[i] = (above - below) / (2 * step);
    }
    const at::Tensor analytic = x.grad().defined() ? x.grad().flatten() : at::zeros_like(numeric);
    const double size = std::max(1.0, numeric.abs().max().item<double>());
    const double error = (analytic - numeric).abs().max().item<double>() / size;
    worst = std::isnan(error) ? INFINITY : std::max(worst, error);
  }
  return worst;
}

}  // namespace linattn
