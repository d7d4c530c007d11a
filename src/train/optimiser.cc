#include "train/optimiser.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "kernels/adam.h"
#include "ops/torch_array.h"

namespace linattn {
namespace {

// What RAdam multiplies x -= m / (sqrt(v) + eps) by; not adaptive: it does not divide by sqrt(v),
// whose variance is not yet tractable (rho <= 4).
struct Rectified {
  double rate;
  bool adaptive;
};

Rectified Rectify(double rate, double beta1, double beta2, int64_t t) {
  const auto step = static_cast<double>(t);
  const double power1 = std::pow(beta1, step), power2 = std::pow(beta2, step);
  const double rho_inf = 2 / (1 - beta2) - 1;
  const double rho = rho_inf - 2 * step * power2 / (1 - power2);
  rate /= 1 - power1;
  if (rho <= 4) return {rate, false};
  const double r =
      std::sqrt((rho - 4) * (rho - 2) * rho_inf / ((rho_inf - 4) * (rho_inf - 2) * rho));
  return {rate * r * std::sqrt(1 - power2), true};
}

Array Flat(const at::Tensor& tensor) {
  return ViewOf(tensor.detach().contiguous().view(-1), "optimiser");
}

}  // namespace

Optimiser::Optimiser(const TrainConfig& config, NamedTensors parameters)
    : kind_(config.optimiser == "adam"    ? Kind::kAdam
            : config.optimiser == "adamw" ? Kind::kAdamW
                                          : Kind::kRAdam),
      beta1_(config.beta1),
      beta2_(config.beta2),
      eps_(config.eps),
      weight_decay_(config.weight_decay),
      parameters_(std::move(parameters)) {
  Check(kind_ != Kind::kRAdam || config.optimiser == "radam", "train",
        "optimiser must be one of adam, adamw, radam, but is '{}'", config.optimiser);
  for (const auto& [name, parameter] : parameters_) {
    Check(parameter.is_contiguous(), "train", "parameter {} must be contiguous", name);
    for (auto* moments : {&m_, &v_})
      moments->push_back(at::zeros_like(parameter).requires_grad_(false));
  }
}

Optimiser::Update Optimiser::Learn(const std::vector<Batch>& batches,
                                   const std::function<at::Tensor(const Batch&)>& loss, double rate,
                                   double clip) {
  ZeroGradients();
  Update update{.loss = AccumulateGradients(batches, loss)};
  if (!std::isfinite(update.loss)) return update;
  update.norm = GradientNorm(parameters_);
  if (!std::isfinite(update.norm)) return update;
  Step(rate, ClipScale(update.norm, clip));
  update.made = true;
  return update;
}

void Optimiser::ZeroGradients() {
  for (auto& [name, parameter] : parameters_) parameter.mutable_grad().reset();
}

void Optimiser::Step(double rate, double gradient_scale) {
  ++updates_;
  AdamUpdate update{.beta1 = beta1_, .beta2 = beta2_, .eps = eps_};
  update.gradient_scale = gradient_scale;
  if (kind_ == Kind::kAdam) {
    update.coupled_decay = weight_decay_;
  } else {
    update.keep = 1 - rate * weight_decay_;
  }
  if (kind_ == Kind::kRAdam) {
    const Rectified rectified = Rectify(rate, beta1_, beta2_, updates_);
    update.rate = rectified.rate, update.adaptive = rectified.adaptive;
  } else {
    const auto t = static_cast<double>(updates_);
    update.rate = rate / (1 - std::pow(beta1_, t));
    update.v_scale = 1 / std::sqrt(1 - std::pow(beta2_, t));
  }
  std::vector<at::Tensor> gradients;  // kept while they are read
  std::vector<AdamTensor> tensors;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor& parameter = parameters_[i].second;
    if (!parameter.grad().defined()) continue;
    gradients.push_back(parameter.grad().contiguous());
    tensors.push_back({Flat(parameter), Flat(gradients.back()), Flat(m_[i]), Flat(v_[i])});
  }
  UpdateTensors(tensors, update);
  for (const auto& [name, parameter] : parameters_)  // as LibTorch's in-place operators do
    parameter.unsafeGetTensorImpl()->bump_version();
}

NamedTensors Optimiser::Moments() const {
  NamedTensors moments;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    moments.emplace_back(parameters_[i].first + ".m", m_[i]);
    moments.emplace_back(parameters_[i].first + ".v", v_[i]);
  }
  return moments;
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

double GradientNorm(const NamedTensors& parameters) {
  std::vector<at::Tensor> gradients;
  std::vector<Array> arrays;
  for (const auto& [name, gradient] : Gradients(parameters)) {
    gradients.push_back(gradient.contiguous());
    arrays.push_back(Flat(gradients.back()));
  }
  return std::sqrt(SumOfSquares(arrays));
}

double ClipScale(double norm, double limit) {
  return std::isfinite(norm) && limit > 0 && norm > limit ? limit / norm : 1;
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
