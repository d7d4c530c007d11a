#include "train/bench_verb.h"

#include <fmt/format.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "train/bench_kernels.h"
#include "train/bench_train.h"

namespace linattn {
namespace {

constexpr const char* kExamples = R"(
Examples:
  linattn bench train                                the paper's models, float32 and bfloat16
  linattn bench train --model cifar10 --mixer gla --dtype bf16 --batch 2
  linattn bench train --model configs/text.toml --steps 20 --json
Times are of whole steps: forward, backward, clipping and optimiser, on random symbols; the median after two steps of
warm-up. Operations are 6 for every number of a weight matrix and 3.5 times the mixer's forward pass, a token; the peak
is that of multiply-adds in the type, measured beside it. Run nothing else meanwhile.)";

nlohmann::ordered_json ToJson(const BenchTrainResult& r) {
  return {{"bench", "train"},
          {"model", r.model},
          {"mixer", r.mixer},
          {"dtype", r.dtype},
          {"batch", r.batch},
          {"length", r.length},
          {"threads", r.threads},
          {"steps", r.steps},
          {"seconds_per_step", r.median_s},
          {"spread", r.spread},
          {"tokens_per_s", r.tokens_per_s},
          {"gflops", r.gflops},
          {"peak_gflops", r.peak_gflops},
          {"fraction_of_peak", r.fraction_of_peak},
          {"peak_memory_bytes", r.peak_memory_bytes}};
}

void Report(const BenchTrainResult& r, bool json) {
  if (json) {
    fmt::print("{}\n", ToJson(r).dump());
  } else {
    fmt::print(
        "{:<14}  {:<12}  {:>5}  {:>9}  {:>5}  {:>9.1f}  {:>8.0f}  {:>7.1f}  {:>5.1f}%  {:>6.2f}  "
        "{:>5.1f}%\n",
        r.model, r.mixer, r.dtype, fmt::format("{}x{}", r.batch, r.length), r.steps,
        r.median_s * 1e3, r.tokens_per_s, r.gflops, 100 * r.fraction_of_peak,
        static_cast<double>(r.peak_memory_bytes) / 1e9, 100 * r.spread);
  }
  std::fflush(stdout);
}

BenchTrainOptions OptionsOf(const BenchTrainFlags& flags) {
  BenchTrainOptions options;
  options.rows = flags.models.empty() ? StandardTrainRows() : options.rows;
  for (const auto& model : flags.models)
    options.rows.push_back({model, model.ends_with(".toml") ? "" : "linear", 0});
  for (auto& row : options.rows) {
    if (!flags.mixer.empty()) row.mixer = flags.mixer;
    if (flags.batch > 0) row.batch = flags.batch;
  }
  if (!flags.dtypes.empty()) options.dtypes = flags.dtypes;
  options.steps = flags.steps;
  if (flags.quick) options.seconds_a_row = 1.5;
  return options;
}

}  // namespace

void AddBenchTrain(CLI::App& verb, BenchTrainFlags& flags) {
  verb.footer(kExamples);
  verb.add_option("--model", flags.models,
                  "cifar10, mnist, fashion-small or a TOML file; several joined by commas")
      ->delimiter(',')
      ->type_name("LIST");
  verb.add_option("--mixer", flags.mixer, "of all layers (linear, or the file's)");
  verb.add_option("--batch", flags.batch, "sequences a step (cifar10 1, others 4, or the file's)")
      ->check(CLI::Range(1, 1 << 20));
  verb.add_option("--dtype", flags.dtypes, "f32, bf16, or both joined by a comma (both)")
      ->delimiter(',')
      ->type_name("LIST")
      ->check(CLI::IsMember({"f32", "bf16"}));
  verb.add_option("--steps", flags.steps, "steps that are measured (as many as fit into 6 s)")
      ->check(CLI::Range(1, 1'000'000));
  verb.add_option("--threads", flags.threads, "default: all cores")->check(CLI::Range(1, 1024));
  verb.add_flag("--json", flags.json, "one JSON object a row");
  verb.add_flag("--quick", flags.quick, "a quarter of the time");
  verb.add_flag("--quiet,-q", flags.quiet, "print nothing but the rows");
}

int RunBenchTrain(const BenchTrainFlags& flags, int (*signal)()) {
  BenchTrainOptions options = OptionsOf(flags);
  options.stop = [signal] { return signal() != 0; };
  if (!flags.json && !flags.quiet) {
    fmt::print("{:<14}  {:<12}  {:>5}  {:>9}  {:>5}  {:>9}  {:>8}  {:>7}  {:>6}  {:>6}  {:>6}\n",
               "model", "mixer", "dtype", "batch", "steps", "ms/step", "tokens/s", "GFLOP/s",
               "peak", "GB", "spread");
  }
  BenchTrain(options, [&](const BenchTrainResult& r) { Report(r, flags.json); });
  return signal() != 0 ? 128 + signal() : 0;
}

void AddBenchKernels(CLI::App& verb, BenchKernelFlags& flags) {
  bench::AddKernelOptions(verb, flags.kernels);
  verb.add_option("--threads", flags.threads, "default: all cores")->check(CLI::Range(1, 1024));
  verb.add_flag("--json", flags.json, "a line of JSON a row");
  verb.add_flag("--quiet,-q", flags.quiet, "print nothing but the rows");
}

int RunBenchKernels(const BenchKernelFlags& flags, int (*signal)()) {
  struct Stopped {};
  const auto print = [](const std::string& text) {
    fmt::print("{}", text);
    std::fflush(stdout);
  };
  const bench::Output output{.json = flags.json,
                             .print = print,
                             .note =
                                 [&](const std::string& line) {
                                   if (!flags.json && !flags.quiet) print(line + "\n");
                                 },
                             .check =
                                 [&] {
                                   if (signal() != 0) throw Stopped();
                                 }};
  try {
    bench::BenchKernels(flags.kernels, LibTorchBaseline, output);
  } catch (const Stopped&) {
    return 128 + signal();
  }
  return 0;
}

}  // namespace linattn
