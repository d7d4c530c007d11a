#include "train/linearize.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>

#include "base/error.h"
#include "base/progress.h"
#include "nn/transformer.h"
#include "tasks/task.h"
#include "train/optimiser.h"

namespace linattn {
namespace {

constexpr const char* kWhere = "linearize";

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

Transformer FromFile(const ModelFile& file, bool autocast) {
  Transformer model(file.config);
  Transformer::Weights weights;
  for (const auto& [name, values] : model.Export()) weights.emplace_back(name, file.Get(name));
  model.Import(weights);
  model.SetAutocast(autocast);
  model.SetTraining(false);
  return model;
}

ModelFile ToFile(const Transformer& model) {
  ModelFile file;
  file.config = model.config();
  for (auto& [name, values] : model.Export()) file.tensors[name] = std::move(values);
  return file;
}

std::unique_ptr<Task> TaskOf(const ModelConfig& model, const LinearizeOptions& o) {
  return MakeTask({model, o.data, o.batch, o.eval_examples, o.seed});
}

double HeldOut(Transformer& model, const Task& task) {
  const at::NoGradGuard no_gradient;
  model.SetTraining(false);
  Tally all;
  for (int64_t i = 0; i < task.eval_batches(); ++i) {
    const Batch batch = task.EvalBatch(i);
    const at::Tensor outputs = model.Forward(batch.inputs);
    const double nats = task.Loss(outputs, batch).item<double>();
    const Tally tally = task.Measure(outputs, batch, nats).front();
    all.sum += tally.sum, all.count += tally.count;
  }
  return all.sum / all.count;
}

// One part of the training: some parameters, a loss of a batch, a budget.
class Part {
 public:
  Part(const char* name, const LinearizeOptions& options, NamedTensors parameters)
      : name_(name), options_(options), parameters_(std::move(parameters)) {
    TrainConfig config;
    config.optimiser = "adamw";
    config.weight_decay = 0;
    optimiser_ = std::make_unique<Optimiser>(config, parameters_);
  }

  // Returns the steps made. `loss` is a mean; the rate falls to a tenth along a cosine.
  int64_t Run(double minutes, double lr, const Task& task,
              const std::function<at::Tensor(const Batch&)>& loss) {
    Progress progress(options_.steps > 0 ? options_.steps : 0, options_.log ? options_.log : stderr,
                      options_.log == nullptr);
    const double start = Now();
    int64_t step = 0;
    double share = 0;
    while (share < 1 && !(options_.stop && options_.stop())) {
      const double value = Step(task.TrainBatch(step), lr * Rate(step, share), loss);
      ++step;
      share = options_.steps > 0 ? static_cast<double>(step) / static_cast<double>(options_.steps)
                                 : (Now() - start) / (60 * minutes);
      progress.Update(step, fmt::format("{}: {:.4f}  {:.0f}%", name_, value, 100 * share));
    }
    return step;
  }

 private:
  static double Rate(int64_t step, double share) {
    constexpr double kWarmUp = 20;
    const double cosine = 0.5 * (1 + std::cos(M_PI * std::min(1.0, share)));
    return std::min(1.0, static_cast<double>(step + 1) / kWarmUp) * (0.1 + 0.9 * cosine);
  }

  double Step(const Batch& batch, double rate,
              const std::function<at::Tensor(const Batch&)>& loss) {
    optimiser_->ZeroGradients();
    const at::Tensor value = loss(batch);
    value.backward();
    const double norm = GradientNorm(parameters_);
    const double number = value.item<double>();
    Check(std::isfinite(norm) && std::isfinite(number), kWhere,
          "{}: loss and gradient must be finite, but are {} and {}; a lower learning rate may help",
          name_, number, norm);
    optimiser_->Step(rate, ClipScale(norm, 1.0));
    return number;
  }

