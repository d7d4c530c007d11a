#include "train/loop.h"

#include <ATen/ATen.h>
#include <torch/utils.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>

#include "base/error.h"
#include "base/file.h"
#include "base/progress.h"
#include "base/steady_seconds.h"
#include "model/model_file.h"
#include "nn/transformer.h"
#include "tasks/task.h"
#include "train/metrics.h"
#include "train/optimiser.h"
#include "train/samples.h"
#include "train/score.h"
#include "train/throughput.h"

namespace linattn {
namespace {

constexpr const char* kVocabularyFile = "/vocabulary.model";  // in a run's directory, for export
constexpr const char* kLeftOutFile = "/left-out.txt";         // "name: why" of each

// While it lives, the model's weights are their running means (if there are any).
class UseAverages {
 public:
  UseAverages(const NamedTensors& parameters, const WeightAverage* average)
      : parameters_(parameters) {
    if (average == nullptr) return;
    torch::NoGradGuard no_gradient;
    for (size_t i = 0; i < parameters.size(); ++i) {
      weights_.push_back(parameters[i].second.detach().clone());
      at::Tensor(parameters[i].second).copy_(average->means()[i].second);
    }
  }
  ~UseAverages() {
    torch::NoGradGuard no_gradient;
    for (size_t i = 0; i < weights_.size(); ++i) {
      at::Tensor(parameters_[i].second).copy_(weights_[i]);
    }
  }
  UseAverages(const UseAverages&) = delete;
  UseAverages& operator=(const UseAverages&) = delete;

 private:
  const NamedTensors& parameters_;
  std::vector<at::Tensor> weights_;
};

// Everything that learns: what a checkpoint holds.
struct Learner {
  explicit Learner(const RunConfig& config)
      : model(Seeded(config)),
        parameters(model.NamedParameters()),
        optimiser(config.train, parameters),
        redraw_every(config.train.redraw_features_every) {
    if (config.train.ema > 0) {
      average = std::make_unique<WeightAverage>(config.train.ema, parameters);
    }
    model.SetAutocast(config.train.dtype == "bf16");
  }

  // Weights are drawn from torch's generator, which dropout goes on with.
  static const ModelConfig& Seeded(const RunConfig& config) {
    at::manual_seed(static_cast<uint64_t>(config.train.seed));
    return config.model;
  }

  // Shares memory with the learner, except for the generator's state, which is a copy.
  NamedTensors Tensors() const {
    NamedTensors tensors;
    for (const auto& [name, tensor] : parameters) tensors.emplace_back(name, tensor.detach());
    for (const auto& [name, tensor] : optimiser.Moments()) {
      tensors.emplace_back("optimiser." + name, tensor);
    }
    if (average) {
      for (const auto& [name, tensor] : average->means())
        tensors.emplace_back("ema." + name, tensor);
    }
    tensors.emplace_back("random.torch", Generator().get_state());
    return tensors;
  }

  RunState Load(const std::string& path) {
    const NamedTensors tensors = Tensors();
    const RunState state = LoadCheckpoint(path, tensors);
    Generator().set_state(tensors.back().second);
    optimiser.SetUpdates(state.step - state.skipped);
    if (redraw_every > 0) model.RedrawFeatures((state.step - 1) / redraw_every);
    return state;
  }

  // Random features of the update that follows `step` others: a function of the step, so that
  // checkpoints need not hold them.
  void RedrawFeatures(int64_t step) {
    if (redraw_every > 0 && step % redraw_every == 0) model.RedrawFeatures(step / redraw_every);
  }

  void Export(const std::string& path, const std::string& storage, const RunState& state) {
    const UseAverages guard(parameters, average.get());
    std::map<std::string, std::vector<float>> weights;
    for (auto& [name, values] : model.Export()) weights[name] = std::move(values);
    SaveModel(path, model.config(), weights, StorageByName(storage),
              {{"linattn.step", std::to_string(state.step)}}, vocabulary);
  }

  static at::Generator Generator() { return at::globalContext().defaultGenerator(at::kCPU); }

  Transformer model;
  NamedTensors parameters;
  Optimiser optimiser;
  std::unique_ptr<WeightAverage> average;
  int64_t redraw_every = 0;
  Bytes vocabulary;  // that model files are to carry
};

class Run {
 public:
  Run(const RunConfig& config, const RunOptions& options)
      : config_(config),
        t_(config_.train),
        options_(options),
        checkpoints_(options.directory + "/checkpoints"),
        task_(MakeTask({config.model, config.data, t_.batch, t_.eval_examples,
                        static_cast<uint64_t>(t_.seed)})),
        figures_(task_->metrics()),
        learner_(WithClassNames()) {
    progress_ = NewProgress(0);
  }

