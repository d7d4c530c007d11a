#pragma once

#include <torch/optim/optimizer.h>

#include <tuple>
#include <vector>

namespace linattn {

struct RAdamOptions : torch::optim::OptimizerCloneableOptions<RAdamOptions> {
  explicit RAdamOptions(double lr = 1e-3) : lr_(lr) {}
  TORCH_ARG(double, lr);
  typedef std::tuple<double, double> betas_t;
  TORCH_ARG(betas_t, betas) = std::make_tuple(0.9, 0.999);
  TORCH_ARG(double, eps) = 1e-8;
  TORCH_ARG(double, weight_decay) = 0;

 public:
  double get_lr() const override { return lr_; }
  void set_lr(const double lr) override { lr_ = lr; }
};

struct RAdamParamState : torch::optim::OptimizerCloneableParamState<RAdamParamState> {
  TORCH_ARG(int64_t, step) = 0;
  TORCH_ARG(torch::Tensor, exp_avg);     // m, as the parameter
  TORCH_ARG(torch::Tensor, exp_avg_sq);  // v
};

// Rectified Adam (Liu et al. 2019, "On the Variance of the Adaptive Learning Rate and Beyond",
// algorithm 2): while the variance of the adaptive rate is intractable (rho_t <= 4) the update is
// momentum alone, after that Adam's times r_t. eps is added to sqrt(v); weight decay is decoupled
// (x -= lr decay x), as in the authors' code.
class RAdam : public torch::optim::Optimizer {
 public:
  RAdam(std::vector<torch::Tensor> parameters, RAdamOptions options)
      : Optimizer({torch::optim::OptimizerParamGroup(std::move(parameters))},
                  std::make_unique<RAdamOptions>(options)) {}

  torch::Tensor step(LossClosure closure = nullptr) override;
};

}  // namespace linattn
