#include "runtime/packed_model.h"

#include <string.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "base/random.h"
#include "kernels/gemm.h"
#include "kernels/layer_norm.h"
#include "model/model_file.h"
#include "model/position.h"
#include "runtime/digest.h"

namespace linattn {
namespace {

const std::vector<float>& Find(const PackedModel::Tensors& tensors, const std::string& name) {
  return tensors.find(name)->second;
}

PackedMatrix MakeHead(const ModelConfig& c, const PackedModel::Tensors& tensors) {
  // Tied: the embedding's first vocab rows.
  const std::vector<float>& weight = Find(tensors, c.tied ? "embed.weight" : "head.weight");
  return PackedMatrix::Pack(weight.data(), Find(tensors, "head.bias").data(), c.outputs(), c.dim);
}

}  // namespace

Workspace::Workspace(const ModelConfig& c, int64_t rows)
    : x(rows * c.dim), y(rows * c.dim), rows(rows), mlp_width(PackedLayer::MlpWidth(c)) {
  for (int64_t i = 0; i < c.layers(); ++i) {
    const LayerPlan plan = PlanLayer(c, i);
    row_width = std::max(row_width, RowLayout(plan).width);
    o_width = std::max(o_width, plan.output_channels());
  }
  row = FloatBuffer(rows * row_width);
  o = FloatBuffer(rows * o_width);
  up = FloatBuffer(rows * mlp_width);
}

struct PackedModel::Weights {
  std::vector<float> embed;                 // [input symbols, dim], or
  PackedMatrix input;                       // [dim, row width]
  std::vector<float> row, column, channel;  // position "image"
  std::vector<float> position;              // position "learned"
  std::vector<PackedLayer> layers;
  PackedNorm norm;
  PackedMatrix head;
};

PackedModel::PackedModel(const ModelConfig& config, const Tensors& tensors) : config_(config) {
  CheckConfig(config);
  Check(config.block != "lstm", "model",
        "a model of lstm blocks is for comparisons in training only, and does not run here");
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
  if (config.reads_frames()) {
    weights->input =
        PackedMatrix::Pack(Find(tensors, "input.weight").data(), Find(tensors, "input.bias").data(),
                           config.dim, config.row_width());
  } else {
    weights->embed = Find(tensors, "embed.weight");
  }
  if (config.position == "image") {
    weights->row = Find(tensors, "position.row.weight");
    weights->column = Find(tensors, "position.column.weight");
    weights->channel = Find(tensors, "position.channel.weight");
  } else if (config.position == "learned") {
    weights->position = Find(tensors, "position.weight");
  }
  for (int64_t i = 0; i < config.layers(); ++i) {
    weights->layers.emplace_back(config, tensors, i);
  }
  weights->norm = PackNorm(config, tensors, "norm");
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
  return config_.reads_frames() ? 0 : config_.vocab + std::max<int64_t>(1, config_.classes);
}

const PackedLayer& PackedModel::layer(int64_t layer) const { return weights_->layers[layer]; }
const Mixer& PackedModel::mixer(int64_t i) const { return *layer(i).plan().mixer; }
const MixerOptions& PackedModel::mixer_options(int64_t i) const { return layer(i).options(); }

int64_t PackedModel::CheckFrames(std::span<const float> frames) const {
  Check(config_.reads_frames(), "runtime", "the model must read frames, but reads symbols");
  const auto size = static_cast<int64_t>(frames.size()), width = config_.row_width();
  Check(size % width == 0, "runtime", "frames must be rows of {} floats, but are {} in all", width,
        size);
  return size / width;
}

void PackedModel::CheckTokens(std::span<const int32_t> tokens, int64_t first) const {
  Check(!config_.reads_frames(), "runtime", "the model must read symbols, but reads frames");
  for (size_t i = 0; i < tokens.size(); ++i) {
    const int64_t position = first + static_cast<int64_t>(i);
    const int64_t size = position == 0 ? input_symbols() : config_.vocab;
    Check(tokens[i] >= 0 && tokens[i] < size, "runtime",
          "token {} must be from 0 to {} (the model's vocabulary has {} symbols), but is {}",
          position, size - 1, config_.vocab, tokens[i]);
  }
}

void PackedModel::Embed(std::span<const int32_t> tokens, const TokenRows& rows,
                        Workspace& w) const {
  const int64_t dim = config_.dim;
  for (size_t i = 0; i < tokens.size(); ++i) {
    float* x = w.x.data() + (rows.begin + static_cast<int64_t>(i)) * dim;
    memcpy(x, &weights_->embed[int64_t{tokens[i]} * dim], dim * sizeof(float));
    AddPosition(rows.places[i], x);
  }
}

void PackedModel::EmbedFrames(const float* frames, const TokenRows& rows, Workspace& w) const {
  const int64_t dim = config_.dim, n = rows.B * rows.T;
  float* x = w.x.data() + rows.begin * dim;
  MatMul(n, {frames, config_.row_width()}, weights_->input, {x, dim});
  for (int64_t i = 0; i < n; ++i) AddPosition(rows.places[i], x + i * dim);
}

void PackedModel::AddPosition(int64_t t, float* x) const {
  const int64_t dim = config_.dim;
  const auto add = [&](const std::vector<float>& table, int64_t index) {
    for (int64_t j = 0; j < dim; ++j) x[j] += table[index * dim + j];
  };
  if (config_.position == "image") {
    add(weights_->row, t / (config_.width * config_.channels));
    add(weights_->column, t / config_.channels % config_.width);
    add(weights_->channel, t % config_.channels);
  } else if (config_.position == "learned") {
    add(weights_->position, t);
  } else if (config_.position == "sinusoidal") {
    AddSinusoid(t, dim, x);
  }
}

namespace {

// Each buffer's part from row `begin` on. It is begin rows of the widest layer away from the start,
// so that groups of rows which are in different layers at a time keep apart.
LayerRows RowsOf(const ModelConfig& c, const PackedModel::TokenRows& rows, Workspace& w) {
  LayerRows r;
  r.B = rows.B, r.T = rows.T, r.places = rows.places;
  r.x = w.x.data() + rows.begin * c.dim;
  r.y = w.y.data() + rows.begin * c.dim;
  r.row = w.row.data() + rows.begin * w.row_width;
  r.o = w.o.data() + rows.begin * w.o_width;
  r.up = w.up.data() + rows.begin * w.mlp_width;
  return r;
}

}  // namespace

PackedLayer::Views PackedModel::Before(int64_t layer, const TokenRows& rows, float* const* history,
                                       Workspace& w) const {
  LayerRows r = RowsOf(config_, rows, w);
  r.history = history;
  return weights_->layers[layer].Before(r);
}

void PackedModel::After(int64_t layer, const TokenRows& rows, Workspace& w) const {
  weights_->layers[layer].After(RowsOf(config_, rows, w));
}

void PackedModel::Head(Workspace& w, int64_t begin, int64_t rows, float* outputs) const {
  const float* x = w.x.data() + begin * config_.dim;
  float* y = w.y.data() + begin * config_.dim;
  LayerNorm(weights_->norm.Parameters(), x, rows, y);
  MatMul(rows, {y, config_.dim}, weights_->head, {outputs, config_.outputs()});
}

PackedModel::Tensors RandomTensors(const ModelConfig& config, uint64_t seed) {
  PackedModel::Tensors tensors;
  uint64_t stream = 0;
  for (const ParameterSpec& spec : Parameters(config)) {
    Random random(seed, stream++);
    std::vector<float>& data = tensors[spec.name];
    data.resize(ElementsOf(spec));
    if (!spec.trained) {
      for (float& x : data) x = static_cast<float>(random.Normal());  // a performer's features
      continue;
    }
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
