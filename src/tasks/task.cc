#include "tasks/task.h"

#include <ATen/ATen.h>

#include <numbers>
#include <numeric>

#include "base/error.h"
#include "base/random.h"
#include "nn/loss.h"

namespace linattn {

std::unique_ptr<Task> MakeTask(const TaskOptions& options) {
  CheckConfig(options.model);
  Check(options.batch > 0, "task", "batch must be positive, but is {}", options.batch);
  const std::string& task = options.model.task;
  if (task == "images") return MakeImagesTask(options);
  if (task == "text") return MakeTextTask(options);
  if (task == "speech") return MakeSpeechTask(options);
  if (task == "copy") return MakeCopyTask(options);
  if (task == "recall") return MakeRecallTask(options);
  Fail("task", "task must be one of images, text, speech, copy, recall, but is '{}'", task);
}

bool ReadsData(std::string_view task) { return task != "copy" && task != "recall"; }

at::Tensor Task::Loss(const at::Tensor& outputs, const Batch& batch) const {
  return TokenLoss(options_.model, outputs, batch.targets).sum(at::kDouble);
}

std::vector<Tally> Task::Measure(const at::Tensor& /*outputs*/, const Batch& batch,
                                 double nats) const {
  return {{nats / std::numbers::ln2, static_cast<double>(batch.tokens)}};
}

Tally Accuracy(const at::Tensor& outputs, const Batch& batch) {
  const at::Tensor index = batch.targets.flatten().ge(0).nonzero().flatten();
  const at::Tensor best = outputs.flatten(0, 1).index_select(0, index).argmax(-1);
  const at::Tensor wanted = batch.targets.flatten().index_select(0, index);
  return {best.eq(wanted).sum().item<double>(), static_cast<double>(index.numel())};
}

void Task::FitModel(ModelConfig& model) const {
  const std::vector<std::string> names = class_names();
  if (model.class_names.empty() && std::ssize(names) == model.classes) model.class_names = names;
}

std::vector<int64_t> Permutation(int64_t n, uint64_t seed, uint64_t stream) {
  std::vector<int64_t> order(n);
  std::iota(order.begin(), order.end(), int64_t{0});
  Random random(seed, stream);
  for (int64_t i = n - 1; i > 0; --i) std::swap(order[i], order[random.Below(i + 1)]);
  return order;
}

Batch EmptyBatch(int64_t rows, int64_t length) {
  return {at::empty({rows, length}, at::kLong), at::empty({rows, length}, at::kLong),
          rows * length};
}

namespace {

template <class Symbol>
void FillShifted(Batch& batch, int64_t row, int64_t start, const Symbol* symbols, int64_t length) {
  int64_t* inputs = batch.inputs.data_ptr<int64_t>() + row * length;
  int64_t* targets = batch.targets.data_ptr<int64_t>() + row * length;
  inputs[0] = start;
  for (int64_t t = 0; t < length; ++t) targets[t] = symbols[t];
  for (int64_t t = 1; t < length; ++t) inputs[t] = symbols[t - 1];
}

}  // namespace

void FillRow(Batch& batch, int64_t row, int64_t start, const uint8_t* symbols, int64_t length) {
  FillShifted(batch, row, start, symbols, length);
}

void FillRow(Batch& batch, int64_t row, int64_t start, const int32_t* symbols, int64_t length) {
  FillShifted(batch, row, start, symbols, length);
}

}  // namespace linattn
