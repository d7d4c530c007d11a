#include "train/score.h"

#include <ATen/ATen.h>

namespace linattn {

double Mean(const Tally& tally) { return tally.sum / tally.count; }

at::Tensor Score::Add(Transformer& model, const Task& task, const Batch& batch) {
  const at::Tensor outputs = model.Forward(batch.inputs, batch.mask_or_null());
  const at::Tensor value = task.Loss(outputs, batch);
  const auto nats = value.item<double>();
  loss.sum += nats, loss.count += static_cast<double>(batch.tokens);
  const std::vector<Tally> more = task.Measure(outputs.detach(), batch, nats);
  for (size_t i = 0; i < tallies.size(); ++i) {
    tallies[i].sum += more[i].sum, tallies[i].count += more[i].count;
  }
  return value;
}

Score ScoreHeldOut(Transformer& model, const Task& task,
                   const std::function<bool(int64_t done)>& go_on) {
  const at::NoGradGuard no_gradient;
  Score score(task);
  for (int64_t i = 0; i < task.eval_batches() && (!go_on || go_on(i)); ++i) {
    score.Add(model, task, task.EvalBatch(i));
  }
  return score;
}

}  // namespace linattn
