#include "cli/state_plot.h"

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/plot.h"
#include "cli/console.h"
#include "kernels/mixer.h"
#include "model/layer.h"

namespace linattn::cli {
namespace {

constexpr int64_t kNamedTokens = 65536;

std::vector<NamedModel> EveryMixer(const std::string& size) {
  std::vector<NamedModel> models;
  for (const Mixer* mixer : AllMixers())
    models.push_back({std::string(mixer->name), NamedConfig(size, std::string(mixer->name))});
  return models;
}

// 1, 2, 4, ... and the last length.
std::vector<int64_t> LengthsUpTo(int64_t tokens) {
  std::vector<int64_t> lengths;
  for (int64_t t = 1; t < tokens; t *= 2) lengths.push_back(t);
  lengths.push_back(tokens);
  return lengths;
}

// "101 kB"
std::string Human(int64_t bytes) {
  double size = static_cast<double>(bytes);
  const char* units[] = {"B", "kB", "MB", "GB", "TB"};
  size_t unit = 0;
  for (; size >= 1000 && unit + 1 < std::size(units); ++unit) size /= 1000;
  return fmt::format("{:.3g} {}", size, units[unit]);
}

}  // namespace

void PlotStates(std::vector<NamedModel> models, const StatePlotOptions& options) {
  const bool named = models.empty();
  if (named) models = EveryMixer(options.size);
  int64_t tokens = named ? kNamedTokens : 1;
  for (const NamedModel& model : models) {
    Check(model.config.causal, "inspect", "'{}' must be causal to have a state, but is not",
          model.name);
    if (!named) tokens = std::max(tokens, model.config.max_len);
  }
  const std::vector<int64_t> lengths = LengthsUpTo(options.tokens > 0 ? options.tokens : tokens);
  Plot plot{.title = named ? "memory of one sequence, " + options.size : "memory of one sequence",
            .x = {"tokens", true},
            .y = {"bytes", true},
            .series = {}};
  nlohmann::json json = {{"tokens", lengths}, {"series", nlohmann::json::array()}};
  for (const NamedModel& model : models) {
    Series series{model.name, {}};
    std::vector<int64_t> bytes;
    for (const int64_t t : lengths) {
      bytes.push_back(StateBytes(model.config, t));
      series.points.emplace_back(static_cast<double>(t), static_cast<double>(bytes.back()));
    }
    series.name += ": " + Human(bytes.back());
    json["series"].push_back({{"name", model.name}, {"bytes", bytes}});
    plot.series.push_back(std::move(series));
  }
  WriteFileAtomic(options.out, SvgPlot(plot));
  if (options.json)
    Print("{}\n", json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
  else if (!options.quiet)
    Print("{}: {} curves\n", options.out, plot.series.size());
}

}  // namespace linattn::cli
