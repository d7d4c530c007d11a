#include "tasks/synthetic.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace linattn {
namespace {

constexpr uint64_t kEvalStream = uint64_t{1} << 60;
constexpr int64_t kEvalExamples = 1000;  // if all are asked for

}  // namespace

Batch SyntheticTask::TrainBatch(int64_t index) const { return Make(index, options_.batch, 0); }

Batch SyntheticTask::EvalBatch(int64_t index) const {
  return Make(index, std::min(options_.batch, eval_count() - index * options_.batch), kEvalStream);
}

int64_t SyntheticTask::eval_batches() const {
  return (eval_count() + options_.batch - 1) / options_.batch;
}

int64_t SyntheticTask::eval_count() const {
  return options_.eval_examples > 0 ? options_.eval_examples : kEvalExamples;
}

Random SyntheticTask::EvalRandom(int64_t example) const {
  return Random(options_.seed, kEvalStream + static_cast<uint64_t>(example));
}

Batch SyntheticTask::Make(int64_t index, int64_t rows, uint64_t stream) const {
  Batch batch = EmptyBatch(rows, Length(index));
  batch.inputs.select(1, 0).fill_(options_.model.start_token(0));
  batch.targets.fill_(-1);
  batch.tokens = 0;
  for (int64_t row = 0; row < rows; ++row) {
    Random random(options_.seed, stream + static_cast<uint64_t>(index * options_.batch + row));
    batch.tokens += FillExample(batch, row, index, random);
  }
  return batch;
}

}  // namespace linattn
