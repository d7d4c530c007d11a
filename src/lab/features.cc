#include <fmt/format.h>
#include <fmt/ranges.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/plot.h"
#include "bench/mixer_problem.h"
#include "bench/timing.h"
#include "kernels/mixer.h"
#include "lab/lab.h"

// Linear attention costs O(N C V), softmax O(N^2 (K + V)): where is the crossing?
namespace linattn {
namespace {

constexpr int64_t kHeads = 4, kValues = 64;

// One mixer with its problem, to be timed.
struct Timed {
  const Mixer& mixer;
  bench::MixerProblem<float> problem;
  bench::Scratch scratch;

  Timed(const char* name, int64_t N, int64_t K)
      : mixer(MixerByName(name)),
        problem(mixer, {.B = 1, .T = N, .H = kHeads, .K = K, .V = kValues}),
        scratch(mixer, problem.in) {}
  void Run() { mixer.forward(problem.in, problem.out, scratch.get()); }
};

// Adds the milliseconds of forward passes over N tokens to the curves: softmax's, then one of
// linear attention for each number of features. In turns, medians of at least five.
void AddLength(int64_t N, const std::vector<int64_t>& features, std::vector<Series>& curves,
               const std::function<void()>& check) {
  std::vector<std::unique_ptr<Timed>> all;
  all.push_back(std::make_unique<Timed>("softmax", N, kValues));
  for (const int64_t C : features) all.push_back(std::make_unique<Timed>("linear", N, C));
  std::vector<bench::Job> jobs;
  for (const auto& timed : all)
    jobs.push_back({.run = [&timed] { timed->Run(); }, .prepare = nullptr});
  const auto timings = bench::TimeInTurns(jobs, 1, 5, check);
  for (size_t i = 0; i < curves.size(); ++i)
    curves[i].points.emplace_back(N, timings[i].median_s * 1e3);
}

// Where two curves over the same lengths cross, between lengths by their logarithms; none if they
// do not.
std::optional<double> Crossing(const Series& above, const Series& below) {
  for (size_t i = 1; i < above.points.size(); ++i) {
    const auto gap = [&](size_t j) {
      return std::log(above.points[j].second / below.points[j].second);
    };
    if (gap(i - 1) > 0 && gap(i) <= 0) {
      const double x0 = std::log(above.points[i - 1].first), x1 = std::log(above.points[i].first);
      return std::exp(x0 + (x1 - x0) * gap(i - 1) / (gap(i - 1) - gap(i)));
    }
  }
  return std::nullopt;
}

std::string CrossingText(const Series& linear, const Series& softmax) {
  if (linear.points.front().second <= softmax.points.front().second)
    return fmt::format("below N = {:.0f}", linear.points.front().first);
  const auto crossing = Crossing(linear, softmax);
  return crossing ? fmt::format("at N = {:.0f}", *crossing)
                  : fmt::format("not up to N = {:.0f}", linear.points.back().first);
}

double StateBytes(int64_t C) { return 4.0 * static_cast<double>(C * (kValues + 1)); }
double CacheBytes(double N) { return 4.0 * N * 2 * kValues; }

Plot MemoryPlot(const std::vector<int64_t>& features, const Series& softmax) {
  Plot plot{"memory of one head while generating", {"length N", true}, {"bytes", true}};
  Series cache{"softmax: keys and values", {}, true};
  for (const auto& [N, seconds] : softmax.points) cache.points.emplace_back(N, CacheBytes(N));
  plot.series.push_back(cache);
  for (const int64_t C : features) {
    Series state{fmt::format("linear, C = {}", C), {}};
    for (const auto& [N, seconds] : softmax.points) state.points.emplace_back(N, StateBytes(C));
    plot.series.push_back(state);
  }
  return plot;
}

}  // namespace

LabResult RunFeatures(const LabOptions& options) {
  std::vector<int64_t> features = {16, 64, 256, 1024}, lengths = {256, 512, 1024, 2048, 4096, 8192};
  if (options.quick) features = {32, 256}, lengths = {256, 1024, 4096};
  std::vector<Series> curves = {{"softmax, K = 64", {}, true}};
  for (const int64_t C : features) curves.push_back({fmt::format("linear, C = {}", C), {}, true});
  int64_t done = 0;
  for (const int64_t N : lengths) {
    AddLength(N, features, curves, options.check);
    if (options.progress)
      options.progress(++done, std::ssize(lengths), fmt::format("{} tokens", N));
  }
  const Series& softmax = curves[0];
  nlohmann::json figures = {{"softmax_ms", softmax.points}};
  std::vector<std::string> crossings, sizes;
  for (size_t i = 0; i < features.size(); ++i) {
    const int64_t C = features[i];
    crossings.push_back(fmt::format("C = {} {}", C, CrossingText(curves[i + 1], softmax)));
    sizes.push_back(fmt::format("C = {} from {:.0f} tokens on", C, StateBytes(C) / CacheBytes(1)));
    figures[fmt::format("linear_C{}_ms", C)] = curves[i + 1].points;
  }
  const double fewest = curves[1].points.back().second, most = curves.back().points.back().second;
  LabResult result;
  result.paragraph = fmt::format(
      "A token costs linear attention 4 C V operations a head whatever the length, softmax 2 (K + "
      "V) for every key it sees, so on average (K + V) N: by operations alone linear attention is "
      "the faster one from N = {} C on. Measured here with {} threads it becomes so: {}. Its state "
      "is the "
      "smaller memory: {}. Features are paid for in full: at {} tokens {} times as many (C = {} "
      "instead of {}) take {:.1f} times the time, {:.2f} of softmax's.",
      4 * kValues / (2 * kValues), omp_get_max_threads(), fmt::join(crossings, ", "),
      fmt::join(sizes, ", "), lengths.back(), features.back() / features.front(), features.back(),
      features.front(), most / fewest, most / softmax.points.back().second);
  const Plot plot{
      "causal attention, 4 heads, V = 64, forward", {"length N", true}, {"ms", true}, curves};
  result.pictures = {{"features-time", SvgPlot(plot), "Time of one forward pass against length."},
                     {"features-memory", SvgPlot(MemoryPlot(features, softmax)),
                      "Bytes that a head keeps, computed from the shapes."}};
  result.figures = figures.dump(1);
  return result;
}

}  // namespace linattn
