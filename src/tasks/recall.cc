#include <ATen/ATen.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "tasks/synthetic.h"

namespace linattn {
namespace {

// Multi-query associative recall (Arora et al. 2023, "Zoology"): D keys, each with its value behind
// it, none of either twice; then every key once more, as a query, and the value is to be told when
// it is read. Symbol 0 fills what is left, also where the answer would stand; then come as many
// keys as values.
class RecallTask : public SyntheticTask {
 public:
  explicit RecallTask(const TaskOptions& options) : SyntheticTask(options) {
    const int64_t most = options.data.pairs;
    Check(most >= kFewest && most <= symbols(), "recall",
          "data.pairs must be from {} to the {} keys that vocab = {} has room for, but is {}",
          kFewest, symbols(), options.model.vocab, most);
    Check(options.model.max_len >= LengthOf(most), "recall",
          "max_len must be at least {} for {} pairs, but is {}", LengthOf(most), most,
          options.model.max_len);
    for (int64_t pairs = kFewest; pairs < most; pairs *= 2) pairs_.push_back(pairs);
    pairs_.push_back(most);
  }

  std::string Summary() const override {
    return fmt::format("recall: {} pairs of {} keys and {} values, made up; {} to evaluate",
                       fmt::join(pairs_, ", "), symbols(), symbols(), eval_count());
  }

  // The mean over the numbers of pairs, then one for each of them.
  std::vector<Metric> metrics() const override {
    std::vector<Metric> metrics = {{"accuracy", true}};
    for (const int64_t pairs : pairs_) {
      metrics.push_back({fmt::format("accuracy_{}", pairs), true, static_cast<double>(pairs)});
    }
    return metrics;
  }
  std::string axis() const override { return "pairs"; }

  std::vector<Tally> Measure(const at::Tensor& outputs, const Batch& batch,
                             double /*nats*/) const override {
    const auto rows = static_cast<double>(batch.inputs.size(0));
    const Tally tally = Accuracy(outputs, batch);
    std::vector<Tally> tallies(1 + pairs_.size());
    tallies[0] = {tally.sum / tally.count * rows, rows};
    const auto pairs = std::llround(tally.count / rows);
    tallies[1 + (std::find(pairs_.begin(), pairs_.end(), pairs) - pairs_.begin())] = tally;
    return tallies;
  }

 protected:
  int64_t kinds() const override { return std::ssize(pairs_); }
  int64_t Length(int64_t kind) const override { return LengthOf(pairs_[kind]); }

  int64_t FillExample(Batch& batch, int64_t row, int64_t kind, Random& random) const override {
    const int64_t length = batch.inputs.size(1), pairs = pairs_[kind];
    int64_t* inputs = batch.inputs.data_ptr<int64_t>() + row * length;
    int64_t* targets = batch.targets.data_ptr<int64_t>() + row * length;
    const auto keys = Draw(pairs, 1, random), values = Draw(pairs, 1 + symbols(), random);
    const auto places = Places(length / 2 - pairs, pairs, random);
    std::fill(inputs + 1, inputs + length, 0);
    for (int64_t i = 0; i < pairs; ++i) {
      inputs[1 + 2 * i] = keys[i];  // one behind the start token
      inputs[2 + 2 * i] = values[i];
    }
    for (int64_t i = 0; i < pairs; ++i) {
      const int64_t t = 2 * (pairs + places[i]) + 1;
      inputs[t] = keys[i], targets[t] = values[i];
    }
    return pairs;
  }

 private:
  static constexpr int64_t kFewest = 4;

  // Room for twice the pairs' tokens; the short ones get a little more.
  static int64_t LengthOf(int64_t pairs) { return std::max<int64_t>(64, 4 * pairs); }
  int64_t symbols() const { return (options_.model.vocab - 1) / 2; }

  // n different ones of first .. first + symbols() - 1.
  std::vector<int64_t> Draw(int64_t n, int64_t first, Random& random) const {
    std::vector<int64_t> all(symbols());
    for (int64_t i = 0; i < symbols(); ++i) all[i] = first + i;
    for (int64_t i = 0; i < n; ++i) std::swap(all[i], all[i + random.Below(symbols() - i)]);
    all.resize(n);
    return all;
  }

  // n different places of 0..room-1, near ones first by a power law: place j is taken with a weight
  // of (j+1)^(a-1), a = 0.01 as in the paper's code. (The first n arrivals of Poisson processes
  // with these rates: drawing without replacement.)
  static std::vector<int64_t> Places(int64_t room, int64_t n, Random& random) {
    constexpr double kPower = 0.01;
    std::vector<std::pair<double, int64_t>> arrivals;
    for (int64_t j = 0; j < room; ++j) {
      const double rate = std::pow(static_cast<double>(j + 1), kPower - 1);
      arrivals.emplace_back(-std::log(1 - random.Uniform()) / rate, j);
    }
    std::partial_sort(arrivals.begin(), arrivals.begin() + n, arrivals.end());
    std::vector<int64_t> places;
    for (int64_t i = 0; i < n; ++i) places.push_back(arrivals[i].second);
    return places;
  }

  std::vector<int64_t> pairs_;  // the kinds: numbers of pairs, ascending
};

}  // namespace

std::unique_ptr<Task> MakeRecallTask(const TaskOptions& options) {
  return std::make_unique<RecallTask>(options);
}

}  // namespace linattn
