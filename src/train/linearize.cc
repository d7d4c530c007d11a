#include "train/linearize.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "base/error.h"
#include "base/file.h"
#include "base/progress.h"
#include "base/steady_seconds.h"
#include "base/temporary_directory.h"
#include "model/layer.h"
#include "nn/transformer.h"
#include "tasks/task.h"
#include "train/optimiser.h"
#include "train/score.h"

namespace linattn {
namespace {

constexpr const char* kWhere = "linearize";

Transformer FromFile(const ModelFile& file, const LinearizeOptions& options) {
  Transformer model(file.config);
  Transformer::Weights weights;
  for (const auto& [name, values] : model.Export()) weights.emplace_back(name, file.Get(name));
  model.Import(weights);
  model.SetAutocast(options.dtype == "bf16");
  model.SetTraining(false);
  return model;
}

void Store(const Transformer& model, ModelFile& file) {
  for (auto& [name, values] : model.Export()) file.tensors[name] = std::move(values);
}

std::unique_ptr<Task> TaskOf(const ModelFile& file, const LinearizeOptions& o) {
  const std::string& task = file.config.task;
  Check(task == "images" || !ReadsData(task) || o.data.source != DataConfig().source, kWhere,
        "a model of {} needs the data that it learned (--data), but got none", task);
  TaskOptions options{file.config, o.data, o.batch, o.eval_examples, o.seed};
  options.data.full_train = true;
  if (file.vocabulary.empty()) return MakeTask(options);
  const TemporaryDirectory directory;  // a task reads its vocabulary from a file
  options.data.vocabulary = directory / "vocabulary.model";
  WriteFileAtomic(options.data.vocabulary, file.vocabulary);
  return MakeTask(options);
}

// What all parts share.
class Work {
 public:
  Work(const ModelFile& file, const LinearizeOptions& options)
      : options(options), task(TaskOf(file, options)) {}

  // Once it has answered true, it stays so.
  bool Stop() { return stopped_ = stopped_ || (options.stop && options.stop()); }
  bool stopped() const { return stopped_; }

  std::unique_ptr<Progress> NewProgress(int64_t total, const char* unit) const {
    Progress::Options how;
    how.unit = unit;
    how.clock = how.unit == "seconds";
    if (options.log == nullptr) how.style = Progress::Style::kQuiet;
    return std::make_unique<Progress>(total, options.log ? options.log : stderr, how);
  }

  const LinearizeOptions& options;
  const std::unique_ptr<Task> task;

 private:
  bool stopped_ = false;
};

double HeldOut(Work& work, Transformer& model, const std::string& what) {
  const int64_t batches = work.task->eval_batches();
  const auto progress = work.NewProgress(batches, "held-out batch");
  const auto show = [&](int64_t done) { progress->Update(done, what); };
  model.SetTraining(false);
  const Score score = ScoreHeldOut(model, *work.task, [&](int64_t done) {
    if (done > 0) show(done);
    return !work.Stop();
  });
  if (work.stopped()) return NAN;
  show(batches);
  return score.headline();
}

// One part of the training: some parameters, a loss of a batch (the sum over its tokens), a share
// of the time.
class Part {
 public:
  using Loss = std::function<at::Tensor(const Batch&)>;
  Part(const char* name, Work& work, NamedTensors parameters)
      : name_(name),
        work_(work),
        parameters_(std::move(parameters)),
        optimiser_(HowTo(), parameters_) {
    for (const auto& [name, tensor] : parameters_) before_.push_back(tensor.detach().clone());
  }

  // Returns the steps made. The rate falls to a tenth along a cosine.
  int64_t Run(double share, double lr, const Loss& loss) {
    const LinearizeOptions& o = work_.options;
    const double seconds = 60 * o.minutes * share;
    const auto progress =
        o.steps > 0 ? work_.NewProgress(o.steps, "step")
                    : work_.NewProgress(static_cast<int64_t>(std::ceil(seconds)), "seconds");
    const double start = SteadySeconds();
    int64_t step = 0;
    double done = share > 0 ? 0 : 1;
    while (done < 1 && in_a_row_ < kMostSkips && !work_.Stop()) {
      const auto update =
          optimiser_.Learn({work_.task->TrainBatch(step)}, loss, lr * Rate(step, done), kClip);
      ++step;
      Count(step, update, *progress);
      const double elapsed = SteadySeconds() - start;
      done = o.steps > 0 ? static_cast<double>(step) / static_cast<double>(o.steps)
                         : elapsed / seconds;
      const std::string text = fmt::format("{}: {:.4f}", name_, update.loss);
      if (o.steps > 0)
        progress->Update(step, text);
      else
        progress->Update(static_cast<int64_t>(std::ceil(std::min(elapsed, seconds))),
                         fmt::format("{}  step {}", text, step));
    }
    if (in_a_row_ == kMostSkips || !FirstNonFiniteTensor(parameters_).empty()) TakeBack(*progress);
    return step;
  }

