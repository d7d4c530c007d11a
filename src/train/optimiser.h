#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "tasks/task.h"
#include "train/config.h"

namespace linattn {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

// Adam (Kingma & Ba 2015, with weight decay added to the gradient), AdamW (Loshchilov & Hutter
// 2019) or RAdam (Liu et al. 2019, "On the Variance of the Adaptive Learning Rate and Beyond",
// algorithm 2, with eps beside sqrt(v) and the decoupled decay of the authors' code). Its state is
// two moments a parameter and the number of updates made; it exists from the start, so that
// checkpoints always have one form.
class Optimiser {
 public:
  Optimiser(const TrainConfig& config, NamedTensors parameters);

  // One update by the mean loss of the batches' scored tokens (AccumulateGradients), its gradient
  // cut to a norm of `clip`. None if that loss or norm is not finite: then the gradients are left
  // to be looked at.
  struct Update {
    double loss = 0, norm = 0;  // nats a token; of the gradient
    bool made = false;
  };
  Update Learn(const std::vector<Batch>& batches,
               const std::function<at::Tensor(const Batch&)>& loss, double rate, double clip);

  void ZeroGradients();  // leaves them undefined
  // One update of all parameters that have gradients, which count times `gradient_scale`.
  void Step(double rate, double gradient_scale = 1);

  // "<parameter>.m" and "<parameter>.v", as the parameter; they share memory with the optimiser.
  NamedTensors Moments() const;
  int64_t updates() const { return updates_; }
  void SetUpdates(int64_t updates) { updates_ = updates; }  // after the moments were written into

 private:
  enum class Kind { kAdam, kAdamW, kRAdam };
  Kind kind_;
  double beta1_, beta2_, eps_, weight_decay_;
  int64_t updates_ = 0;
  NamedTensors parameters_;
  std::vector<at::Tensor> m_, v_;  // one a parameter
};

// Updates in a row that could not be made, after which training is over.
inline constexpr int64_t kMostSkips = 100;

// Running means of the parameters: mean = d mean + (1 - d) x, d = min(decay, (1 + n) / (10 + n)) at
// update n, so that the first weights are soon forgotten.
class WeightAverage {
 public:
  WeightAverage(double decay, const NamedTensors& parameters);
  void Update(int64_t n);
  const NamedTensors& means() const { return means_; }

 private:
  double decay_;
  NamedTensors parameters_, means_;
};

// Adds to the parameters' gradients those of sum(loss) / sum(tokens) over all batches, so that
// every scored token weighs the same whatever batch it is in. loss: the sum over a batch's tokens,
// nats. Returns the mean loss; stops early, without that batch's backward pass, when it is not
// finite.
double AccumulateGradients(const std::vector<Batch>& batches,
                           const std::function<at::Tensor(const Batch&)>& loss);

// The global norm of the gradients.
double GradientNorm(const NamedTensors& parameters);
// What brings gradients of that norm down to `limit`: 1 if they are below it, if it is 0, or if the
// norm is not finite (then take no step).
double ClipScale(double norm, double limit);

// The first tensor that holds a NaN or infinity; "" if none does.
std::string FirstNonFiniteTensor(const NamedTensors& tensors);
// Those gradients that exist, under their parameters' names.
NamedTensors Gradients(const NamedTensors& parameters);

}  // namespace linattn
