#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "cli/console.h"
#include "cli/loaded_model.h"
#include "cli/state_plot.h"
#include "cli/verbs.h"
#include "runtime/packed_model.h"

namespace linattn::cli {
namespace {

constexpr const char* kExamples = R"(
Examples:
  linattn inspect model.safetensors
  linattn inspect model.safetensors --json
  linattn inspect linear.safetensors softmax.safetensors --plot-state states.svg
  linattn inspect --plot-state states.svg                 every mixer, at the size of fashion-small
  linattn inspect --plot-state states.svg --size cifar10 --tokens 1000000 --json
Reading the file checks all of it: sizes, offsets, names and shapes.)";

struct LayerFacts {
  std::string mixer;
  int64_t parameters = 0, state_bytes = 0;
};

// What is the same in every layer's name.
int64_t LayerOf(const std::string& tensor) {
  constexpr std::string_view kPrefix = "layers.";
  return tensor.starts_with(kPrefix) ? std::stoll(tensor.substr(kPrefix.size())) : -1;
}

int64_t Elements(const ParameterSpec& spec) {
  int64_t size = 1;
  for (const int64_t extent : spec.shape) size *= extent;
  return size;
}

std::vector<LayerFacts> Layers(const ModelConfig& c) {
  std::vector<LayerFacts> layers;
  for (int64_t i = 0; i < c.layers(); ++i) {
    const int64_t floats = c.causal ? StateFloats(c, i, c.max_len) : 0;
    layers.push_back({c.mixers[i], 0, floats * static_cast<int64_t>(sizeof(float))});
  }
  for (const ParameterSpec& spec : Parameters(c)) {
    const int64_t layer = LayerOf(spec.name);
    if (layer >= 0) layers[layer].parameters += Elements(spec);
  }
  return layers;
}

void PrintText(const std::string& path, const ModelFile& file,
               const std::vector<LayerFacts>& layers, int64_t parameters, int64_t state) {
  const ModelConfig& c = file.config;
  std::string text = fmt::format("{}: sound, {} tensors, {} parameters in {}, {} bytes\n", path,
                                 file.tensors.size(), parameters, NameOf(file.storage),
                                 std::filesystem::file_size(path));
  if (c.task == "images") {
    text += fmt::format("images {} x {} x {}, {} tokens", c.height, c.width, c.channels, c.max_len);
  } else if (c.task == "speech") {
    text += fmt::format("speech at {} Hz, {} x {} features a row, up to {} rows; {} {} and a blank",
                        c.sample_rate, c.subsample, c.input_features, c.max_len, c.vocab - 1,
                        c.unit_kind);
  } else {
    text += fmt::format("{}, vocabulary {}, up to {} tokens", c.task, c.vocab, c.max_len);
  }
  if (c.classes > 0) text += fmt::format(", {} classes", c.classes);
  const std::vector<std::string>& names = c.class_names;
  for (size_t i = 0; i < names.size(); ++i) text += (i ? ", " : ": ") + names[i];
  text +=
      fmt::format("\n{}, {} blocks, {}-norm, dim {}, {} heads of {}, MLP {} ({}), head {}{}\n",
                  c.causal ? "causal" : "bidirectional", c.block, c.pre_norm ? "pre" : "post",
                  c.dim, c.heads, c.head_dim, c.mlp_dim,
                  c.block == "modern" ? "SwiGLU" : c.activation, c.head, c.tied ? " (tied)" : "");
  text += "layer  mixer       parameters  state bytes a sequence\n";
  for (size_t i = 0; i < layers.size(); ++i) {
    text += fmt::format("{:>5}  {:<10}  {:>10}  {:>22}\n", i, layers[i].mixer, layers[i].parameters,
                        layers[i].state_bytes);
  }
  text += fmt::format("  all  {:<10}  {:>10}  {:>22}\n", "", parameters, state);
  for (const auto& [key, value] : file.metadata) text += fmt::format("{}: {}\n", key, value);
  Write(text);
}

void PrintJson(const std::string& path, const ModelFile& file,
               const std::vector<LayerFacts>& layers, int64_t parameters, int64_t state) {
  nlohmann::json json = {{"path", path},
                         {"bytes", std::filesystem::file_size(path)},
                         {"dtype", NameOf(file.storage)},
                         {"parameters", parameters},
                         {"state_bytes", state},
                         {"config", ToJson(file.config)},
                         {"metadata", file.metadata},
                         {"layers", nlohmann::json::array()}};
  for (const LayerFacts& layer : layers) {
    json["layers"].push_back({{"mixer", layer.mixer},
                              {"parameters", layer.parameters},
                              {"state_bytes", layer.state_bytes}});
  }
  Print("{}\n", json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
}

struct Options {
  std::vector<std::string> models;
  StatePlotOptions plot{
      .out = "", .size = "fashion-small", .tokens = 0, .json = false, .quiet = false};
};

void Show(const std::string& path, bool as_json) {
  const ModelFile file = OpenModel(path);
  const std::vector<LayerFacts> layers = Layers(file.config);
  int64_t parameters = 0, state = 0;
  for (const ParameterSpec& spec : Parameters(file.config)) parameters += Elements(spec);
  for (const LayerFacts& layer : layers) state += layer.state_bytes;
  (as_json ? PrintJson : PrintText)(path, file, layers, parameters, state);
}

void Run(const Options& o) {
  if (!o.plot.out.empty()) {
    std::vector<NamedModel> models;
    for (const std::string& path : o.models) models.push_back({path, OpenModel(path).config});
    return PlotStates(std::move(models), o.plot);
  }
  if (o.models.empty()) OpenModel("");  // says what is missing
  for (const std::string& path : o.models) Show(path, o.plot.json);
}

}  // namespace

void AddInspect(CLI::App& app, Common& common) {
  CLI::App& verb = *app.add_subcommand("inspect", "check model files and show what is in them");
  auto o = std::make_shared<Options>();
  verb.add_option("models,--model", o->models, "model files (safetensors)")->type_name("MODEL");
  auto* plot = verb.add_option("--plot-state", o->plot.out,
                               "draw memory against length: of these models, or of every mixer");
  verb.add_option("--size", o->plot.size,
                  "mnist, cifar10 or fashion-small: where no model is given")
      ->needs(plot);
  verb.add_option("--tokens", o->plot.tokens, "the longest length (the models', or 65536)")
      ->needs(plot)
      ->check(CLI::Range(int64_t{1}, kMany));
  verb.add_flag("--json", o->plot.json, "as JSON");
  AddCommon(verb, common);
  verb.footer(kExamples);
  verb.callback([o, &common] {
    o->plot.quiet = common.quiet;
    Run(*o);
  });
}

}  // namespace linattn::cli