  const RunConfig& config() const { return config_; }

  void Start() {
    state_.total = t_.schedule_steps > 0 ? t_.schedule_steps : t_.steps;
    OpenMetrics(-1);
  }

  // From the newest checkpoint that is whole; false if there are none at all.
  bool Restore(const RunConfig& was);
  RunResult Loop();

 private:
  // A conditional model knows what its classes are called.
  const RunConfig& WithClassNames() {
    task_->FitModel(config_.model);
    return config_;
  }
  void OpenMetrics(int64_t step) {
    for (const char* name : {"/samples", "/checkpoints"}) {
      std::filesystem::create_directories(options_.directory + name);
    }
    const std::span<const uint8_t> vocabulary = task_->vocabulary();
    learner_.vocabulary.assign(vocabulary.begin(), vocabulary.end());
    if (!vocabulary.empty()) WriteFileAtomic(options_.directory + kVocabularyFile, vocabulary);
    metrics_ = std::make_unique<Metrics>(options_.directory, step);
    WriteLeftOut();
  }
  // Whatever an example has against it must be findable.
  void WriteLeftOut() {
    const std::string path = options_.directory + kLeftOutFile;
    std::string list;
    for (const std::string& line : task_->left_out()) list += line + "\n";
    std::error_code error;
    if (list.empty())
      std::filesystem::remove(path, error);  // of earlier data
    else
      WriteFileAtomic(path, list);
  }
  struct StepReport {
    double loss = 0, rate = 0, norm = 0;  // nats a token; learning rate; of the gradient
    Score score;
  };

  StepReport Step();
  void CountWork(const std::vector<Batch>& batches, double seconds);
  void AddFigures(const Score& score, std::vector<Metrics::Value>& values) const;
  bool Improves() const;
  void RefuseOrSkip(const StepReport& report, const Batch& batch);
  void SettleTotal();
  double Evaluate();
  void Sample();
  void Save();
  void Report(const StepReport& report);
  bool Done() const;
  bool Due(int64_t every) const { return every > 0 && state_.step % every == 0; }
  double Elapsed() const { return state_.wall_s + SteadySeconds() - started_; }
  double TokensPerSecond() const { return step_s_ > 0 ? step_tokens_ / step_s_ : 0; }
  // Of the machine's multiply-adds; 0 if its peak is not known.
  double FractionOfPeak() const {
    const double peak = 1e9 * options_.peak_gflops;
    return peak > 0 && step_s_ > 0 ? step_flops_ / step_s_ / peak : 0;
  }

  std::unique_ptr<Progress> NewProgress(int64_t total) const {
    Progress::Options how;
    if (options_.quiet || options_.log == nullptr) how.style = Progress::Style::kQuiet;
    return std::make_unique<Progress>(total, options_.log ? options_.log : stderr, how);
  }

