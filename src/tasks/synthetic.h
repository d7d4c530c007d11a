#pragma once

#include "base/random.h"
#include "tasks/task.h"

namespace linattn {

// A task whose examples are made up: each a function of the seed and its number. There may be
// several kinds: a batch is of one, the batches take turns. The held-out set has numbers of its own
// and as many examples of each kind, whatever the batch.
class SyntheticTask : public Task {
 public:
  using Task::Task;

  Batch TrainBatch(int64_t index) const override;
  int64_t eval_batches() const override;
  Batch EvalBatch(int64_t index) const override;

 protected:
  virtual int64_t kinds() const { return 1; }
  // Tokens of a sequence of that kind.
  virtual int64_t Length(int64_t /*kind*/) const { return options_.model.max_len; }
  // Fills targets (which are -1 before) and inputs behind the start token of one row; returns how
  // many targets are scored.
  virtual int64_t FillExample(Batch& batch, int64_t row, int64_t kind, Random& random) const = 0;

  // The number of held-out examples: as many as are asked for, or some more, so that every kind has
  // its share.
  int64_t eval_count() const { return kinds() * eval_each(); }
  // That a held-out example is made of.
  Random EvalRandom(int64_t example) const;

 private:
  int64_t eval_each() const;  // held-out examples of each kind
  // Row i is example first + i * apart.
  Batch Make(int64_t kind, int64_t rows, uint64_t first, uint64_t apart) const;
};

}  // namespace linattn
