#include <fmt/format.h>
#include <fmt/ranges.h>
#include <omp.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/plot.h"
#include "bench/decode_bench.h"
#include "lab/lab.h"

// The paper's headline, 17.85 images/s against 0.004, is 4,462 times. It multiplies three things:
// not computing old tokens again, sharing the weights among many sequences, and a memory that does
// not grow. Here each is measured by itself.
namespace linattn {
namespace {

using bench::DecodeSetting, bench::DecodeTiming;

struct Row {
  std::string name;
  bool cached;
  int64_t batch;
  DecodeTiming timing;
};

DecodeTiming Measure(const std::string& size, const char* mixer, bool cached, int64_t batch,
                     double seconds) {
  const PackedModel model = bench::RandomModel(
      bench::BenchConfig(size, mixer, WeightType::kFloat32), WeightType::kFloat32);
  DecodeSetting setting;
  setting.batch = batch, setting.cached = cached, setting.seconds = seconds;
  return bench::MeasureDecode(model, setting, [] {});
}

// The row that makes the most images a second.
const Row& Best(const std::vector<Row>& rows) {
  return *std::max_element(rows.begin(), rows.end(), [](const Row& a, const Row& b) {
    return a.timing.sequences_per_second() < b.timing.sequences_per_second();
  });
}

Series Rates(const std::vector<Row>& rows) {
  Series series{rows.front().name, {}, true};
  for (const Row& row : rows)
    series.points.emplace_back(row.batch, row.timing.sequences_per_second());
  return series;
}

nlohmann::json Figures(const std::vector<std::vector<Row>>& all) {
  nlohmann::json figures = nlohmann::json::array();
  for (const auto& rows : all)
    for (const Row& row : rows)
      figures.push_back({{"engine", row.name},
                         {"batch", row.batch},
                         {"integrated", row.timing.integrated},
                         {"seconds_a_batch", row.timing.seconds},
                         {"images_per_s", row.timing.sequences_per_second()}});
  return figures;
}

std::string Paragraph(const std::string& size, const std::vector<std::vector<Row>>& all) {
  const auto rate = [](const Row& row) { return row.timing.sequences_per_second(); };
  const Row &uncached = all[0].front(), &cached = all[1].front(), &linear = all[2].front();
  const Row &most_cached = Best(all[1]), &most_linear = Best(all[2]);
  return fmt::format(
      "{} with random weights, float32, {} threads. One image alone: {:.4g} s uncached, {:.4g} s "
      "with a cache of keys and values, "
      "{:.4g} s with linear attention. So at batch 1 the cache alone is worth {:.0f} times and the "
      "fixed-size state another {:.1f}: "
      "nearly all of the headline is the old softmax computing every token again, for every token. "
      "Batches share the weights: the "
      "cached model gains {:.1f} times at its best batch ({}), linear attention {:.1f} ({}), "
      "because a cache is read in full by "
      "every sequence and a state is small. Best against best, linear attention is {:.1f} times "
      "the cached softmax and {:.0f} "
      "times the uncached one at batch 1; the paper's 17.85 against 0.004 images/s (its GPU, its "
      "batches) is 4,462. Uncached and "
      "cached rows are integrated from steps at several positions.",
      size, omp_get_max_threads(), 1 / rate(uncached), 1 / rate(cached), 1 / rate(linear),
      rate(cached) / rate(uncached), rate(linear) / rate(cached), rate(most_cached) / rate(cached),
      most_cached.batch, rate(most_linear) / rate(linear), most_linear.batch,
      rate(most_linear) / rate(most_cached), rate(most_linear) / rate(uncached));
}

}  // namespace

LabResult RunLatency(const LabOptions& options) {
  const std::string size = options.quick ? "mnist" : "cifar10";
  const double seconds = options.quick ? 0.5 : 3;
  std::vector<int64_t> batches = {1, 4, 16, 64};
  if (options.quick) batches = {1, 16};
  const auto total = 1 + 2 * std::ssize(batches);
  std::vector<std::vector<Row>> all(3);
  int64_t done = 0;
  const auto add = [&](size_t i, const char* name, const char* mixer, bool cached, int64_t batch) {
    all[i].push_back({name, cached, batch, Measure(size, mixer, cached, batch, seconds)});
    if (options.progress) options.progress(++done, total, fmt::format("{}, batch {}", name, batch));
  };
  add(0, "softmax, uncached", "softmax", false, 1);
  for (const int64_t batch : batches) add(1, "softmax, cached", "softmax", true, batch);
  for (const int64_t batch : batches) add(2, "linear", "linear", true, batch);

  Plot plot{size + ", images a second", {"batch", true}, {"images/s", true}};
  for (const auto& rows : all) plot.series.push_back(Rates(rows));
  LabResult result;
  result.paragraph = Paragraph(size, all);
  result.pictures = {{"latency", SvgPlot(plot), "Images a second against the batch."}};
  result.figures = Figures(all).dump(1);
  return result;
}

}  // namespace linattn