  RunConfig config_;
  const TrainConfig& t_;
  RunOptions options_;
  CheckpointFiles checkpoints_;
  std::unique_ptr<Task> task_;
  const std::vector<Metric> figures_;
  Learner learner_;
  std::unique_ptr<Metrics> metrics_;
  std::unique_ptr<Progress> progress_;
  RunState state_;
  double started_ = SteadySeconds(), saved_ = SteadySeconds();
  double step_s_ = 0, step_tokens_ = 0, step_flops_ = 0;  // of a step, running means
  int64_t first_step_ = 0, saved_step_ = -1, skipped_in_a_row_ = 0;
  double measured_from_ = 0;  // when the third step of this process began
  double eval_s_ = 0, metric_ = std::nan("");
  bool warned_ = false;  // of divergence
};

bool Run::Restore(const RunConfig& was) {
  const std::string difference = TrajectoryDifference(was, config_);
  Check(difference.empty(), "train", "a resumed run must keep its config, but would change {}",
        difference);
  std::string message;
  std::vector<std::string> damaged;  // set aside only once a whole one is found
  for (const int64_t step : checkpoints_.Steps()) {
    const std::string path = checkpoints_.Path(step);
    try {
      state_ = learner_.Load(path);
    } catch (const Error& e) {
      message = e.what();
      progress_->Note(fmt::format("skipping a damaged checkpoint: {}", message));
      damaged.push_back(path);
      continue;
    }
    for (const std::string& other : damaged) std::filesystem::rename(other, other + ".damaged");
    // Extending the schedule is explicit: more steps alone go on at its final rate.
    if (t_.schedule_steps > 0) state_.total = t_.schedule_steps;
    OpenMetrics(state_.step);
    first_step_ = saved_step_ = state_.step;
    progress_->Note(fmt::format("resuming after step {}", state_.step));
    return true;
  }
  Check(message.empty(), "train", "{} must hold a whole checkpoint, but has none: {}",
        options_.directory, message);
  return false;
}

Run::StepReport Run::Step() {
  const double begin = SteadySeconds();
  std::vector<Batch> batches;
  for (int64_t i = 0; i < t_.accumulate; ++i) {
    batches.push_back(task_->TrainBatch(state_.step * t_.accumulate + i));
  }
  StepReport report{.score = Score(*task_)};
  report.rate = LearningRate(ScheduleOf(t_, state_.total), state_.step + 1);
  learner_.RedrawFeatures(state_.step);
  const Optimiser::Update update = learner_.optimiser.Learn(
      batches, [&](const Batch& batch) { return report.score.Add(learner_.model, *task_, batch); },
      report.rate, t_.clip);
  report.loss = update.loss, report.norm = update.norm;
  if (update.made) {
    if (learner_.average) learner_.average->Update(state_.step + 1);
    skipped_in_a_row_ = 0;
  } else {
    RefuseOrSkip(report, batches.front());
  }
  ++state_.step;
  CountWork(batches, SteadySeconds() - begin);
  return report;
}

// What a step's speed is reported from.
void Run::CountWork(const std::vector<Batch>& batches, double seconds) {
  double tokens = 0, flops = 0;
  for (const Batch& batch : batches) {
    tokens += static_cast<double>(batch.tokens);
    const int64_t rows = batch.inputs.size(0), T = batch.inputs.size(1);
    flops += static_cast<double>(rows * T) * TrainingFlopsPerToken(config_.model, T);
  }
  state_.tokens += static_cast<int64_t>(tokens);
  // The first step of a process also fills caches and allocates.
  const double weight = state_.step - first_step_ <= 2 ? 1 : 0.05;
  step_s_ += weight * (seconds - step_s_);
  step_tokens_ += weight * (tokens - step_tokens_);
  step_flops_ += weight * (flops - step_flops_);
}

// Those to which any batch has added.
void Run::AddFigures(const Score& score, std::vector<Metrics::Value>& values) const {
  for (size_t i = 0; i < figures_.size(); ++i) {
    if (score.tallies[i].count > 0) values.push_back({figures_[i].name, Mean(score.tallies[i])});
  }
}

void Run::RefuseOrSkip(const StepReport& report, const Batch& batch) {
  const bool loss = !std::isfinite(report.loss);
  std::string layer = loss ? learner_.model.FirstNonFinite(batch.inputs, batch.mask_or_null())
                           : FirstNonFiniteTensor(Gradients(learner_.parameters));
  if (layer.empty()) layer = loss ? "the loss" : "the gradient's norm";
  const std::string what = fmt::format(
      "step {}: the {} must be finite, but is {}; the first such value is in {}", state_.step + 1,
      loss ? "loss" : "gradient", loss ? report.loss : report.norm, layer);
  if (t_.skip_nonfinite && ++skipped_in_a_row_ < kMostSkips) {
    ++state_.skipped;
    progress_->Note("skipped " + what);
    return;
  }
  const auto steps = checkpoints_.Steps();
  const std::string last = steps.empty() ? "there is no checkpoint yet"
                                         : "the last checkpoint is " + checkpoints_.Path(steps[0]);
  throw Error(
      "train",
      fmt::format("{}. {}. A lower train.lr or train.clip may help; --skip-nonfinite leaves "
                  "such steps out",
                  what, last),
      Fault::kInternal);
}

// A run by minutes: once its speed is known, how many steps fit. From then on the schedule is a
// function of the step again, and the number is kept in checkpoints.
void Run::SettleTotal() {
  if (state_.total > 0) return;
  const int64_t measured = state_.step - first_step_ - 2;
  if (measured == 0) measured_from_ = SteadySeconds();
  if (measured <= 0) return;
  const double budget_s = t_.minutes * 60, measured_s = SteadySeconds() - measured_from_;
  const bool enough = measured >= 4 && (measured_s > std::min(20.0, 0.05 * budget_s));
  if (!enough && state_.step < t_.warmup) return;
  const double step_s = measured_s / static_cast<double>(measured);
  const double evals_a_step = t_.eval_every > 0 ? 1 / static_cast<double>(t_.eval_every) : 0;
  const double left_s = budget_s - Elapsed() - eval_s_;
  constexpr double kMargin = 0.93;  // samples, checkpoints, a machine that others use too
  const double fit = kMargin * left_s / (step_s + evals_a_step * eval_s_);
  state_.total = state_.step + std::max<int64_t>(1, std::llround(fit));
  progress_->Note(fmt::format("{:.3g} s a step: {} steps fit into {} minutes", step_s, state_.total,
                              t_.minutes));
  progress_ = NewProgress(state_.total);
  progress_->Start(state_.step);
}

bool Run::Done() const {
  if (t_.minutes > 0 && Elapsed() + eval_s_ > t_.minutes * 60) return true;
  if (t_.steps > 0) return state_.step >= t_.steps;
  return state_.total > 0 && state_.step >= state_.total;
}

bool Run::Improves() const {
  if (state_.best_step < 0) return std::isfinite(metric_);
  return figures_.front().higher_is_better ? metric_ > state_.best_metric
                                           : metric_ < state_.best_metric;
}

// The task's first figure of merit on the held-out set; a new best is exported.
double Run::Evaluate() {
  const double begin = SteadySeconds();
  learner_.model.SetTraining(false);
  const Score score = [&] {
    const UseAverages guard(learner_.parameters, learner_.average.get());
    return ScoreHeldOut(learner_.model, *task_);
  }();
  learner_.model.SetTraining(true);
  metric_ = score.headline();
  eval_s_ = SteadySeconds() - begin;
  state_.evaluated_step = state_.step;
  std::vector<Metrics::Value> values = {{"loss", Mean(score.loss)}};
  AddFigures(score, values);
  values.push_back({"wall_s", Elapsed()});
  metrics_->Add(state_.step, "eval", values);
  progress_->Note(
      fmt::format("step {}: held out {:.4f} {}", state_.step, metric_, figures_.front().name));
  if (Improves()) {
    state_.best_metric = metric_;
    state_.best_step = state_.step;
    if (t_.export_weights == "best") {
      learner_.Export(options_.directory + "/model.safetensors", t_.export_dtype, state_);
    }
  }
  return metric_;
}

void Run::Sample() {
  const std::vector<Prompt> prompts = task_->Prompts(t_.samples);
  if (prompts.empty()) return;
  const std::string scratch = options_.directory + "/samples/.model.safetensors";
  learner_.Export(scratch, "f32", state_);
  const auto sequences = DrawSamples(scratch, prompts, t_.temperature, t_.seed);
  std::filesystem::remove(scratch);
  const std::string path = task_->WriteSamples(
      sequences, fmt::format("{}/samples/step-{:09d}", options_.directory, state_.step));
  if (path.ends_with(".png")) metrics_->AddPicture(state_.step, path);
  progress_->Note(fmt::format("step {}: samples in {}", state_.step, path));
}

void Run::Save() {
  const std::string bad = FirstNonFiniteTensor(learner_.parameters);
  if (!bad.empty()) {
    throw Error(
        "train",
        fmt::format("step {}: weights must be finite to be saved, but {} holds a value that "
                    "is not; earlier checkpoints are intact",
                    state_.step, bad),
        Fault::kInternal);
  }
  state_.wall_s = Elapsed();
  started_ = SteadySeconds();
  SaveCheckpoint(checkpoints_.Path(state_.step), state_, config_, learner_.Tensors());
  checkpoints_.Prune(t_.keep, state_.best_step);
  saved_ = SteadySeconds();
  saved_step_ = state_.step;
}

void Run::Report(const StepReport& r) {
  if (Due(t_.log_every)) {
    std::vector<Metrics::Value> values = {{"loss", r.loss}};
    AddFigures(r.score, values);
    values.insert(values.end(),
                  {{"lr", r.rate}, {"grad_norm", r.norm}, {"tokens_per_s", TokensPerSecond()}});
    if (options_.peak_gflops > 0) values.push_back({"fraction_of_peak", FractionOfPeak()});
    values.push_back({"wall_s", Elapsed()});
    metrics_->Add(state_.step, "train", values);
  }
  const double guessing = std::log(static_cast<double>(config_.model.vocab));
  if (r.loss > 3 * guessing && !std::exchange(warned_, true)) {
    progress_->Note(
        fmt::format("step {}: the loss of {:.3g} nats is far above guessing's {:.3g}; a lower "
                    "train.lr may help",
                    state_.step, r.loss, guessing));
  }
  if (state_.total == 0) return;
  const std::string speed =
      options_.peak_gflops > 0 ? fmt::format(" ({:.0f}% of peak)", 100 * FractionOfPeak()) : "";
  progress_->Update(state_.step,
                    fmt::format("{:.3f} {}  {:.0f} tokens/s{}  lr {:.2e}", r.score.headline(),
                                figures_.front().name, TokensPerSecond(), speed, r.rate));
}

RunResult Run::Loop() {
  const bool whole = task_->left_out().empty();
  progress_->Note(task_->Summary() + (whole ? "" : ", see " + options_.directory + kLeftOutFile));
  const int64_t end = t_.steps > 0 ? t_.steps : state_.total;
  progress_ = NewProgress(end);
  progress_->Start(state_.step);
  if (state_.step == 0) Evaluate();
  RunResult result;
  while (!Done()) {
    const StepReport report = Step();
    SettleTotal();
    Report(report);
    bool save = Due(t_.checkpoint_every);
    if (Due(t_.eval_every)) {
      Evaluate();
      save |= state_.best_step == state_.step;
    }
    if (Due(t_.sample_every)) Sample();
    save |= t_.checkpoint_minutes > 0 && SteadySeconds() - saved_ > 60 * t_.checkpoint_minutes;
    if (save) Save();
    if (options_.on_step) options_.on_step(state_.step);
    if (progress_->closed()) result.end = RunResult::End::kLogClosed;
    if (options_.stop && options_.stop()) result.end = RunResult::End::kStopped;
    if (result.end != RunResult::End::kFinished) break;
  }
  const bool finished = result.end == RunResult::End::kFinished;
  const bool evaluate = finished && state_.evaluated_step != state_.step;
  if (evaluate) Evaluate();
  if (evaluate || saved_step_ != state_.step) Save();
  if (finished && (t_.export_weights == "last" || state_.best_step < 0)) {
    learner_.Export(options_.directory + "/model.safetensors", t_.export_dtype, state_);
  }
  progress_->Finish();
  result.state = state_;
  result.metric = metric_;
  return result;
}

void CheckRunnable(const RunConfig& config, const RunOptions& options) {
  CheckRunConfig(config);
  Check(!options.directory.empty(), "train", "a run must have a directory");
}

void WriteConfig(const RunConfig& config, const std::string& directory) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  Check(!error, "train", "the run's directory '{}' must be one that can be made, but: {}",
        directory, error.message());
  WriteFileAtomic(directory + "/config.toml", ToToml(config));
}

}  // namespace

