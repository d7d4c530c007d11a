#pragma once

#include "base/random.h"
#include "tasks/task.h"

namespace linattn {

// A task whose examples are made up: each a function of the seed and its number. Those of the
// held-out set have numbers of their own.
class SyntheticTask : public Task {
 public:
  using Task::Task;

  Batch TrainBatch(int64_t index) const override;
  int64_t eval_batches() const override;
  Batch EvalBatch(int64_t index) const override;

 protected:
  // Sequences of the index-th batch, of training or of the held-out set, have this many tokens.
  virtual int64_t Length(int64_t /*index*/) const { return options_.model.max_len; }
  // Fills targets (which are -1 before) and inputs behind the start token of one row; returns how
  // many targets are scored. `index`: the batch's, as above.
  virtual int64_t FillExample(Batch& batch, int64_t row, int64_t index, Random& random) const = 0;

  // The number of held-out examples.
  int64_t eval_count() const;
  // That a held-out example is made of.
  Random EvalRandom(int64_t example) const;

 private:
  Batch Make(int64_t index, int64_t rows, uint64_t stream) const;
};

}  // namespace linattn
