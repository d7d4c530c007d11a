#include "train/compare_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "base/file.h"
#include "base/json_lines.h"
#include "base/plot.h"

namespace linattn {
namespace {

std::vector<nlohmann::json> Metrics(const std::string& run) {
  const std::string path = run + "/metrics.jsonl";
  std::error_code error;
  const bool there = std::filesystem::exists(path, error) && std::filesystem::file_size(path) > 0;
  return there ? ReadJsonLines(path, "compare") : std::vector<nlohmann::json>();
}

Plot CurvesOf(const std::string& directory, const ComparisonFacts& facts,
              const std::vector<ComparedMixer>& mixers) {
  const std::string name = MetricName(facts.metric);
  Plot plot{.title = name + " on held-out data", .x = {"step"}, .y = {name}, .series = {}};
  for (const ComparedMixer& m : mixers) {
    const auto points = EvaluationCurve(directory + "/" + m.directory, facts.metric);
    plot.series.push_back({fmt::format("{} ({:.3f})", m.mixer, m.value), points, true});
  }
  return plot;
}

Plot ProfileOf(const ComparisonFacts& facts, const std::vector<ComparedMixer>& mixers) {
  Plot plot{.title = fmt::format("{} against {}", facts.metric, facts.axis),
            .x = {facts.axis, true},
            .y = {facts.metric},
            .series = {}};
  for (const ComparedMixer& m : mixers) plot.series.push_back({m.mixer, m.profile, true});
  return plot;
}

bool HasPoints(const Plot& plot) {
  return std::any_of(plot.series.begin(), plot.series.end(),
                     [](const Series& s) { return !s.points.empty(); });
}

// A row a mixer, a column a place on the axis.
std::string ProfileTable(const ComparisonFacts& facts, const std::vector<ComparedMixer>& mixers) {
  if (mixers.empty() || mixers.front().profile.empty()) return {};
  std::string head = fmt::format("| {} at so many {} |", facts.metric, facts.axis);
  std::string line = "| --- |", rows;
  for (const auto& [at, value] : mixers.front().profile) {
    head += fmt::format(" {} |", at), line += " ---: |";
  }
  for (const ComparedMixer& m : mixers) {
    rows += fmt::format("| {} |", m.mixer);
    for (const auto& [at, value] : m.profile) rows += fmt::format(" {:.3f} |", value);
    rows += "\n";
  }
  return fmt::format("{}\n{}\n{}\n![profile](profile.svg)\n\n", head, line, rows);
}

// What is true of MatchState's attempt: what grows with the length stays as large as it is.
std::string EqualStates(int64_t state, const std::vector<ComparedMixer>& mixers) {
  std::vector<std::string> others;
  for (const ComparedMixer& m : mixers) {
    const double ratio = static_cast<double>(m.state_bytes) / static_cast<double>(state);
    if (std::abs(ratio - 1) > 0.05)
      others.push_back(fmt::format("{} ({:.1f} times)", m.mixer, ratio));
  }
  return fmt::format(", and states of {} bytes", state) +
         (others.empty() ? "" : fmt::format(" except {}", fmt::join(others, ", ")));
}

// Three significant digits, without an exponent.
std::string Short(double x) {
  if (!(x > 0)) return "-";
  const int decimals = std::max(0, 2 - static_cast<int>(std::floor(std::log10(x))));
  return fmt::format("{:.{}f}", x, decimals);
}

}  // namespace

std::string MetricName(std::string metric) {
  const std::string bits = "bits_per_";
  if (metric.starts_with(bits)) metric.replace(0, bits.size(), "bits/");
  std::ranges::replace(metric, '_', ' ');
  return metric;
}

std::vector<std::pair<double, double>> EvaluationCurve(const std::string& run,
                                                       const std::string& metric) {
  std::vector<std::pair<double, double>> points;
  for (const nlohmann::json& line : Metrics(run))
    if (line.at("kind") == "eval" && line.at("step") > 0 && line.contains(metric))
      points.emplace_back(line.at("step").get<double>(), line.at(metric).get<double>());
  return points;
}

double SecondsPerStep(const std::string& run) {
  double seconds = 0, steps = 0, step = -1, wall_s = 0;
  bool trained = false;  // since the last line, and nothing else
  for (const nlohmann::json& line : Metrics(run)) {
    if (line.at("kind") == "train") {
      const double next = line.at("step"), now = line.at("wall_s");
      if (trained && next > step) seconds += now - wall_s, steps += next - step;
      step = next, wall_s = now;
    }
    trained = line.at("kind") == "train";
  }
  return steps > 0 ? seconds / steps : std::nan("");
}

double SecondsOfRun(const std::string& run) {
  double seconds = 0;
  for (const nlohmann::json& line : Metrics(run))
    if (line.contains("wall_s")) seconds = std::max(seconds, line.at("wall_s").get<double>());
  return seconds;
}

std::string ComparisonTable(const std::string& metric, const std::vector<ComparedMixer>& mixers) {
  std::string table = fmt::format(
      "| mixer | {} | s/step | peak memory, MB | generated tokens/s | state, bytes | parameters | "
      "mlp_dim | minutes |\n| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n",
      MetricName(metric));
  for (const ComparedMixer& m : mixers)
    table += fmt::format("| {} | {:.3f} | {} | {:.0f} | {} | {} | {} | {} | {} |\n", m.mixer,
                         m.value, Short(m.step_s), static_cast<double>(m.peak_bytes) / 1e6,
                         m.tokens_per_s > 0 ? fmt::format("{:.0f}", m.tokens_per_s) : "-",
                         m.state_bytes, m.parameters, m.mlp_dim, Short(m.minutes));
  return table;
}

void WriteComparison(const std::string& directory, const ComparisonFacts& facts,
                     const std::vector<ComparedMixer>& mixers) {
  const nlohmann::json json = {{"metric", facts.metric},
                               {"axis", facts.axis},
                               {"data", facts.data},
                               {"model", facts.model},
                               {"command", facts.command},
                               {"steps", facts.steps},
                               {"batch", facts.batch},
                               {"parameters", facts.parameters},
                               {"eval_examples", facts.eval_examples},
                               {"threads", facts.threads},
                               {"mixers", mixers}};
  WriteFileAtomic(directory + "/compare.json", json.dump(2) + "\n");
  const Plot curves = CurvesOf(directory, facts, mixers);
  const bool any = HasPoints(curves);
  if (any) WriteFileAtomic(directory + "/curves.svg", SvgPlot(curves));
  const Plot profile = ProfileOf(facts, mixers);
  if (HasPoints(profile)) WriteFileAtomic(directory + "/profile.svg", SvgPlot(profile));
  const std::string held_out =
      facts.eval_examples > 0
          ? fmt::format("{} held-out examples, evenly spaced,", facts.eval_examples)
          : "all held-out examples";
  WriteFileAtomic(
      directory + "/compare.md",
      fmt::format("# Mixers compared\n\n{}. {}. {} steps of {} sequences for each, in the same "
                  "order, on {} threads; as nearly {} parameters as the width of the MLP allows{}. "
                  "{} on {} after the last step; peak memory is that of the training process; "
                  "tokens are generated by the lean runtime, one sequence at a time; the state is "
                  "one sequence's at its full length.\n\n{}\n{}{}Made by:\n\n    {}\n",
                  facts.data, facts.model, facts.steps, facts.batch, facts.threads,
                  facts.parameters, facts.state > 0 ? EqualStates(facts.state, mixers) : "",
                  MetricName(facts.metric), held_out, ComparisonTable(facts.metric, mixers),
                  any ? "![curves](curves.svg)\n\n" : "", ProfileTable(facts, mixers),
                  facts.command));
}

}  // namespace linattn
