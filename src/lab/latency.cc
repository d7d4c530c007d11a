#include <fmt/format.h>
#include <fmt/ranges.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
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

struct Engine {
  std::string name;
  const char* mixer;
  bool cached;
  std::vector<int64_t> batches;
};

struct Row {
  std::string name;
  int64_t batch;
  DecodeTiming timing;
};

// Rows of one engine; batches whose caches would not fit in memory are left out.
std::vector<Row> Measure(const std::string& size, const Engine& engine, double seconds,
                         const std::function<void()>& check,
                         const std::function<void(const std::string&)>& progress) {
  const ModelConfig config = bench::BenchConfig(size, engine.mixer, WeightType::kFloat32);
  const PackedModel model = bench::RandomModel(config, WeightType::kFloat32);
  std::vector<Row> rows;
  for (const int64_t batch : engine.batches) {
    const DecodeSetting setting{
        .batch = batch, .length = config.max_len, .seconds = seconds, .cached = engine.cached};
    if (bench::Fits(model, setting))
      rows.push_back({engine.name, batch, bench::MeasureDecode(model, setting, check)});
    progress(fmt::format("{}, batch {}", engine.name, batch));
  }
  return rows;
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
  const double cache = rate(cached) / rate(uncached), state = rate(linear) / rate(cached);
  const double batching = rate(most_linear) / rate(linear), all_three = cache * state * batching;
  const auto share = [&](double part) { return 100 * std::log(part) / std::log(all_three); };
  return fmt::format(
      "{} with random weights, float32, {} threads. One image alone: {:.4g} s uncached, {:.4g} s "
      "with a cache of keys and values, {:.4g} s with linear attention. So at batch 1 the cache is "
      "worth {:.1f} times, the fixed-size state another {:.1f}; batches, which share the weights, "
      "{:.1f} for linear attention at its best batch ({}), {:.1f} for the cached softmax ({}), "
      "whose "
      "caches every sequence reads for itself, and {:.1f} uncached ({}). The three make {:.0f} "
      "times between linear "
      "attention at its best and one uncached image (by their logarithms the cache {:.0f}%, the "
      "state {:.0f}%, the batch {:.0f}%), {:.1f} of them between the best of linear and of cached "
      "softmax. The paper's 17.85 against 0.004 images/s (its GPU, its batches) is 4,462, of which "
      "0.32 against 0.004, 80 times, was its cache's. Uncached and cached rows are integrated from "
      "steps at several positions.",
      size, omp_get_max_threads(), 1 / rate(uncached), 1 / rate(cached), 1 / rate(linear), cache,
      state, batching, most_linear.batch, rate(most_cached) / rate(cached), most_cached.batch,
      rate(Best(all[0])) / rate(uncached), Best(all[0]).batch, all_three, share(cache),
      share(state), share(batching), rate(most_linear) / rate(most_cached));
}

}  // namespace

LabResult RunLatency(const LabOptions& options) {
  const std::string size = options.quick ? "mnist" : "cifar10";
  const double seconds = options.quick ? 0.5 : 3;
  const std::vector<int64_t> few = options.quick ? std::vector<int64_t>{1, 2}
                                                 : std::vector<int64_t>{1, 4},
                             many = options.quick ? std::vector<int64_t>{1, 16}
                                                  : std::vector<int64_t>{1, 4, 16, 64};
  const std::vector<Engine> engines = {{"softmax, uncached", "softmax", false, few},
                                       {"softmax, cached", "softmax", true, many},
                                       {"linear", "linear", true, many}};
  const auto total = std::ssize(few) + 2 * std::ssize(many);
  int64_t done = 0;
  std::vector<std::vector<Row>> all;
  for (const Engine& engine : engines)
    all.push_back(Measure(size, engine, seconds, options.check, [&](const std::string& what) {
      if (options.progress) options.progress(++done, total, what);
    }));

  Plot plot{size + ", images a second", {"batch", true}, {"images/s", true}};
  for (const auto& rows : all) plot.series.push_back(Rates(rows));
  LabResult result;
  result.paragraph = Paragraph(size, all);
  result.pictures = {{"latency", SvgPlot(plot), "Images a second against the batch."}};
  result.figures = Figures(all).dump(1);
  return result;
}

}  // namespace linattn
