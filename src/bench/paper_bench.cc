#include "bench/paper_bench.h"

#include <fmt/format.h>
#include <omp.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "bench/decode_bench.h"

namespace linattn::bench {
namespace {

constexpr const char* kExamples = R"(
Examples:
  linattn bench paper
  linattn bench paper --model mnist --dtype f32 --json
Tables 1, 2, 4 and 5 of Katharopoulos et al. 2020, "Transformers are RNNs": images a second, and seconds an image at
batch 1, of the paper's models (8 layers and 784 tokens, 16 layers and 3072 tokens) with random weights, here and on the
paper's GPU and CPU of 2020. "uncached" recomputes the whole prefix for every token, as the paper's softmax and LSH do;
"cached" keeps keys and values (the paper's stateful-softmax) or, for lsh, the chains of its buckets, which the paper
does not have. Rows that say "integrated" are not whole pictures: steps at several positions were timed, and their time
integrated over the length. batch is that of images/s here: the best of those tried ("tried").)";

struct PaperFigures {
  double images_per_second, gpu_seconds, cpu_seconds;  // 0: the paper has none
};

struct Row {
  const char *method, *mixer;
  bool cached;
  int64_t rounds;                // of lsh
  std::vector<int64_t> batches;  // tried for images/s
  PaperFigures cifar10, mnist;
};

std::vector<Row> Rows() {
  return {
      {"softmax", "softmax", false, 0, {1}, {0.004, 300.1, 8651.4}, {0.45, 10.2, 72.6}},
      {"softmax", "softmax", true, 0, {16}, {0.32, 70.4, 71.9}, {7.56, 10.4, 7.4}},
      {"lsh, 1 round", "lsh", false, 1, {1}, {0.015, 221.6, 2318.9}, {0.68, 19.2, 46.0}},
      {"lsh, 4 rounds", "lsh", false, 4, {1}, {0.005, 683.9, 5263.7}, {0.27, 55.8, 112.0}},
      {"lsh, 1 round", "lsh", true, 1, {16}, {}, {}},
      {"lsh, 4 rounds", "lsh", true, 4, {16}, {}, {}},
      {"linear", "linear", true, 0, {32, 64}, {17.85, 61.3, 45.1}, {142.8, 7.3, 5.5}},
  };
}

// The paper's Reformers: 64 buckets; chunks of 37 tokens for CIFAR-10 and of 29 for MNIST.
ModelConfig ConfigOf(const std::string& name, const Row& row, WeightType weights) {
  ModelConfig config = BenchConfig(name, row.mixer, weights);
  if (row.rounds == 0) return config;
  config.lsh_rounds = row.rounds, config.lsh_buckets = 64;
  config.lsh_chunk = name == "cifar10" ? 37 : 29;
  return config;
}

nlohmann::ordered_json Figure(double x) {
  return x > 0 ? nlohmann::ordered_json(x) : nlohmann::ordered_json();
}

nlohmann::ordered_json MeasureRow(const PaperOptions& o, const std::string& name, const Row& row,
                                  const Output& output) {
  const WeightType weights = ParseWeightType(o.dtype);
  const PackedModel model = RandomModel(ConfigOf(name, row, weights), weights);
  DecodeSetting setting{.batch = 1,
                        .length = model.config().max_len,
                        .seconds = o.quick ? o.seconds / 8 : o.seconds,
                        .cached = row.cached};
  const DecodeTiming latency = MeasureDecode(model, setting, output.check);
  DecodeTiming best = latency;
  for (const int64_t batch : row.batches) {
    setting.batch = batch;
    if (batch == 1) continue;
    const DecodeTiming timing = MeasureDecode(model, setting, output.check);
    if (timing.sequences_per_second() > best.sequences_per_second()) best = timing;
  }
  const PaperFigures& paper = name == "cifar10" ? row.cifar10 : row.mnist;
  return {{"bench", "paper"},
          {"model", name},
          {"method", row.method},
          {"cached", row.cached ? "cached" : "uncached"},
          {"dtype", o.dtype},
          {"threads", omp_get_max_threads()},
          {"batch", best.batch},
          {"images_per_second", best.sequences_per_second()},
          {"seconds_per_image_batch_1", latency.seconds},
          {"how", latency.integrated ? "integrated" : "steps"},
          {"fraction_of_peak", best.roof_seconds / best.seconds},
          {"bound", best.bound},
          {"tried", row.batches},
          {"paper_gpu_images_per_second", Figure(paper.images_per_second)},
          {"paper_gpu_seconds_batch_1", Figure(paper.gpu_seconds)},
          {"paper_cpu_seconds_batch_1", Figure(paper.cpu_seconds)}};
}

}  // namespace

void AddPaperOptions(CLI::App& verb, PaperOptions& o) {
  verb.footer(kExamples);
  verb.add_option("--model", o.models, "cifar10, mnist (both)")
      ->delimiter(',')
      ->type_name("LIST")
      ->check(CLI::IsMember({"cifar10", "mnist"}));
  verb.add_option("--dtype", o.dtype, "of the weights: f32, bf16, int8 (bf16)")
      ->check(CLI::IsMember({"f32", "bf16", "int8"}));
  verb.add_option("--seconds", o.seconds, "of timed steps a row (4)")
      ->check(CLI::Range(0.0, 600.0));
  verb.add_flag("--quick", o.quick, "an eighth of the time");
}

void BenchPaper(const PaperOptions& o, const Output& output) {
  if (o.quick) MeasureMachineQuickly();
  output.note(Describe(ThisMachine()));
  for (const std::string& name : o.models) {
    output.note(
        fmt::format("\n{}: images/s and seconds an image; paper: its GPU and CPU, 2020", name));
    RowPrinter printer(output, {{"method", "method", -13},
                                {"", "cached", -8},
                                {"batch", "batch", 5},
                                {"images/s", "images_per_second", 8},
                                {"paper's", "paper_gpu_images_per_second", 7},
                                {"s, batch 1", "seconds_per_image_batch_1", 10},
                                {"paper's GPU", "paper_gpu_seconds_batch_1", 11},
                                {"CPU", "paper_cpu_seconds_batch_1", 6},
                                {"how", "how", -10},
                                {"of peak", "fraction_of_peak", 7, 100, "%"},
                                {"bound", "bound", -7}});
    for (const Row& row : Rows()) {
      output.check();
      printer.Print(MeasureRow(o, name, row, output));
    }
  }
}

}  // namespace linattn::bench
