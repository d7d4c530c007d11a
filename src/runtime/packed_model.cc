#include "runtime/packed_model.h"

#include <string.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "base/random.h"
#include "kernels/activation.h"
#include "kernels/gemm.h"
#include "kernels/layer_norm.h"
#include "model/model_file.h"
#include "runtime/digest.h"

namespace linattn {
namespace {

int64_t QkvWidth(const ModelConfig& c) {
  return 2 * c.heads * c.head_dim + c.value_heads * c.value_dim;
}
int64_t ValueWidth(const ModelConfig& c) { return c.value_heads * c.value_dim; }

struct Norm {
  std::vector<float> weight, bias;
  float eps = 0;

  LayerNormParameters Parameters() const {
    return {weight.data(), bias.data(), static_cast<int64_t>(weight.size()), eps};
  }
};

struct Layer {
  const Mixer* mixer = nullptr;
  Norm attn_norm, mlp_norm;
  PackedMatrix qkv, out, up, down;
};

const std::vector<float>& Find(const PackedModel::Tensors& tensors, const std::string& name) {
  return tensors.find(name)->second;
}

Norm MakeNorm(const PackedModel::Tensors& tensors, const std::string& name, double eps) {
  return {Find(tensors, name + ".weight"), Find(tensors, name + ".bias"), static_cast<float>(eps)};
}

// Projections of one input, stacked as one matrix [sum of their outs, in].
PackedMatrix MakeLinear(const PackedModel::Tensors& tensors, const std::vector<std::string>& names,
                        int64_t in) {
  std::vector<float> weight, bias;
  for (const std::string& name : names) {
    const std::vector<float>& w = Find(tensors, name + ".weight");
    const std::vector<float>& b = Find(tensors, name + ".bias");
    weight.insert(weight.end(), w.begin(), w.end());
    bias.insert(bias.end(), b.begin(), b.end());
  }
  return PackedMatrix::Pack(weight.data(), bias.data(), static_cast<int64_t>(bias.size()), in);
}

Layer MakeLayer(const ModelConfig& c, const PackedModel::Tensors& tensors, int64_t i) {
  const std::string at = fmt::format("layers.{}.", i), attn = at + "attn.";
  Layer layer;
  layer.mixer = &MixerByName(c.mixers[i]);
  layer.attn_norm = MakeNorm(tensors, at + "attn_norm", c.norm_eps);
  layer.mlp_norm = MakeNorm(tensors, at + "mlp_norm", c.norm_eps);
  layer.qkv = MakeLinear(tensors, {attn + "q_proj", attn + "k_proj", attn + "v_proj"}, c.dim);
  layer.out = MakeLinear(tensors, {attn + "o_proj"}, ValueWidth(c));
  layer.up = MakeLinear(tensors, {at + "mlp.up_proj"}, c.dim);
  layer.down = MakeLinear(tensors, {at + "mlp.down_proj"}, c.mlp_dim);
  return layer;
}

PackedMatrix MakeHead(const ModelConfig& c, const PackedModel::Tensors& tensors) {
  // Tied: the embedding's first vocab rows.
  const std::vector<float>& weight = Find(tensors, c.tied ? "embed.weight" : "head.weight");
  return PackedMatrix::Pack(weight.data(), Find(tensors, "head.bias").data(), c.outputs(), c.dim);
}

}  // namespace

Workspace::Workspace(const ModelConfig& c, int64_t rows)
    : x(rows * c.dim),
      y(rows * c.dim),
      qkv(rows * QkvWidth(c)),
      o(rows * ValueWidth(c)),
      up(rows * c.mlp_dim),
      rows(rows) {}

struct PackedModel::Weights {
  std::vector<float> embed;                 // [input symbols, dim]
  std::vector<float> row, column, channel;  // position "image"
  std::vector<float> position;              // position "learned"
  std::vector<Layer> layers;
  Norm norm;
  PackedMatrix head;
};

PackedModel::PackedModel(const ModelConfig& config, const Tensors& tensors) : config_(config) {
  CheckConfig(config);
  for (const ParameterSpec& spec : Parameters(config)) {
    const auto found = tensors.find(spec.name);
    Check(found != tensors.end(), "model", "tensor '{}' is missing", spec.name);
    Check(static_cast<int64_t>(found->second.size()) == ElementsOf(spec), "model",
          "tensor '{}' must have {} elements, but has {}", spec.name, ElementsOf(spec),
          found->second.size());
    fingerprint_ = Digest(fingerprint_, found->second.data(), found->second.size() * sizeof(float));
  }
  const std::string text = ToJson(config).dump();
  fingerprint_ = Digest(fingerprint_, text.data(), text.size());
  FeatureMapByName(config.feature_map);  // an unknown name is refused here, not at the first token

  auto weights = std::make_unique<Weights>();
  weights->embed = Find(tensors, "embed.weight");
  if (config.position == "image") {
    weights->row = Find(tensors, "position.row.weight");
    weights->column = Find(tensors, "position.column.weight");
    weights->channel = Find(tensors, "position.channel.weight");
  } else if (config.position == "learned") {
    weights->position = Find(tensors, "position.weight");
  }
  for (int64_t i = 0; i < config.layers(); ++i) {
    weights->layers.push_back(MakeLayer(config, tensors, i));
  }
  weights->norm = MakeNorm(tensors, "norm", config.norm_eps);
  weights->head = MakeHead(config, tensors);
  weights_ = std::move(weights);
}

PackedModel::~PackedModel() = default;
PackedModel::PackedModel(PackedModel&&) noexcept = default;

PackedModel PackedModel::Load(const std::string& path) {
  const ModelFile file = LoadModel(path);
  return PackedModel(file.config, file.tensors);
}

int64_t PackedModel::input_symbols() const {
  return config_.vocab + std::max<int64_t>(1, config_.classes);
}

const Mixer& PackedModel::mixer(int64_t layer) const { return *weights_->layers[layer].mixer; }

MixerOptions PackedModel::mixer_options() const {
  MixerOptions options;
  options.causal = config_.causal;
  options.eps = config_.attn_eps;
  options.feature_map = &FeatureMapByName(config_.feature_map);
  return options;
}

void PackedModel::CheckTokens(std::span<const int32_t> tokens, int64_t first) const {
  for (size_t i = 0; i < tokens.size(); ++i) {
    const int64_t position = first + static_cast<int64_t>(i);
    const int64_t size = position == 0 ? input_symbols() : config_.vocab;
    Check(tokens[i] >= 0 && tokens[i] < size, "runtime",
          "token {} must be from 0 to {} (the model's vocabulary has {} symbols), but is {}",
          position, size - 1, config_.vocab, tokens[i]);
  }
}

void PackedModel::Embed(std::span<const int32_t> tokens, const int64_t* positions, Workspace& w,
                        int64_t begin) const {
  const int64_t dim = config_.dim;
  const auto add = [&](const std::vector<float>& table, int64_t index, float* x) {
    for (int64_t j = 0; j < dim; ++j) x[j] += table[index * dim + j];
  };
  for (size_t i = 0; i < tokens.size(); ++i) {
    float* x = w.x.data() + (begin + static_cast<int64_t>(i)) * dim;
    const int64_t t = positions[i];
    memcpy(x, &weights_->embed[int64_t{tokens[i]} * dim], dim * sizeof(float));
    if (config_.position == "image") {
      add(weights_->row, t / (config_.width * config_.channels), x);
      add(weights_->column, t / config_.channels % config_.width, x);
      add(weights_->channel, t % config_.channels, x);
    } else if (config_.position == "learned") {
      add(weights_->position, t, x);
    }
  }
}

void PackedModel::Project(int64_t layer, Workspace& w, int64_t begin, int64_t rows) const {
  const Layer& l = weights_->layers[layer];
  const float* x = w.x.data() + begin * config_.dim;
  if (config_.pre_norm) {
    float* y = w.y.data() + begin * config_.dim;
    LayerNorm(l.attn_norm.Parameters(), x, rows, y);
    x = y;
  }
  const int64_t width = QkvWidth(config_);
  MatMul(rows, {x, config_.dim}, l.qkv, {w.qkv.data() + begin * width, width});
}

void PackedModel::Finish(int64_t layer, Workspace& w, int64_t begin, int64_t rows) const {
  const Layer& l = weights_->layers[layer];
  const int64_t dim = config_.dim, mlp = config_.mlp_dim;
  float* x = w.x.data() + begin * dim;
  float* y = w.y.data() + begin * dim;
  float* up = w.up.data() + begin * mlp;
  const int64_t values = ValueWidth(config_);
  MatMul(rows, {w.o.data() + begin * values, values}, l.out, {y, dim});
  if (config_.pre_norm) {
    AddLayerNorm(l.mlp_norm.Parameters(), y, rows, x, y);
  } else {
    AddLayerNorm(l.attn_norm.Parameters(), y, rows, x, x);
  }
  MatMul(rows, {config_.pre_norm ? y : x, dim}, l.up, {up, mlp});
  config_.activation == "gelu" ? Gelu(up, rows * mlp, up) : Relu(up, rows * mlp, up);
  MatMul(rows, {up, mlp}, l.down, {y, dim});
  if (config_.pre_norm) {
    AddTo(y, rows * dim, x);
  } else {
    AddLayerNorm(l.mlp_norm.Parameters(), y, rows, x, x);
  }
}

void PackedModel::Head(Workspace& w, int64_t begin, int64_t rows, float* outputs) const {
  const float* x = w.x.data() + begin * config_.dim;
  float* y = w.y.data() + begin * config_.dim;
  LayerNorm(weights_->norm.Parameters(), x, rows, y);
  MatMul(rows, {y, config_.dim}, weights_->head, {outputs, config_.outputs()});
}

PackedModel::HeadViews PackedModel::Views(Workspace& w, int64_t begin, int64_t B, int64_t T) const {
  const ModelConfig& c = config_;
  const int64_t width = QkvWidth(c), keys = c.heads * c.head_dim;
  float* qkv = w.qkv.data() + begin * width;
  const auto view = [&](float* data, int64_t row, int64_t heads, int64_t channels) {
    Array a = MakeArray(data, {B, T, heads, channels});
    a.stride = {T * row, row, channels, 1};
    return a;
  };
  return {view(qkv, width, c.heads, c.head_dim), view(qkv + keys, width, c.heads, c.head_dim),
          view(qkv + 2 * keys, width, c.value_heads, c.value_dim),
          view(w.o.data() + begin * ValueWidth(c), ValueWidth(c), c.value_heads, c.value_dim)};
}

PackedModel::Tensors RandomTensors(const ModelConfig& config, uint64_t seed) {
  PackedModel::Tensors tensors;
  uint64_t stream = 0;
  for (const ParameterSpec& spec : Parameters(config)) {
    Random random(seed, stream++);
    std::vector<float>& data = tensors[spec.name];
    data.resize(ElementsOf(spec));
    const bool norm = spec.name.find("norm") != std::string::npos;
    if (norm && spec.name.ends_with("weight")) {
      std::fill(data.begin(), data.end(), 1.0f);
    } else if (!spec.name.ends_with("bias")) {
      // Uniform with deviation 0.02: an untrained transformer's.
      for (float& x : data) x = static_cast<float>((random.Uniform() - 0.5) * 0.02 * 3.4641016);
    }
  }
  return tensors;
}

}  // namespace linattn
