#include <ATen/ATen.h>

#include <algorithm>
#include <numbers>
#include <span>

#include "base/error.h"
#include "base/file.h"
#include "base/random.h"
#include "data/vocabulary.h"
#include "tasks/task.h"

namespace linattn {
namespace {

// Symbols in a row: bytes where they are bytes, which takes a quarter of the memory.
class Symbols {
 public:
  Symbols() = default;
  Symbols(std::span<const uint8_t> bytes, const Vocabulary& vocabulary) : bytes_(bytes) {
    if (vocabulary.pieces()) ids_ = vocabulary.Encode(AsText(bytes)), bytes_ = {};
  }
  int64_t size() const { return std::ssize(bytes_) + std::ssize(ids_); }
  const std::vector<int32_t>& ids() const { return ids_; }
  void Fill(Batch& batch, int64_t row, int64_t start, int64_t begin, int64_t length) const {
    if (ids_.empty()) return FillRow(batch, row, start, bytes_.data() + begin, length);
    FillRow(batch, row, start, ids_.data() + begin, length);
  }

 private:
  std::span<const uint8_t> bytes_;
  std::vector<int32_t> ids_;
};

// A language model of one file, by bytes or by the pieces of a vocabulary: the first 90% are for
// training, the next 5% for evaluation, the last 5% are left for a final test. A training example
// is a window of max_len symbols from anywhere. Bits are counted a byte, so that vocabularies
// compare.
class TextTask : public Task {
 public:
  explicit TextTask(const TaskOptions& options)
      : Task(options),
        bytes_(ReadFile(options.data.source, "text")),
        vocabulary_(options.data.vocabulary.empty() ? Vocabulary(256, {})
                                                    : Vocabulary::Open(options.data.vocabulary)) {
    FitModel(options_.model);
    Check(vocabulary_.pieces() || options_.model.vocab >= 256, "text",
          "vocab must be at least 256 for bytes, but is {}", options_.model.vocab);
    const auto size = static_cast<int64_t>(bytes_.size());
    const int64_t train = size * 9 / 10, validation = size * 19 / 20 - train;
    train_ = Symbols(std::span(bytes_).first(train), vocabulary_);
    validation_ = Symbols(std::span(bytes_).subspan(train, validation), vocabulary_);
    Check(train_.size() >= length() && validation_.size() > 0, "text",
          "{} must have at least {} {} for windows of max_len = {}, but has {}",
          options.data.source, std::max<int64_t>(20, length() * 10 / 9 + 1), vocabulary_.unit(),
          length(), vocabulary_.bytes() ? size : train_.size() + validation_.size());
    const int64_t windows = (validation_.size() + length() - 1) / length();
    const int64_t wanted = options.eval_examples > 0 ? options.eval_examples : windows;
    for (int64_t i = 0; i < std::min(wanted, windows); ++i) {
      windows_.push_back(i * windows / std::min(wanted, windows) * length());
    }
    if (vocabulary_.pieces()) WeighSymbols(validation);
  }

  void FitModel(ModelConfig& model) const override {
    Task::FitModel(model);
    if (!vocabulary_.pieces()) return;
    constexpr int64_t kUnset = 256;
    Check(model.vocab == kUnset || model.vocab == vocabulary_.size(), "text",
          "model.vocab must be the vocabulary's {} pieces, or be left out, but is {}",
          vocabulary_.size(), model.vocab);
    model.vocab = vocabulary_.size();
  }

  std::span<const uint8_t> vocabulary() const override { return vocabulary_.file(); }

  std::vector<Metric> metrics() const override { return {{"bits_per_byte"}}; }
  std::vector<Tally> Measure(const at::Tensor& outputs, const Batch& batch,
                             double nats) const override {
    if (!vocabulary_.pieces()) return Task::Measure(outputs, batch, nats);
    const auto* target = batch.targets.data_ptr<int64_t>();
    double bytes = 0;
    for (int64_t i = 0; i < batch.targets.numel(); ++i) bytes += bytes_of_[target[i]];
    return {{nats / std::numbers::ln2, bytes}};
  }

  std::string Summary() const override {
    return fmt::format("{}: {} {} to train on, {} to evaluate{}", options_.data.source,
                       train_.size(), vocabulary_.unit(), validation_.size(), note_);
  }

  Batch TrainBatch(int64_t index) const override {
    Batch batch = EmptyBatch(options_.batch, length());
    Random random(options_.seed, static_cast<uint64_t>(index));
    for (int64_t row = 0; row < options_.batch; ++row) {
      const uint64_t begin = random.Below(train_.size() - length() + 1);
      train_.Fill(batch, row, options_.model.start_token(0), static_cast<int64_t>(begin), length());
    }
    return batch;
  }

  // Full windows by the batch; the cut last one, whose length differs, alone.
  int64_t eval_batches() const override {
    return (full_windows() + options_.batch - 1) / options_.batch +
           (full_windows() < static_cast<int64_t>(windows_.size()));
  }

  Batch EvalBatch(int64_t index) const override {
    const int64_t first = index * options_.batch;
    if (first >= full_windows())
      return Windows(full_windows(), 1, validation_.size() - windows_.back());
    return Windows(first, std::min(options_.batch, full_windows() - first), length());
  }

  std::vector<Prompt> Prompts(int64_t n) const override {
    return std::vector<Prompt>(n, {0, std::vector<int32_t>(length(), -1)});
  }

  std::string WriteSamples(const std::vector<std::vector<int32_t>>& sequences,
                           const std::string& stem) const override {
    std::string text;
    for (const auto& sequence : sequences) {
      text += vocabulary_.Decode(sequence);
      text += "\n----------------\n";
    }
    WriteFileAtomic(stem + ".txt", text);
    return stem + ".txt";
  }

 private:
  int64_t length() const { return options_.model.max_len; }
  int64_t full_windows() const {
    const bool cut = windows_.back() + length() > static_cast<int64_t>(validation_.size());
    return static_cast<int64_t>(windows_.size()) - cut;
  }
  Batch Windows(int64_t first, int64_t rows, int64_t length) const {
    Batch batch = EmptyBatch(rows, length);
    for (int64_t row = 0; row < rows; ++row) {
      validation_.Fill(batch, row, options_.model.start_token(0), windows_[first + row], length);
    }
    return batch;
  }

  // Bytes that a piece counts for. A vocabulary that changes the text, or lacks a part of it, is
  // made to count for all bytes of the file.
  void WeighSymbols(int64_t validation_bytes) {
    int64_t decoded = 0;
    for (int32_t id = 0; id < vocabulary_.size(); ++id) {
      bytes_of_.push_back(static_cast<double>(vocabulary_.TextOf(id, false).size()));
    }
    for (const int32_t id : validation_.ids()) decoded += static_cast<int64_t>(bytes_of_[id]);
    if (decoded == validation_bytes) return;
    const double scale = static_cast<double>(validation_bytes) / std::max<int64_t>(1, decoded);
    for (double& bytes : bytes_of_) bytes *= scale;
    note_ = fmt::format(
        "; the vocabulary changes the text ({} bytes come back of {}): bits/byte are too low by "
        "what it loses",
        decoded, validation_bytes);
  }

  Bytes bytes_;
  Vocabulary vocabulary_;
  Symbols train_, validation_;
  std::vector<double> bytes_of_;  // [vocab] with a vocabulary of pieces
  std::string note_;
  std::vector<int64_t> windows_;  // where each evaluated window begins
};

}  // namespace

std::unique_ptr<Task> MakeTextTask(const TaskOptions& options) {
  return std::make_unique<TextTask>(options);
}

}  // namespace linattn