  int64_t skipped() const { return skipped_; }

 private:
  static constexpr double kClip = 1;  // the gradient's norm

  static TrainConfig HowTo() {
    TrainConfig config;
    config.optimiser = "adamw";
    config.weight_decay = 0;
    return config;
  }

  static double Rate(int64_t step, double share) {
    constexpr double kWarmUp = 20;
    const double cosine = 0.5 * (1 + std::cos(M_PI * std::min(1.0, share)));
    return std::min(1.0, static_cast<double>(step + 1) / kWarmUp) * (0.1 + 0.9 * cosine);
  }

  void Count(int64_t step, const Optimiser::Update& update, Progress& progress) {
    in_a_row_ = update.made ? 0 : in_a_row_ + 1;
    skipped_ += !update.made;
    if (in_a_row_ == 1)
      progress.Note(fmt::format(
          "{}: step {} is left out: loss and gradient must be finite, but are {} and {}", name_,
          step, update.loss, update.norm));
  }

  // Weights at which nothing is finite any more are nobody's.
  void TakeBack(Progress& progress) {
    const at::NoGradGuard no_gradient;
    for (size_t i = 0; i < before_.size(); ++i) at::Tensor(parameters_[i].second).copy_(before_[i]);
    progress.Note(fmt::format(
        "{}: ended after {} such steps in a row; what it changed is taken back (a lower learning "
        "rate may help)",
        name_, in_a_row_));
  }

