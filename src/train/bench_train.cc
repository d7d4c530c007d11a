#include "train/bench_train.h"

#include <ATen/ATen.h>
#include <omp.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/steady_seconds.h"
#include "bench/process_memory.h"
#include "nn/loss.h"
#include "nn/transformer.h"
#include "train/config.h"
#include "train/optimiser.h"
#include "train/throughput.h"

namespace linattn {
namespace {

RunConfig ConfigOf(const BenchTrainOptions::Row& row, const std::string& dtype) {
  std::vector<std::string> sets{"train.dtype=" + dtype, "data.source=none"};
  const bool file = row.model.ends_with(".toml");
  if (!file) sets.push_back("model.base=" + row.model);
  if (!row.mixer.empty()) sets.push_back("model.mixer=" + row.mixer);
  RunConfig config = ResolveConfig(file ? row.model : "", sets);
  if (row.batch > 0 || !file)
    config.train.batch = row.batch > 0 ? row.batch : row.model == "cifar10" ? 1 : 4;
  CheckRunConfig(config);
  return config;
}

Batch RandomBatch(const ModelConfig& model, int64_t rows) {
  Batch batch;
  batch.targets = at::randint(model.vocab, {rows, model.max_len}, at::kLong);
  batch.inputs = at::roll(batch.targets, 1, 1);
  batch.inputs.select(1, 0).fill_(model.start_token(0));
  batch.tokens = batch.targets.numel();
  return batch;
}

// A model in training, and what a step of it takes.
class Bench {
 public:
  explicit Bench(const RunConfig& config)
      : config_(config),
        model_(config.model),
        optimiser_(config.train, model_.NamedParameters()),
        batches_{RandomBatch(config.model, config.train.batch)} {
    model_.SetAutocast(config.train.dtype == "bf16");
  }

  double StepSeconds() {
    const double start = SteadySeconds();
    const auto loss = [&](const Batch& batch) {
      return TokenLoss(config_.model, model_.Forward(batch.inputs), batch.targets).sum(at::kDouble);
    };
    const auto update = optimiser_.Learn(batches_, loss, config_.train.lr, config_.train.clip);
    Check(update.made, "bench",
          "loss and gradient must be finite before a step is timed, but are {} and {}", update.loss,
          update.norm);
    return SteadySeconds() - start;
  }

 private:
  const RunConfig& config_;
  Transformer model_;
  Optimiser optimiser_;
  std::vector<Batch> batches_;
};

// Seconds of each measured step; fewer than asked for if told to stop.
std::vector<double> MeasureSteps(Bench& bench, const BenchTrainOptions& options) {
  constexpr int64_t kWarmUp = 2, kFewest = 3, kMost = 1000;
  double warm = 0;
  for (int64_t i = 0; i < kWarmUp; ++i) warm = bench.StepSeconds();
  const int64_t steps =
      options.steps > 0
          ? options.steps
          : std::clamp(static_cast<int64_t>(options.seconds_a_row / warm), kFewest, kMost);
  std::vector<double> seconds;
  while (static_cast<int64_t>(seconds.size()) < steps && !(options.stop && options.stop()))
    seconds.push_back(bench.StepSeconds());
  return seconds;
}

BenchTrainResult Measure(const BenchTrainOptions::Row& row, const std::string& dtype,
                         const BenchTrainOptions& options) {
  const RunConfig config = ConfigOf(row, dtype);
  BenchTrainResult r{.model = row.model, .mixer = config.model.mixers.front(), .dtype = dtype};
  r.batch = config.train.batch, r.length = config.model.max_len;
  r.threads = omp_get_max_threads();
  r.peak_gflops = PeakGflops(dtype);
  at::manual_seed(1);
  bench::ForgetPeakMemory();  // rows before this one leave nothing in its peak
  std::vector<double> seconds;
  {
    Bench bench(config);
    seconds = MeasureSteps(bench, options);
  }
  if (seconds.empty()) return r;
  std::sort(seconds.begin(), seconds.end());
  r.steps = static_cast<int64_t>(seconds.size());
  r.median_s = seconds[seconds.size() / 2];
  r.spread = (seconds.back() - seconds.front()) / r.median_s;
  r.tokens_per_s = static_cast<double>(r.batch * r.length) / r.median_s;
  r.gflops = r.tokens_per_s * TrainingFlopsPerToken(config.model, r.length) / 1e9;
  r.fraction_of_peak = r.gflops / r.peak_gflops;
  r.peak_memory_bytes = bench::PeakMemoryBytes();
  return r;
}

}  // namespace

std::vector<BenchTrainOptions::Row> StandardTrainRows() {
  return {{"cifar10", "linear", 1}, {"mnist", "linear", 4}, {"mnist", "softmax", 4}};
}

void BenchTrain(const BenchTrainOptions& options,
                const std::function<void(const BenchTrainResult&)>& report) {
  for (const auto& row : options.rows) {
    for (const auto& dtype : options.dtypes) {
      const BenchTrainResult result = Measure(row, dtype, options);
      if (result.steps > 0) report(result);
      if (options.stop && options.stop()) return;
    }
  }
}

}  // namespace linattn
