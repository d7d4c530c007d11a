#include "train/optimiser.h"

#include <ATen/ATen.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "train/radam.h"

namespace linattn {
namespace {

std::vector<at::Tensor> Tensors(const NamedTensors& named) {
  std::vector<at::Tensor> tensors;
  for (const auto& [name, tensor] : named) tensors.push_back(tensor);
  return tensors;
}

template <class Class, class Options, class State>
std::unique_ptr<torch::optim::Optimizer> Make(const TrainConfig& config,
                                              const std::vector<at::Tensor>& parameters) {
  Options options(config.lr);
  options.betas({config.beta1, config.beta2});
  options.eps(config.eps).weight_decay(config.weight_decay);
  auto optimiser = std::make_unique<Class>(parameters, options);
  for (const at::Tensor& parameter : parameters) {
    auto state = std::make_unique<State>();
    state->exp_avg(at::zeros_like(parameter).requires_grad_(false));
    state->exp_avg_sq(at::zeros_like(parameter).requires_grad_(false));
    optimiser->state()[c10::guts::to_string(parameter.unsafeGetTensorImpl())] = std::move(state);
  }
  return optimiser;
}

// Calls visit(state of `parameter`), whichever optimiser's it is.
template <class Visit>
void VisitState(torch::optim::Optimizer& optimiser, const at::Tensor& parameter, Visit&& visit) {
  auto& state = *optimiser.state().at(c10::guts::to_string(parameter.unsafeGetTensorImpl()));
  if (auto* adam = dynamic_cast<torch::optim::AdamParamState*>(&state)) {
    visit(*adam);
  } else if (auto* adamw = dynamic_cast<torch::optim::AdamWParamState*>(&state)) {
    visit(*adamw);
  } else {
    visit(dynamic_cast<RAdamParamState&>(state));
  }
}

}  // namespace

Optimiser::Optimiser(const TrainConfig& config, NamedTensors parameters)
    : parameters_(std::move(parameters)) {
  const std::vector<at::Tensor> tensors = Tensors(parameters_);
  if (config.optimiser == "adam") {
    optimiser_ = Make<torch::optim::Adam, torch::optim::AdamOptions, torch::optim::AdamParamState>(
        config, tensors);
  } else if (config.optimiser == "adamw") {
    optimiser_ =
        Make<torch::optim::AdamW, torch::optim::AdamWOptions, torch::optim::AdamWParamState>(
            config, tensors);
  } else {
    Check(config.optimiser == "radam", "train",
          "optimiser must be one of adam, adamw, radam, but is '{}'", config.optimiser);
    optimiser_ = Make<RAdam, RAdamOptions, RAdamParamState>(config, tensors);
  }
}

Optimiser::~Optimiser() = default;

void Optimiser::ZeroGradients() { optimiser_->zero_grad(); }

void Optimiser::Step(double rate) {
  optimiser_->param_groups().front().options().set_lr(rate);
  optimiser_->step();
}

NamedTensors Optimiser::Moments() const {
  NamedTensors moments;
  for (const auto& [name, parameter] : parameters_) {
    VisitState(*optimiser_, parameter, [&, &name = name](auto& state) {
      moments.emplace_back(name + ".m", state.exp_avg());
      moments.emplace_back(name + ".v", state.exp_avg_sq());
    });
  }
  return moments;
}

int64_t Optimiser::updates() const {
  int64_t updates = 0;
  for (const auto& [name, parameter] : parameters_) {
    VisitState(*optimiser_, parameter,
               [&](auto& state) { updates = std::max<int64_t>(updates, state.step()); });
  }
  return updates;
}

void Optimiser::SetUpdates(int64_t updates) {
  for (const auto& [name, parameter] : parameters_) {
    VisitState(*optimiser_, parameter, [&](auto& state) { state.step(updates); });
  }
}

WeightAverage::WeightAverage(double decay, const NamedTensors& parameters)
    : decay_(decay), parameters_(parameters) {
  for (const auto& [name, parameter] : parameters) {
    means_.emplace_back(name, parameter.detach().clone());
  }
}

void WeightAverage::Update(int64_t n) {
  const double count = static_cast<double>(n);
  const double decay = std::min(decay_, (1 + count) / (10 + count));
  for (size_t i = 0; i < means_.size(); ++i) {
    means_[i].second.lerp_(parameters_[i].second.detach(), 1 - decay);
  }
}

double AccumulateGradients(const std::vector<Batch>& batches,
                           const std::function<at::Tensor(const Batch&)>& loss) {
  int64_t tokens = 0;
  for (const Batch& batch : batches) tokens += batch.tokens;
  Check(tokens > 0, "train", "a step must have at least one scored token");
  double sum = 0;
  for (const Batch& batch : batches) {
    const at::Tensor batch_loss = loss(batch);
    sum += batch_loss.item<double>();
    if (!std::isfinite(sum)) break;
    (batch_loss / static_cast<double>(tokens)).backward();
  }
  return sum / static_cast<double>(tokens);
}

double ClipGradients(const NamedTensors& parameters, double limit) {
  const NamedTensors gradients = Gradients(parameters);
  double squares = 0;
  for (const auto& [name, gradient] : gradients) {
    const double norm = gradient.norm().item<double>();
    squares += norm * norm;
  }
  const double norm = std::sqrt(squares);
  if (!std::isfinite(norm) || limit <= 0 || norm <= limit) return norm;
  for (const auto& [name, gradient] : gradients) gradient.mul_(limit / norm);
  return norm;
}

NamedTensors Gradients(const NamedTensors& parameters) {
  NamedTensors gradients;
  for (const auto& [name, parameter] : parameters) {
    if (parameter.grad().defined()) gradients.emplace_back(name, parameter.grad());
  }
  return gradients;
}

std::string FirstNonFiniteTensor(const NamedTensors& tensors) {
  for (const auto& [name, tensor] : tensors) {
    if (!at::isfinite(tensor).all().item<bool>()) return name;
  }
  return "";
}

}  // namespace linattn
