#include <algorithm>
#include <span>

#include "base/error.h"
#include "base/file.h"
#include "base/random.h"
#include "tasks/task.h"

namespace linattn {
namespace {

// A byte-level language model of one file: the first 90% are for training, the next 5% for
// evaluation, the last 5% are left for a final test. A training example is a window of max_len
// bytes from anywhere.
class TextTask : public Task {
 public:
  explicit TextTask(const TaskOptions& options)
      : Task(options), bytes_(ReadFile(options.data.source, "text")) {
    const ModelConfig& model = options.model;
    Check(model.vocab >= 256, "text", "vocab must be at least 256 for bytes, but is {}",
          model.vocab);
    const auto size = static_cast<int64_t>(bytes_.size());
    const int64_t train = size * 9 / 10, validation = size * 19 / 20 - train;
    Check(train >= length() && validation > 0, "text",
          "{} must have at least {} bytes for windows of max_len = {}, but has {}",
          options.data.source, std::max<int64_t>(20, length() * 10 / 9 + 1), length(), size);
    train_ = std::span(bytes_).first(train);
    validation_ = std::span(bytes_).subspan(train, validation);
    const int64_t windows = (validation + length() - 1) / length();
    const int64_t wanted = options.eval_examples > 0 ? options.eval_examples : windows;
    for (int64_t i = 0; i < std::min(wanted, windows); ++i) {
      windows_.push_back(i * windows / std::min(wanted, windows) * length());
    }
  }

  std::vector<Metric> metrics() const override { return {{"bits_per_byte"}}; }
  std::string Summary() const override {
    return fmt::format("{}: {} bytes to train on, {} to evaluate", options_.data.source,
                       train_.size(), validation_.size());
  }

  Batch TrainBatch(int64_t index) const override {
    Batch batch = EmptyBatch(options_.batch, length());
    Random random(options_.seed, static_cast<uint64_t>(index));
    for (int64_t row = 0; row < options_.batch; ++row) {
      const uint64_t begin = random.Below(train_.size() - length() + 1);
      FillRow(batch, row, options_.model.start_token(0), train_.data() + begin, length());
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
      for (const int32_t symbol : sequence) text += static_cast<char>(symbol);
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
      FillRow(batch, row, options_.model.start_token(0), validation_.data() + windows_[first + row],
              length);
    }
    return batch;
  }

  Bytes bytes_;
  std::span<const uint8_t> train_, validation_;
  std::vector<int64_t> windows_;  // where each evaluated window begins
};

}  // namespace

std::unique_ptr<Task> MakeTextTask(const TaskOptions& options) {
  return std::make_unique<TextTask>(options);
}

}  // namespace linattn