RunResult Train(const RunConfig& config, const RunOptions& options) {
  CheckRunnable(config, options);
  Check(
      CheckpointFiles(options.directory + "/checkpoints").Steps().empty(), "train",
      "{} must not hold another run's checkpoints; go on with it by --resume {}, or choose another "
      "directory by --out",
      options.directory, options.directory);
  Run run(config, options);
  WriteConfig(run.config(), options.directory);
  run.Start();
  return run.Loop();
}

RunResult Resume(const RunConfig& config, const RunOptions& options) {
  CheckRunnable(config, options);
  const RunConfig was = ResolveConfig(options.directory + "/config.toml", {});
  Run run(config, options);
  if (!run.Restore(was)) run.Start();
  WriteConfig(run.config(), options.directory);
  return run.Loop();
}

std::string ExportRun(const std::string& directory, const std::string& path,
                      const std::string& storage, bool best) {
  const CheckpointFiles files(directory + "/checkpoints");
  const RunConfig config = ResolveConfig(directory + "/config.toml", {});
  Learner learner(config);
  if (!config.data.vocabulary.empty()) {
    learner.vocabulary = ReadFile(directory + kVocabularyFile, "export");
  }
  std::string message = "there is none";
  for (const int64_t step : files.Steps()) {
    RunState state;
    try {
      state = learner.Load(files.Path(step));
    } catch (const Error& e) {
      message = e.what();
      continue;
    }
    // The best may be the untrained model's, of which there is no checkpoint.
    if (best && state.best_step != step && std::filesystem::exists(files.Path(state.best_step))) {
      state = learner.Load(files.Path(state.best_step));
    }
    learner.Export(path, storage, state);
    return files.Path(state.step);
  }
  Fail("export", "{} must hold a whole checkpoint, but: {}", directory, message);
}

}  // namespace linattn
