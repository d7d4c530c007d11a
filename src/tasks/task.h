#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/config.h"
#include "tasks/data_config.h"

namespace linattn {

struct Batch {
  at::Tensor inputs{};   // [B,T] int64, what the model reads: the start token, then symbols 0..T-2;
                         // or [B,T,row width] frames
  at::Tensor targets{};  // [B,T] int64 symbols 0..T-1; -1: not scored. Undefined with CTC
  int64_t tokens = 0;    // scored ones (rows that are there), by which its loss is weighted
  at::Tensor mask{};     // [B,T] bool, or undefined: all are there
  std::vector<int64_t> lengths{};              // [B] rows of each, and
  std::vector<std::vector<int32_t>> labels{};  // [B] what they spell: CTC's
  const at::Tensor* mask_or_null() const { return mask.defined() ? &mask : nullptr; }
};

struct TaskOptions {
  ModelConfig model;
  DataConfig data;
  int64_t batch = 1;          // sequences a batch
  int64_t eval_examples = 0;  // of the held-out set, evenly spaced; 0: all
  uint64_t seed = 0;
};

// A figure of merit. Over a set of batches it is the sum of their `sum` by that of their `count`.
struct Metric {
  std::string name;  // as metrics.jsonl has it
  bool higher_is_better = false;
  std::optional<double> at{};  // where along the task's axis it is taken
};
struct Tally {
  double sum = 0, count = 0;
};

// What a sample starts from.
struct Prompt {
  int64_t label = 0;             // a class, or 0
  std::vector<int32_t> symbols;  // [max_len]; -1: to be drawn
};

// What is learned: data, their order, loss, figures of merit, and what a sample looks like.
class Task {
 public:
  explicit Task(const TaskOptions& options) : options_(options) {}
  virtual ~Task() = default;

  virtual std::string Summary() const = 0;                             // one line for the log
  virtual std::vector<std::string> class_names() const { return {}; }  // of the labels, if known
  // Examples that cannot be learned from, one a line: "name: why".
  virtual std::vector<std::string> left_out() const { return {}; }
  // Completes the model's config by what only the data tell: a conditional model without names
  // takes those of the classes, if they are as many; a model of speech its units and its features'
  // scale.
  virtual void FitModel(ModelConfig& model) const;

  // The SentencePiece model that a model file is to carry; empty: none.
  virtual std::span<const uint8_t> vocabulary() const { return {}; }

  // The index-th batch ever drawn: a function of the seed and the index alone, so that a resumed
  // run sees what an unbroken one would.
  virtual Batch TrainBatch(int64_t index) const = 0;

  virtual int64_t eval_batches() const = 0;
  virtual Batch EvalBatch(int64_t index) const = 0;

  // Sum of the batch's losses in nats, a float64 scalar, from the model's outputs [B,T,outputs].
  // The head's (nn/loss.h) over the scored tokens, unless the task has one of its own.
  virtual at::Tensor Loss(const at::Tensor& outputs, const Batch& batch) const;

  // Reported along with the loss; the first one tells which evaluation is the best.
  virtual std::vector<Metric> metrics() const = 0;
  // What the metrics that have a place differ in: "pairs". Empty: there are none.
  virtual std::string axis() const { return {}; }
  // What a batch adds to each of them, given Loss's value. Bits a token, unless it is overridden.
  virtual std::vector<Tally> Measure(const at::Tensor& outputs, const Batch& batch,
                                     double nats) const;

  // What n samples start from; none: the task has no samples.
  virtual std::vector<Prompt> Prompts(int64_t /*n*/) const { return {}; }
  // Writes sequences drawn from those prompts to `stem` + ".png" or ".txt"; returns that path.
  virtual std::string WriteSamples(const std::vector<std::vector<int32_t>>& /*sequences*/,
                                   const std::string& stem) const {
    return stem;
  }

 protected:
  TaskOptions options_;
};

// By model.task. Throws Error if the data are missing, damaged or do not fit the model.
std::unique_ptr<Task> MakeTask(const TaskOptions& options);

// One a kind, each in its own file.
std::unique_ptr<Task> MakeImagesTask(const TaskOptions& options);
std::unique_ptr<Task> MakeTextTask(const TaskOptions& options);
std::unique_ptr<Task> MakeSpeechTask(const TaskOptions& options);
std::unique_ptr<Task> MakeCopyTask(const TaskOptions& options);
std::unique_ptr<Task> MakeRecallTask(const TaskOptions& options);

// Scored tokens, and how many of them the outputs rank first. outputs [B,T,vocab].
Tally Accuracy(const at::Tensor& outputs, const Batch& batch);

// A permutation of 0..n-1, a function of seed and stream: Fisher-Yates.
std::vector<int64_t> Permutation(int64_t n, uint64_t seed, uint64_t stream);

// Row i of the batch from its symbols: inputs are shifted by one behind `start`.
void FillRow(Batch& batch, int64_t row, int64_t start, const uint8_t* symbols, int64_t length);
void FillRow(Batch& batch, int64_t row, int64_t start, const int32_t* symbols, int64_t length);
Batch EmptyBatch(int64_t rows, int64_t length);

}  // namespace linattn
