#include "tasks/task.h"

#include <ATen/ATen.h>

#include "base/error.h"

namespace linattn {

std::unique_ptr<Task> MakeTask(const TaskOptions& options) {
  CheckConfig(options.model);
  Check(options.batch > 0, "task", "batch must be positive, but is {}", options.batch);
  if (options.model.task == "images") return MakeImagesTask(options);
  if (options.model.task == "text") return MakeTextTask(options);
  Fail("task", "task must be one of images, text, but is '{}'", options.model.task);
}

void NameClasses(const Task& task, ModelConfig& model) {
  const std::vector<std::string> names = task.class_names();
  if (model.class_names.empty() && std::ssize(names) == model.classes) model.class_names = names;
}

Batch EmptyBatch(int64_t rows, int64_t length) {
  return {at::empty({rows, length}, at::kLong), at::empty({rows, length}, at::kLong),
          rows * length};
}

void FillRow(Batch& batch, int64_t row, int64_t start, const uint8_t* symbols, int64_t length) {
  int64_t* inputs = batch.inputs.data_ptr<int64_t>() + row * length;
  int64_t* targets = batch.targets.data_ptr<int64_t>() + row * length;
  inputs[0] = start;
  for (int64_t t = 0; t < length; ++t) targets[t] = symbols[t];
  for (int64_t t = 1; t < length; ++t) inputs[t] = symbols[t - 1];
}

}  // namespace linattn
