#include "lab/swap.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/error.h"
#include "base/plot.h"
#include "model/model_file.h"
#include "train/compare_report.h"
#include "train/linearize.h"

// Linear attention in the place of a trained model's softmax: one layer at a time, all at once, and
// after `linattn linearize` has taught it.
namespace linattn {
namespace {

ModelFile SoftmaxModel(const LabOptions& options) {
  Check(
      std::filesystem::exists(options.model), "lab",
      "swap needs a model file whose attention is softmax (--model FILE; one lies in the sources' "
      "directory models), but '{}' does not exist here",
      options.model);
  return LoadModel(options.model);
}

// The model with linear attention in layer i alone.
ModelFile SwappedAt(const ModelFile& model, const LinearizeOptions& options, int64_t i) {
  ModelConfig c = LinearizedConfig(model.config, options);
  for (int64_t j = 0; j < c.layers(); ++j)
    if (j != i) c.mixers[j] = model.config.mixers[j];
  return WithConfig(model, c);
}

// Of those that are numbers: layers that were no softmax have none.
std::vector<double> Numbers(std::vector<double> values) {
  std::erase_if(values, [](double value) { return std::isnan(value); });
  return values;
}

double Mean(const std::vector<double>& values) {
  const std::vector<double> numbers = Numbers(values);
  return std::accumulate(numbers.begin(), numbers.end(), 0.0) / static_cast<double>(numbers.size());
}

// By layer, from 1.
Series Layers(std::string name, const std::vector<double>& values) {
  Series series{std::move(name), {}, true};
  for (size_t i = 0; i < values.size(); ++i)
    if (!std::isnan(values[i])) series.points.emplace_back(i + 1, values[i]);
  return series;
}

struct Swapped {
  LinearizeResult all;        // of all layers, with hedgehog features
  double elu1 = 0;            // all layers, by elu+1
  std::vector<double> alone;  // [L] one layer; NaN where it is no softmax
};

Swapped Measure(const ModelFile& model, const LinearizeOptions& options, const LabOptions& lab) {
  Swapped result;
  const int64_t L = model.config.layers();
  const auto begin = [&](int64_t part, const std::string& what) {
    if (lab.progress) lab.progress(part, L + 2, what);
  };
  for (int64_t i = 0; i < L; ++i) {
    const std::string what = fmt::format("layer {} alone", i + 1);
    begin(i, what);
    result.alone.push_back(model.config.mixers[i] == "softmax"
                               ? HeldOut(SwappedAt(model, options, i), options, what)
                               : NAN);
    Check(model.config.mixers[i] != "softmax" || std::isfinite(result.alone.back()), "lab",
          "swap: the metric must be finite with {}, but is {}", what, result.alone.back());
  }
  begin(L, "elu+1 in all layers");
  LinearizeOptions elu1 = options;
  elu1.feature_map = "elu1";
  result.elu1 = HeldOut(WithConfig(model, LinearizedConfig(model.config, elu1)), elu1, "elu+1");
  begin(L + 1, "recovery");
  result.all = Linearize(model, options);
  begin(L + 2, "done");
  return result;
}

std::string Paragraph(const Swapped& s, const LinearizeOptions& options) {
  const LinearizeResult& r = s.all;
  const std::vector<double> alone = Numbers(s.alone);
  const auto [least, most] = std::ranges::minmax_element(alone);
  const std::string others =
      alone.size() == s.alone.size()
          ? ""
          : fmt::format(" (the other {} are no softmax)", s.alone.size() - alone.size());
  return fmt::format(
      "{} on {} of {}: {:.3f} with softmax. Swapped without retraining: {:.3f} with elu+1 in all "
      "{} softmax layers{}, {:.3f} with hedgehog features that nobody trained; one layer alone, "
      "with hedgehog features too, costs from {:+.3f} to {:+.3f}. The attention of a layer that "
      "reads what it used to read is then off by {:.2f} of its size on average (squared). {} steps "
      "that train the feature maps alone bring that to {:.2f} and the model to {:.3f}; {} steps of "
      "all weights to {:.3f}. The same from the command line: linattn linearize MODEL --out FILE.",
      MetricName(r.metric),
      options.eval_examples > 0 ? fmt::format("{} examples", options.eval_examples)
                                : "all examples",
      HeldOutName(r.model.config.task), r.before, s.elu1, alone.size(), others, r.swapped,
      *least - r.before, *most - r.before, Mean(r.distance_before), r.transfer_steps,
      Mean(r.distance_after), r.transferred, r.steps, r.recovered);
}

std::vector<LabPicture> Pictures(const Swapped& s) {
  const LinearizeResult& r = s.all;
  const auto everywhere = [&](double value) { return std::vector<double>(s.alone.size(), value); };
  const std::string name = MetricName(r.metric);
  const Plot stages{
      fmt::format("{} when softmax becomes linear attention", name),
      {"layer swapped, alone"},
      {name},
      {Layers("one layer swapped", s.alone), Layers("all swapped", everywhere(r.swapped)),
       Layers("recovered", everywhere(r.recovered)), Layers("softmax", everywhere(r.before))}};
  const Plot distance{"distance of each layer's attention from softmax's",
                      {"layer"},
                      {"|y - y_softmax|^2 / |y_softmax|^2", true},
                      {Layers("bare swap", r.distance_before),
                       Layers("after attention transfer", r.distance_after)}};
  return {{"swap", SvgPlot(stages),
           "Metric on " + HeldOutName(r.model.config.task) +
               " with linear attention (hedgehog features) in one layer, in all, and recovered."},
          {"swap-distance", SvgPlot(distance), "How far each layer's attention output moves."}};
}

std::string Figures(const Swapped& s) {
  const LinearizeResult& r = s.all;
  const nlohmann::json figures = {{"metric", r.metric},
                                  {"held_out", HeldOutName(r.model.config.task)},
                                  {"softmax", r.before},
                                  {"swapped_elu1", s.elu1},
                                  {"swapped_hedgehog", r.swapped},
                                  {"layers_alone", s.alone},
                                  {"transferred", r.transferred},
                                  {"recovered", r.recovered},
                                  {"transfer_steps", r.transfer_steps},
                                  {"steps", r.steps},
                                  {"skipped", r.skipped},
                                  {"distance_swapped", r.distance_before},
                                  {"distance_transferred", r.distance_after}};
  return figures.dump(1);
}

}  // namespace

LabResult Swap(const LabOptions& lab, LinearizeOptions options) {
  if (!lab.data.empty()) options.data.source = lab.data;
  options.log = lab.quiet ? nullptr : stderr;
  options.stop = [&lab] {
    lab.check();  // throws
    return false;
  };
  const Swapped swapped = Measure(SoftmaxModel(lab), options, lab);
  return {Paragraph(swapped, options), Pictures(swapped), Figures(swapped)};
}

LabResult RunSwap(const LabOptions& lab) {
  LinearizeOptions options;
  options.eval_examples = lab.quick ? 50 : 200;
  options.minutes = lab.quick ? 0.5 : 5;
  options.seed = lab.seed + 1;
  return Swap(lab, options);
}

}  // namespace linattn
