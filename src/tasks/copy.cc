#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/file.h"
#include "tasks/synthetic.h"

namespace linattn {
namespace {

// Saying a word again (Katharopoulos et al. 2020, section 4.1): separator, word, separator, word,
// then separators up to max_len. The word is of 1 to max_len/2 - 1 symbols, as many of each length;
// the separator is the last symbol of the vocabulary. Only the second word is scored.
class CopyTask : public SyntheticTask {
 public:
  explicit CopyTask(const TaskOptions& options) : SyntheticTask(options) {
    Check(options.model.max_len >= 4, "copy", "max_len must be at least 4, but is {}",
          options.model.max_len);
  }

  std::string Summary() const override {
    return fmt::format("copy: words of 1 to {} of {} symbols, made up; {} to evaluate", longest(),
                       separator(), eval_count());
  }

  std::vector<Metric> metrics() const override { return {{"bits_per_symbol"}, {"accuracy", true}}; }
  std::vector<Tally> Measure(const at::Tensor& outputs, const Batch& batch,
                             double nats) const override {
    return {Task::Measure(outputs, batch, nats).front(), Accuracy(outputs, batch)};
  }

  // A separator, a word and a separator; the word is to be said again.
  std::vector<Prompt> Prompts(int64_t n) const override {
    std::vector<Prompt> prompts;
    for (int64_t i = 0; i < n; ++i) {
      Random random = EvalRandom(i);
      const std::vector<int32_t> word = Word(random);
      std::vector<int32_t> symbols = {separator()};
      symbols.insert(symbols.end(), word.begin(), word.end());
      symbols.push_back(separator());
      symbols.resize(symbols.size() + word.size(), -1);
      prompts.push_back({0, std::move(symbols)});
    }
    return prompts;
  }

  // A line a sample: the word, what was made of it, and how many symbols of that are wrong.
  std::string WriteSamples(const std::vector<std::vector<int32_t>>& sequences,
                           const std::string& stem) const override {
    std::string text;
    for (const auto& sequence : sequences) {
      const size_t length = sequence.size() / 2 - 1;
      std::string word, copy;
      int wrong = 0;
      for (size_t i = 0; i < length; ++i) {
        const int32_t said = sequence[1 + i], again = sequence[2 + length + i];
        word += Letter(said), copy += Letter(again);
        wrong += said != again;
      }
      text += fmt::format("{}\n{}\n{} of {} wrong\n\n", word, copy, wrong, length);
    }
    WriteFileAtomic(stem + ".txt", text);
    return stem + ".txt";
  }

 protected:
  int64_t FillExample(Batch& batch, int64_t row, int64_t /*kind*/, Random& random) const override {
    const int64_t length = batch.inputs.size(1);
    int64_t* inputs = batch.inputs.data_ptr<int64_t>() + row * length;
    int64_t* targets = batch.targets.data_ptr<int64_t>() + row * length;
    const std::vector<int32_t> word = Word(random);
    const auto n = static_cast<int64_t>(word.size());
    std::fill(inputs + 1, inputs + length, separator());
    for (int64_t i = 0; i < n; ++i) {
      inputs[2 + i] = word[i];  // one behind the start token
      if (3 + n + i < length) inputs[3 + n + i] = word[i];
      targets[2 + n + i] = word[i];
    }
    return n;
  }

 private:
  int64_t longest() const { return options_.model.max_len / 2 - 1; }
  int32_t separator() const { return static_cast<int32_t>(options_.model.vocab - 1); }
  std::vector<int32_t> Word(Random& random) const {
    std::vector<int32_t> word(1 + random.Below(longest()));
    for (int32_t& symbol : word) symbol = static_cast<int32_t>(random.Below(separator()));
    return word;
  }
  std::string Letter(int32_t symbol) const {
    if (symbol == separator()) return "|";
    return symbol < 10 ? std::string(1, static_cast<char>('0' + symbol))
                       : fmt::format(" {}", symbol);
  }
};

}  // namespace

std::unique_ptr<Task> MakeCopyTask(const TaskOptions& options) {
  return std::make_unique<CopyTask>(options);
}

}  // namespace linattn
