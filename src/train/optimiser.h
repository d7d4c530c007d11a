#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tasks/task.h"
#include "train/config.h"

namespace torch::optim {
class Optimizer;
}

namespace linattn {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

// Adam and AdamW of LibTorch, or RAdam, behind one face. Its state is two moments a parameter and
// the number of updates made; it exists from the start, so that checkpoints always have one form.
class Optimiser {
 public:
  Optimiser(const TrainConfig& config, NamedTensors parameters);
  ~Optimiser();

  void ZeroGradients();
  void Step(double rate);  // one update from the parameters' gradients

  // "<parameter>.m" and "<parameter>.v", float32; they share memory with the optimiser.
  NamedTensors Moments() const;
  int64_t updates() const;
  void SetUpdates(int64_t updates);  // after the moments have been written into

 private:
  NamedTensors parameters_;
  std::unique_ptr<torch::optim::Optimizer> optimiser_;
};

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

// The global norm of the gradients, which are scaled down to `limit` if it is larger (0: never). A
// norm that is not finite is returned with the gradients left as they are: then take no step.
double ClipGradients(const NamedTensors& parameters, double limit);

// The first tensor that holds a NaN or infinity; "" if none does.
std::string FirstNonFiniteTensor(const NamedTensors& tensors);
// Those gradients that exist, under their parameters' names.
NamedTensors Gradients(const NamedTensors& parameters);

}  // namespace linattn
