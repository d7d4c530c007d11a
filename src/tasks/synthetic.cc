#include "tasks/synthetic.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace linattn {
namespace {

constexpr uint64_t kEvalStream = uint64_t{1} << 60;
constexpr int64_t kEvalExamples = 1000;  // if all are asked for

}  // namespace

Batch SyntheticTask::TrainBatch(int64_t index) const {
  return Make(index % kinds(), options_.batch, static_cast<uint64_t>(index * options_.batch), 1);
}

// The kinds take turns in the numbers of the held-out examples too.
Batch SyntheticTask::EvalBatch(int64_t index) const {
  const int64_t kind = index % kinds(), begin = index / kinds() * options_.batch;
  return Make(kind, std::min(options_.batch, eval_each() - begin),
              kEvalStream + static_cast<uint64_t>(begin * kinds() + kind),
              static_cast<uint64_t>(kinds()));
}

int64_t SyntheticTask::eval_batches() const {
  return kinds() * ((eval_each() + options_.batch - 1) / options_.batch);
}

int64_t SyntheticTask::eval_each() const {
  const int64_t wanted = options_.eval_examples > 0 ? options_.eval_examples : kEvalExamples;
  return (wanted + kinds() - 1) / kinds();
}

Random SyntheticTask::EvalRandom(int64_t example) const {
  return Random(options_.seed, kEvalStream + static_cast<uint64_t>(example));
}

Batch SyntheticTask::Make(int64_t kind, int64_t rows, uint64_t first, uint64_t apart) const {
  Batch batch = EmptyBatch(rows, Length(kind));
  batch.inputs.select(1, 0).fill_(options_.model.start_token(0));
  batch.targets.fill_(-1);
  batch.tokens = 0;
  for (int64_t row = 0; row < rows; ++row) {
    Random random(options_.seed, first + static_cast<uint64_t>(row) * apart);
    batch.tokens += FillExample(batch, row, kind, random);
  }
  return batch;
}

}  // namespace linattn
