#include "train/linearize_verb.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/file.h"
#include "model/model_file.h"

namespace linattn {
namespace {

constexpr const char* kExamples = R"(
Examples:
  linattn linearize models/fashion-softmax.safetensors --out linear.safetensors
  linattn linearize model.safetensors --data cifar10:DIR --minutes 30 --out linear.safetensors
  linattn linearize model.safetensors --feature-map elu1 --minutes 2 --out linear.safetensors --json
The softmax layers of a trained model become linear attention, which generates with constant memory. Learned feature
maps first learn to give each layer the outputs that softmax gave it, all else frozen; then all weights learn the task
for a while. Printed: the task's metric before, after the bare swap, after the first part, and at the end, on examples
that the model has not been trained on: of images the test split. Ctrl-C writes the model as far as it came.)";

nlohmann::ordered_json ToJson(const LinearizeResult& r, const LinearizeFlags& flags, bool written) {
  nlohmann::ordered_json json = {{"metric", r.metric},
                                 {"held_out", HeldOutName(r.model.config.task)},
                                 {"before", r.before},
                                 {"swapped", r.swapped},
                                 {"transferred", r.transferred},
                                 {"recovered", r.recovered},
                                 {"attention_distance_swapped", r.distance_before},
                                 {"attention_distance_transferred", r.distance_after},
                                 {"transfer_steps", r.transfer_steps},
                                 {"steps", r.steps},
                                 {"skipped", r.skipped},
                                 {"stopped", r.stopped}};
  if (written) json["out"] = flags.out;
  return json;
}

// What was measured: all of it, unless it was stopped.
void Print(const LinearizeResult& r) {
  fmt::print("{} on {}:", r.metric, HeldOutName(r.model.config.task));
  const char* separator = " ";
  const auto print = [&](double value, const std::string& when) {
    if (std::isnan(value)) return;
    fmt::print("{}{:.4f} {}", std::exchange(separator, ", "), value, when);
  };
  print(r.before, "with softmax");
  print(r.swapped, "after the bare swap");
  print(r.transferred, fmt::format("after attention transfer ({} steps)", r.transfer_steps));
  print(r.recovered, fmt::format("at the end ({} steps)", r.steps));
  fmt::print("{}\n", r.skipped > 0 ? fmt::format("; {} steps were left out", r.skipped) : "");
}

}  // namespace

void AddLinearize(CLI::App& verb, LinearizeFlags& f) {
  verb.footer(kExamples);
  verb.add_option("model,--model", f.model, "model file with softmax layers")
      ->required()
      ->type_name("MODEL");
  verb.add_option("--out", f.out, "model file to write")->required();
  verb.add_option("--data", f.options.data.source,
                  "what the model learned: fashion-mnist, mnist:DIR, cifar10:DIR, png:DIR, a text "
                  "file");
  auto* steps = verb.add_option("--steps", f.options.steps, "of each part, instead of minutes")
                    ->check(CLI::Range(int64_t{1}, int64_t{1'000'000'000}));
  verb.add_option("--minutes", f.options.minutes, "of training in all (4)")
      ->check(CLI::Range(0.001, 1e6))
      ->excludes(steps);
  verb.add_option("--feature-map", f.options.feature_map, "behind the learned matrix (hedgehog)");
  verb.add_option("--batch", f.options.batch, "sequences a step (8)")->check(CLI::Range(1, 4096));
  verb.add_option("--lr", f.options.lr, "of the second part (5e-4)");
  verb.add_option("--eval-examples", f.options.eval_examples, "of the held-out set; 0: all (500)");
  verb.add_option("--seed", f.options.seed, "of the data's order");
  verb.add_option("--dtype", f.storage, "of the stored weights: f32, f16 or bf16");
  verb.add_option("--threads", f.threads, "default: all cores")->check(CLI::Range(1, 1024));
  verb.add_flag("--json", f.json, "the result as JSON");
  verb.add_flag("--quiet,-q", f.quiet, "no progress");
}

int RunLinearize(const LinearizeFlags& flags, int (*signal)()) {
  LinearizeOptions options = flags.options;
  options.log = flags.quiet ? nullptr : stderr;
  options.stop = [signal] { return signal() != 0; };
  const DType storage = StorageByName(flags.storage);
  CheckOut(flags.out, "linearize");
  const LinearizeResult r = Linearize(LoadModel(flags.model), options);
  const bool trained = r.transfer_steps + r.steps > 0;
  if (trained)
    SaveModel(flags.out, r.model.config, r.model.tensors, storage, {}, r.model.vocabulary);
  if (flags.json)
    fmt::print("{}\n", ToJson(r, flags, trained).dump());
  else
    Print(r);
  if (!r.stopped) {
    if (!flags.json) fmt::print("{}\n", flags.out);
    return 0;
  }
  fmt::print(stderr, "stopped after {} steps of attention transfer and {} of all weights; {}\n",
             r.transfer_steps, r.steps,
             trained ? flags.out + " is the model as it is then"
                     : "nothing was trained yet, and nothing is written");
  return 128 + signal();
}

}  // namespace linattn
