#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/error.h"
#include "base/plot.h"
#include "lab/lab.h"
#include "model/model_file.h"
#include "train/linearize.h"

// Linear attention in the place of a trained model's softmax: one layer at a time, all at once, and
// after `linattn linearize` has taught it.
namespace linattn {
namespace {

ModelFile SoftmaxModel(const LabOptions& options) {
  Check(!options.model.empty(), "lab",
        "swap needs a model file whose attention is softmax (--model FILE), but none was given");
  return LoadModel(options.model);
}

// The model with linear attention in layer i alone.
ModelFile SwappedAt(const ModelFile& model, const LinearizeOptions& options, int64_t i) {
  ModelConfig c = LinearizedConfig(model.config, options);
  for (int64_t j = 0; j < c.layers(); ++j)
    if (j != i) c.mixers[j] = model.config.mixers[j];
  return WithConfig(model, c);
}

double Mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

Series Layers(std::string name, const std::vector<double>& values) {
  Series series{std::move(name), {}, true};
  for (size_t i = 0; i < values.size(); ++i) series.points.emplace_back(i + 1, values[i]);
  return series;
}

}  // namespace

LabResult RunSwap(const LabOptions& lab) {
  const ModelFile model = SoftmaxModel(lab);
  LinearizeOptions options;
  if (!lab.data.empty()) options.data.source = lab.data;
  options.eval_examples = lab.quick ? 50 : 200;
  options.minutes = lab.quick ? 0.5 : 5;
  options.seed = lab.seed + 1;
  const int64_t L = model.config.layers();
  std::vector<double> alone;
  const auto progress = [&](int64_t done, const std::string& what) {
    if (lab.progress) lab.progress(done, L + 2, what);
  };
  for (int64_t i = 0; i < L; ++i) {
    alone.push_back(
        model.config.mixers[i] == "softmax" ? HeldOut(SwappedAt(model, options, i), options) : NAN);
    progress(i + 1, fmt::format("layer {} alone", i + 1));
  }
  LinearizeOptions elu1 = options;
  elu1.feature_map = "elu1";
  const double bare_elu1 = HeldOut(WithConfig(model, LinearizedConfig(model.config, elu1)), elu1);
  progress(L + 1, "elu1 in all layers");
  const LinearizeResult r = Linearize(model, options);
  progress(L + 2, "recovered");

  const Plot stages{
      fmt::format("{} when softmax becomes linear attention", r.metric),
      {"layer swapped, alone"},
      {r.metric},
      {Layers("one layer swapped", alone), Layers("all swapped", std::vector<double>(L, r.swapped)),
       Layers("recovered", std::vector<double>(L, r.recovered)),
       Layers("softmax", std::vector<double>(L, r.before))}};
  const Plot distance{"distance of each layer's attention from softmax's",
                      {"layer"},
                      {"|y - y_softmax|^2 / |y_softmax|^2", true},
                      {Layers("bare swap", r.distance_before),
                       Layers("after attention transfer", r.distance_after)}};
  LabResult result;
  result.paragraph = fmt::format(
      "{}: {:.3f} with softmax. Swapped without retraining: {:.3f} with elu+1 in all {} layers, "
      "{:.3f} with hedgehog features "
      "that nobody trained; one layer alone costs from {:+.3f} to {:+.3f}. The attention of a "
      "layer that reads what it used to "
      "read is then off by {:.2f} of its size on average (squared). {} steps that train the "
      "feature maps alone bring that to "
      "{:.2f} and the model to {:.3f}; {} steps of all weights to {:.3f}. Held out: {} examples. "
      "The same from the command line: "
      "linattn linearize MODEL --out FILE.",
      r.metric, r.before, bare_elu1, L, r.swapped,
      *std::min_element(alone.begin(), alone.end()) - r.before,
      *std::max_element(alone.begin(), alone.end()) - r.before, Mean(r.distance_before),
      r.transfer_steps, Mean(r.distance_after), r.transferred, r.steps, r.recovered,
      options.eval_examples);
  result.pictures = {
      {"swap", SvgPlot(stages),
       "Held-out metric with linear attention in one layer, in all, and recovered."},
      {"swap-distance", SvgPlot(distance), "How far each layer's attention output moves."}};
  const nlohmann::json figures = {{"metric", r.metric},
                                  {"softmax", r.before},
                                  {"swapped_elu1", bare_elu1},
                                  {"swapped_hedgehog", r.swapped},
                                  {"layers_alone", alone},
                                  {"transferred", r.transferred},
                                  {"recovered", r.recovered},
                                  {"transfer_steps", r.transfer_steps},
                                  {"steps", r.steps},
                                  {"distance_swapped", r.distance_before},
                                  {"distance_transferred", r.distance_after}};
  result.figures = figures.dump(1);
  return result;
}

}  // namespace linattn
