#include <fmt/format.h>
#include <fmt/ranges.h>
#include <omp.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "lab/lab.h"
#include "train/compare.h"
#include "train/compare_report.h"

// The paper's third experiment, small: phonemes of recorded prompts by CTC, the same encoder with
// one attention after the other.
namespace linattn {
namespace {

// configs/speech.toml's, at half its width: minutes instead of an hour.
const std::vector<std::string> kSettings = {"model.base=none",
                                            "model.task=speech",
                                            "model.mixer=linear",
                                            "model.layers=3",
                                            "model.causal=false",
                                            "model.sample_rate=8000",
                                            "model.input_features=40",
                                            "model.subsample=3",
                                            "model.unit_kind=phonemes",
                                            "model.position=sinusoidal",
                                            "model.head=categorical",
                                            "model.max_len=1024",
                                            "model.dim=64",
                                            "model.heads=2",
                                            "model.head_dim=32",
                                            "model.value_dim=32",
                                            "model.mlp_dim=128",
                                            "data.source=asterisk",
                                            "train.batch=8",
                                            "train.lr=3e-3",
                                            "train.warmup=50",
                                            "train.eval_examples=0",
                                            "train.sample_every=0",
                                            "train.keep=1"};

}  // namespace

LabResult RunSpeech(const LabOptions& options) {
  CompareOptions compare;
  compare.mixers = {"softmax", "linear", "lsh:rounds=4", "gated_delta"};
  compare.sets = kSettings;
  compare.sets.push_back(fmt::format("train.seed={}", options.seed + 1));
  compare.directory = options.directory + "/speech-runs";
  compare.minutes = options.quick ? 0.3 : 2.5;
  compare.threads = omp_get_max_threads();
  compare.command = "linattn lab speech";
  compare.log = options.progress ? stderr : nullptr;
  compare.signal = options.signal;
  const CompareResult ended = Compare(compare);
  if (options.progress) options.progress(1, 1, "trained");
  Check(ended.failed.empty(), "lab", "speech: every model must train, but these do not: {}",
        fmt::join(ended.failed, ", "));

  const auto report =
      nlohmann::json::parse(AsText(ReadFile(compare.directory + "/compare.json", "lab")));
  const auto rows = report.at("mixers").get<std::vector<ComparedMixer>>();
  const std::string metric = report.at("metric");
  std::vector<std::string> values;
  for (const ComparedMixer& row : rows)
    values.push_back(fmt::format("{} {:.3f} ({:.2f} s a step)", row.mixer, row.value, row.step_s));
  LabResult result;
  result.paragraph = fmt::format(
      "Encoders of 3 layers of width 64 that read both ways, on the packaged prompts of one voice "
      "(half an hour: this measures "
      "how fast a model fits one speaker, not how well it would hear another), as many steps and "
      "parameters each, {} steps in "
      "all. Held-out {}: {}. The paper's order on 80 hours of read news is softmax, linear, then "
      "lsh-4 (phoneme error rates "
      "of 5.12, 8.08 and 9.33 percent): the gap that a sum of features leaves there is what this "
      "shows in small.",
      rows.front().steps, metric, fmt::join(values, ", "));
  result.pictures = {{"speech",
                      std::string(AsText(ReadFile(compare.directory + "/curves.svg", "lab"))),
                      "Held-out " + metric + " against training steps."}};
  result.figures = report.dump(1);
  return result;
}

}  // namespace linattn
