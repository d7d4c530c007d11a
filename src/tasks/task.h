#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "model/config.h"
#include "tasks/data_config.h"

namespace linattn {

struct Batch {
  at::Tensor inputs;   // [B,T] int64: the start token, then symbols 0..T-2
  at::Tensor targets;  // [B,T] int64 symbols 0..T-1; -1: not scored
  int64_t tokens = 0;  // scored ones, by which its loss is weighted
};

struct TaskOptions {
  ModelConfig model;
  DataConfig data;
  int64_t batch = 1;          // sequences a batch
  int64_t eval_examples = 0;  // of the held-out set, evenly spaced; 0: all
  uint64_t seed = 0;
};

// What is learned: data, its order, and what a sample looks like. The loss is the model's head's
// (nn/loss.h) for every task.
class Task {
 public:
  virtual ~Task() = default;

  virtual std::string_view metric() const = 0;  // "bits_per_dim" | "bits_per_byte": nats / ln 2
  virtual std::string Summary() const = 0;      // one line for the log
  virtual int64_t train_examples() const = 0;
  virtual std::vector<std::string> class_names() const { return {}; }  // of the labels, if known

  // The index-th batch ever drawn: a function of the seed and the index alone, so that a resumed
  // run sees what an unbroken one would.
  virtual Batch TrainBatch(int64_t index) const = 0;

  virtual int64_t eval_batches() const = 0;
  virtual Batch EvalBatch(int64_t index) const = 0;

  // What conditions each of n samples: a class label, or 0.
  virtual std::vector<int64_t> SampleLabels(int64_t n) const = 0;
  // Writes sampled sequences to `stem` + ".png" or ".txt"; returns that path.
  virtual std::string WriteSamples(const std::vector<std::vector<int32_t>>& sequences,
                                   const std::string& stem) const = 0;
};

// By model.task. Throws Error if the data are missing, damaged or do not fit the model.
std::unique_ptr<Task> MakeTask(const TaskOptions& options);

// A conditional model without names takes those of the task's classes, if they are as many.
void NameClasses(const Task& task, ModelConfig& model);

// One a kind, each in its own file.
std::unique_ptr<Task> MakeImagesTask(const TaskOptions& options);
std::unique_ptr<Task> MakeTextTask(const TaskOptions& options);

// Row i of the batch from its symbols: inputs are shifted by one behind `start`.
void FillRow(Batch& batch, int64_t row, int64_t start, const uint8_t* symbols, int64_t length);
Batch EmptyBatch(int64_t rows, int64_t length);

}  // namespace linattn