  const char* name_;
  Work& work_;
  NamedTensors parameters_;
  Optimiser optimiser_;
  std::vector<at::Tensor> before_;  // one a parameter
  int64_t skipped_ = 0, in_a_row_ = 0;
};

NamedTensors FeatureMaps(const Transformer& model) {
  NamedTensors maps = model.NamedParameters();
  std::erase_if(
      maps, [](const auto& item) { return item.first.find(".feature_map_") == std::string::npos; });
  return maps;
}

// Of the first held-out batch.
std::vector<double> Distances(const Transformer& student, const Transformer& teacher, Work& work) {
  if (work.stopped()) return {};
  const at::NoGradGuard no_gradient;
  const Batch batch = work.task->EvalBatch(0);
  const at::Tensor distance =
      student.AttentionDistance(teacher, batch.inputs, batch.mask_or_null()).to(at::kDouble);
  std::vector<double> distances(distance.data_ptr<double>(),
                                distance.data_ptr<double>() + distance.numel());
  const auto& mixers = teacher.config().mixers;
  for (size_t i = 0; i < mixers.size(); ++i)
    if (mixers[i] != "softmax") distances[i] = NAN;
  return distances;
}

// The new layer finds the weights that softmax had, no more and no less.
void CheckAlike(const LayerPlan& was, const LayerPlan& is, int64_t layer) {
  const struct {
    const char* what;
    int64_t was, is;
  } parts[] = {
      {"heads of queries", was.heads, is.heads},
      {"heads of keys", was.key_heads(), is.key_heads()},
      {"heads of values", was.value_heads, is.value_heads},
      {"channels of a key", was.head_dim, is.head_dim},
      {"channels of a value", was.value_dim, is.value_dim},
      {"a convolution of width", was.conv_size, is.conv_size},
      {"output norms:", was.output_norm, is.output_norm},
      {"output gates:", was.output_gate != OutputGate::kNone, is.output_gate != OutputGate::kNone}};
  for (const auto& part : parts)
    Check(part.was == part.is, kWhere,
          "linear attention must be built as the softmax that it replaces, but layer {} has {} {}, "
          "and would have {} by the config; train a linear model from the beginning instead "
          "(linattn train --mixer)",
          layer, part.what, part.was, part.is);
}

// A model has one feature map: that of a layer that stays must not change under its weights. A
// learned matrix before it begins as the identity, so that one may be added.
void CheckKeeps(const ModelConfig& was, const ModelConfig& is, int64_t layer) {
  const LayerPlan before = PlanLayer(was, layer);
  if (!before.state() || !before.mixer->normalised || before.mixer->feature_map == "favor") return;
  const bool fits = before.map_dim == 0 ? is.map_dim == is.head_dim : before.map_dim == is.map_dim;
  Check(was.feature_map == is.feature_map && fits, kWhere,
        "a model has one feature map for all its layers, and layer {} ({}) was trained with {} of "
        "{} channels, so the new layers must have it too, but would have {} of {}; use "
        "--feature-map {}",
        layer, was.mixers[layer], was.feature_map, before.mixed_dim(), is.feature_map, is.map_dim,
        was.feature_map);
}

}  // namespace

ModelConfig LinearizedConfig(const ModelConfig& model, const LinearizeOptions& options) {
  ModelConfig c = model;
  Check(std::count(c.mixers.begin(), c.mixers.end(), "softmax") > 0, kWhere,
        "the model must have a softmax layer, but has none");
  Check(
      c.block == "classic" && c.rope_theta == 0 && c.window == 0 && c.attn_normalise, kWhere,
      "the model must have classic blocks with full attention, no rotary positions and normalised "
      "linear attention, but has block = {}, rope_theta = {}, window = {}, attn_normalise = {}; "
      "train a linear model from the beginning instead (linattn train --mixer)",
      c.block, c.rope_theta, c.window, c.attn_normalise);
  std::replace(c.mixers.begin(), c.mixers.end(), std::string("softmax"), std::string("linear"));
  c.feature_map = options.feature_map;
  c.map_dim = options.map_dim > 0 ? options.map_dim : c.head_dim;
  CheckConfig(c);
  for (int64_t i = 0; i < c.layers(); ++i) {
    if (model.mixers[i] == "softmax")
      CheckAlike(PlanLayer(model, i), PlanLayer(c, i), i);
    else
      CheckKeeps(model, c, i);
  }
  return c;
}

ModelFile WithConfig(const ModelFile& from, const ModelConfig& to) {
  ModelFile file;
  file.config = to;
  file.vocabulary = from.vocabulary;
  Store(Transformer(to), file);
  for (auto& [name, values] : file.tensors) {
    const auto found = from.tensors.find(name);
    if (found != from.tensors.end() && found->second.size() == values.size())
      values = found->second;
  }
  return file;
}

std::string HeldOutName(const std::string& task) {
  if (task == "text") return "the text's validation part (from 90% to 95%)";
  return ReadsData(task) ? "the test split" : "new examples";
}

double HeldOut(const ModelFile& model, const LinearizeOptions& options, const std::string& what) {
  Work work(model, options);
  Transformer transformer = FromFile(model, options);
  return HeldOut(work, transformer, what);
}

LinearizeResult Linearize(const ModelFile& file, const LinearizeOptions& options) {
  LinearizeResult result;
  result.model = WithConfig(file, LinearizedConfig(file.config, options));
  Work work(file, options);
  Transformer teacher = FromFile(file, options), student = FromFile(result.model, options);
  result.metric = work.task->metrics().front().name;
  result.before = HeldOut(work, teacher, "softmax");
  result.swapped = HeldOut(work, student, "bare swap");
  result.distance_before = Distances(student, teacher, work);

  student.SetTraining(true);
  Part transfer("attention transfer", work, FeatureMaps(student));
  result.transfer_steps =
      transfer.Run(options.transfer_share, options.transfer_lr, [&](const Batch& batch) {
        return student.AttentionDistance(teacher, batch.inputs, batch.mask_or_null()).mean() *
               batch.tokens;
      });
  result.distance_after = Distances(student, teacher, work);
  result.transferred = HeldOut(work, student, "attention transferred");

  student.SetTraining(true);
  Part tuning("all weights", work, student.NamedParameters());
  result.steps = tuning.Run(1 - options.transfer_share, options.lr, [&](const Batch& batch) {
    return work.task->Loss(student.Forward(batch.inputs, batch.mask_or_null()), batch);
  });
  result.recovered = HeldOut(work, student, "recovered");
  result.skipped = transfer.skipped() + tuning.skipped();
  result.stopped = work.stopped();
  Store(student, result.model);
  return result;
}

}  // namespace linattn
