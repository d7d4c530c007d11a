#include "base/plot.h"

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/json_lines.h"
#include "cli/console.h"
#include "cli/verbs.h"

namespace linattn::cli {
namespace {

constexpr const char* kExamples = R"(
Examples:
  linattn plot runs/first                                    runs/first/curves.svg
  linattn plot runs/linear runs/softmax --out both.svg
  linattn plot runs/linear runs/softmax --against minutes --smooth 50)";

struct Options {
  std::vector<std::string> runs;
  std::string out, metric, against = "step";
  int64_t smooth = 20;
};

// The metric of the run's task, if none was asked for.
std::string MetricOf(const std::vector<nlohmann::json>& lines) {
  for (const char* name : {"bits_per_dim", "bits_per_byte", "bits_per_symbol", "accuracy"})
    if (lines.front().contains(name)) return name;
  return "loss";
}

struct Curves {
  Series train, held_out;
};

// Training values are means of `smooth` lines; evaluations are shown as they are.
Curves ReadCurves(const Options& o, const std::string& run, const std::string& metric) {
  const std::string name = std::filesystem::path(run).lexically_normal().filename().string();
  Curves curves{{name + ", training", {}}, {name + ", held out", {}, true}};
  double sum = 0;
  int64_t n = 0;
  for (const nlohmann::json& line : ReadJsonLines(run + "/metrics.jsonl", "plot")) {
    if (!line.contains(metric) || !line.contains("wall_s")) continue;
    const double x =
        o.against == "step" ? line.at("step").get<double>() : line.at("wall_s").get<double>() / 60;
    const double y = line.at(metric).get<double>();
    if (line.at("kind") == "eval") {
      curves.held_out.points.emplace_back(x, y);
    } else if (sum += y; ++n == o.smooth) {
      curves.train.points.emplace_back(x, sum / static_cast<double>(n));
      sum = 0, n = 0;
    }
  }
  return curves;
}

void Run(const Options& o, const Common& common) {
  const std::string metric =
      o.metric.empty() ? MetricOf(ReadJsonLines(o.runs.front() + "/metrics.jsonl", "plot"))
                       : o.metric;
  Plot plot{.title = metric, .x = {o.against}, .y = {metric}, .series = {}};
  for (const std::string& run : o.runs) {
    for (Curves curves = ReadCurves(o, run, metric);
         Series * series : {&curves.train, &curves.held_out})
      if (!series->points.empty()) plot.series.push_back(std::move(*series));
  }
  const std::string out = o.out.empty() ? o.runs.front() + "/curves.svg" : o.out;
  WriteFileAtomic(out, SvgPlot(plot));
  if (common.quiet) return;
  Print("{}: {} curves of {} against {}\n", out, plot.series.size(), metric, o.against);
}

}  // namespace

void AddPlot(CLI::App& app, Common& common) {
  CLI::App& verb = *app.add_subcommand("plot", "draw the curves of training runs");
  auto o = std::make_shared<Options>();
  verb.add_option("runs", o->runs, "directories of runs")
      ->required()
      ->check(CLI::ExistingDirectory);
  verb.add_option("--out", o->out, "SVG file (default: curves.svg in the first run)");
  verb.add_option("--metric", o->metric, "a number of metrics.jsonl (default: the task's)");
  verb.add_option("--against", o->against, "step or minutes")
      ->check(CLI::IsMember({"step", "minutes"}));
  verb.add_option("--smooth", o->smooth, "training values a point (20)")
      ->check(CLI::Range(int64_t{1}, kMany));
  AddCommon(verb, common);
  verb.footer(kExamples);
  verb.callback([o, &common] { Run(*o, common); });
}

}  // namespace linattn::cli
