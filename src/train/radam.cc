#include "train/radam.h"

#include <torch/utils.h>

#include <cmath>

namespace linattn {
namespace {

// What x -= rate * m / (sqrt(v) + eps) is multiplied by; adaptive: whether it divides by sqrt(v).
struct Rectified {
  double rate;
  bool adaptive;
};

Rectified Rectify(const RAdamOptions& options, int64_t t) {
  const auto [beta1, beta2] = options.betas();
  const double power1 = std::pow(beta1, static_cast<double>(t));
  const double power2 = std::pow(beta2, static_cast<double>(t));
  const double rho_inf = 2 / (1 - beta2) - 1;
  const double rho = rho_inf - 2 * static_cast<double>(t) * power2 / (1 - power2);
  const double rate = options.lr() / (1 - power1);
  if (rho <= 4) return {rate, false};
  const double r =
      std::sqrt((rho - 4) * (rho - 2) * rho_inf / ((rho_inf - 4) * (rho_inf - 2) * rho));
  return {rate * r * std::sqrt(1 - power2), true};
}

void Update(const RAdamOptions& options, torch::Tensor& x, RAdamParamState& state) {
  const torch::Tensor& gradient = x.grad();
  const auto [beta1, beta2] = options.betas();
  torch::Tensor& m = state.exp_avg();
  torch::Tensor& v = state.exp_avg_sq();
  state.step(state.step() + 1);
  m.mul_(beta1).add_(gradient, 1 - beta1);
  v.mul_(beta2).addcmul_(gradient, gradient, 1 - beta2);
  const Rectified rectified = Rectify(options, state.step());
  if (options.weight_decay() != 0) x.mul_(1 - options.lr() * options.weight_decay());
  if (rectified.adaptive) {
    x.addcdiv_(m, v.sqrt().add_(options.eps()), -rectified.rate);
  } else {
    x.add_(m, -rectified.rate);
  }
}

}  // namespace

torch::Tensor RAdam::step(LossClosure closure) {
  torch::Tensor loss;
  if (closure) {
    torch::AutoGradMode on(true);
    loss = closure();
  }
  torch::NoGradGuard no_gradient;
  for (auto& group : param_groups_) {
    const auto& options = static_cast<const RAdamOptions&>(group.options());
    for (torch::Tensor& x : group.params()) {
      if (!x.grad().defined()) continue;
      auto& slot = state_[c10::guts::to_string(x.unsafeGetTensorImpl())];
      if (!slot) {
        auto fresh = std::make_unique<RAdamParamState>();
        fresh->exp_avg(torch::zeros_like(x));
        fresh->exp_avg_sq(torch::zeros_like(x));
        slot = std::move(fresh);
      }
      Update(options, x, static_cast<RAdamParamState&>(*slot));
    }
  }
  return loss;
}

}  // namespace linattn
