#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "nn/transformer.h"
#include "tasks/task.h"

namespace linattn {

double Mean(const Tally& tally);

// Losses and figures of merit, summed over batches.
struct Score {
  explicit Score(const Task& task) : tallies(task.metrics().size()) {}
  // Adds what the model's outputs for the batch are worth. Returns its loss in nats, a scalar, for
  // the backward pass.
  at::Tensor Add(Transformer& model, const Task& task, const Batch& batch);
  double headline() const { return Mean(tallies.front()); }

  Tally loss;                  // nats; tokens
  std::vector<Tally> tallies;  // one a metric
};

// Over the held-out examples, without gradients; the model should be in evaluation mode. go_on:
// asked before each batch, told how many are done; false ends it early; may be null.
Score ScoreHeldOut(Transformer& model, const Task& task,
                   const std::function<bool(int64_t done)>& go_on = nullptr);

}  // namespace linattn
