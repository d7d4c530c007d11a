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

// What linear attention costs next to softmax; rows: all mixers.
std::string Gap(const std::vector<ComparedMixer>& rows) {
  const auto of = [&](std::string_view mixer) {
    const auto row = std::ranges::find(rows, mixer, &ComparedMixer::mixer);
    Check(row != rows.end(), "lab", "speech: the comparison must have a row of {}", mixer);
    return *row;
  };
  const ComparedMixer softmax = of("softmax"), linear = of("linear");
  return fmt::format(
      " Here linear attention makes {:.2f} times the errors of softmax; a step takes {:.2f} times "
      "as long.",
      linear.value / softmax.value, linear.step_s / softmax.step_s);
}

}  // namespace

LabResult RunSpeech(const LabOptions& options) {
  CompareOptions compare;
  compare.mixers = {"softmax", "linear", "lsh:rounds=4", "gated_delta"};
  compare.sets = kSettings;
  compare.sets.push_back(fmt::format("train.seed={}", options.seed + 1));
  compare.directory = fmt::format("{}/{}-seed{}", options.directory,
                                  options.quick ? "quick" : "full", options.seed);
  compare.minutes = options.quick ? 0.3 : 2.5;
  compare.threads = omp_get_max_threads();
  compare.command = "linattn lab speech";
  compare.log = options.quiet ? nullptr : stderr;
  compare.signal = options.signal;
  const CompareResult ended = Compare(compare);
  if (options.progress) options.progress(1, 1, "trained");
  Check(ended.failed.empty(), "lab", "speech: every model must train, but these do not: {}",
        fmt::join(ended.failed, ", "));

  const auto report =
      nlohmann::json::parse(AsText(ReadFile(compare.directory + "/compare.json", "lab")));
  auto rows = report.at("mixers").get<std::vector<ComparedMixer>>();
  const std::string metric = MetricName(report.at("metric"));
  std::ranges::sort(rows, {}, &ComparedMixer::value);
  std::vector<std::string> values;
  for (const ComparedMixer& row : rows)
    values.push_back(
        fmt::format("{} {:.3f} ({:.3g} ms a step)", row.mixer, row.value, 1e3 * row.step_s));
  LabResult result;
  const std::string data = report.at("data");
  result.paragraph = fmt::format(
      "Encoders of 3 layers of width 64 that read both ways, {} steps each at equal parameters, on "
      "one voice ({}): this measures how fast a model fits one speaker, not how well it would hear "
      "another. Held-out {}, best first: {}. In the paper, on 80 hours of read news and trained to "
      "the end, phoneme error rates are 5.12% for softmax, 8.08% for linear and 9.33% for lsh-4.{}",
      rows.front().steps, data, metric, fmt::join(values, ", "), Gap(rows));
  result.pictures = {{"speech",
                      std::string(AsText(ReadFile(compare.directory + "/curves.svg", "lab"))),
                      "Held-out " + metric + " against training steps."}};
  result.figures = report.dump(1);
  return result;
}

}  // namespace linattn