  const char* name_;
  const LinearizeOptions& options_;
  NamedTensors parameters_;
  std::unique_ptr<Optimiser> optimiser_;
};

NamedTensors FeatureMaps(const Transformer& model) {
  NamedTensors maps = model.NamedParameters();
  std::erase_if(
      maps, [](const auto& item) { return item.first.find(".feature_map_") == std::string::npos; });
  return maps;
}

std::vector<double> Distances(const Transformer& student, const Transformer& teacher,
                              const Task& task) {
  const at::NoGradGuard no_gradient;
  const at::Tensor distance =
      student.AttentionDistance(teacher, task.EvalBatch(0).inputs).to(at::kDouble).contiguous();
  return {distance.data_ptr<double>(), distance.data_ptr<double>() + distance.numel()};
}

}  // namespace

ModelConfig LinearizedConfig(const ModelConfig& model, const LinearizeOptions& options) {
  ModelConfig c = model;
  const auto softmax = std::count(c.mixers.begin(), c.mixers.end(), "softmax");
  Check(softmax > 0, kWhere, "the model must have a softmax layer, but has none");
  Check(c.block == "classic" && c.rope_theta == 0 && c.window == 0 && !c.qkv_bias, kWhere,
        "the model must have classic blocks with full attention and no rotary positions, but has "
        "block = {}, rope_theta = {}, window = {}",
        c.block, c.rope_theta, c.window);
  const bool grouped = (c.attn_heads != 0 && c.attn_heads != c.heads) ||
                       (c.attn_head_dim != 0 && c.attn_head_dim != c.head_dim) ||
                       (c.kv_heads != 0 && c.kv_heads != c.heads);
  Check(!grouped && c.value_heads == c.heads, kWhere,
        "queries, keys and values must have {} heads of {}, but have others", c.heads, c.head_dim);
  std::replace(c.mixers.begin(), c.mixers.end(), std::string("softmax"), std::string("linear"));
  c.feature_map = options.feature_map;
  c.map_dim = options.map_dim > 0 ? options.map_dim : c.head_dim;
  CheckConfig(c);
  return c;
}

ModelFile WithConfig(const ModelFile& from, const ModelConfig& to) {
  ModelFile file = ToFile(Transformer(to));
  for (auto& [name, values] : file.tensors) {
    const auto found = from.tensors.find(name);
    if (found != from.tensors.end() && found->second.size() == values.size())
      values = found->second;
  }
  return file;
}

double HeldOut(const ModelFile& model, const LinearizeOptions& options) {
  Transformer transformer = FromFile(model, options.dtype == "bf16");
  return HeldOut(transformer, *TaskOf(model.config, options));
}

LinearizeResult Linearize(const ModelFile& file, const LinearizeOptions& options) {
  const bool autocast = options.dtype == "bf16";
  const ModelConfig config = LinearizedConfig(file.config, options);
  const auto task = TaskOf(config, options);
  Transformer teacher = FromFile(file, autocast);
  Transformer student = FromFile(WithConfig(file, config), autocast);
  LinearizeResult result;
  result.metric = task->metrics().front().name;
  result.before = HeldOut(teacher, *task);
  result.swapped = HeldOut(student, *task);
  result.distance_before = Distances(student, teacher, *task);

  student.SetTraining(true);
  Part transfer("attention transfer", options, FeatureMaps(student));
  result.transfer_steps = transfer.Run(
      options.minutes * options.transfer_share, options.transfer_lr, *task,
      [&](const Batch& batch) { return student.AttentionDistance(teacher, batch.inputs).mean(); });
  result.distance_after = Distances(student, teacher, *task);
  result.transferred = HeldOut(student, *task);

  student.SetTraining(true);
  Part tuning("all weights", options, student.NamedParameters());
  result.steps = tuning.Run(
      options.minutes * (1 - options.transfer_share), options.lr, *task, [&](const Batch& batch) {
        return task->Loss(student.Forward(batch.inputs), batch) / static_cast<double>(batch.tokens);
      });
  result.recovered = HeldOut(student, *task);
  result.model = ToFile(student);
  return result;
}

}  // namespace linattn
