#include "runtime/packed_model.h"

#include <omp.h>
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

constexpr int64_t kBlockRows =
    8 * PreparedRows::kTileRows;  // what a thread makes of them stays in L2

const std::vector<float>& Find(const PackedModel::Tensors& tensors, const std::string& name) {
  return tensors.find(name)->second;
}

// What of the config tells one model that runs from another: what stands at its default is left
// out, so that fields which are new change no old model, and so is what only training reads.
std::string Described(const ModelConfig& config) {
  nlohmann::json json = ToJson(config);
  const nlohmann::json defaults = ToJson(ModelConfig());
  for (const auto& [key, value] : defaults.items()) {
    if (json[key] == value) json.erase(key);
  }
  for (const char* key : {"dropout", "initial_decay"}) json.erase(key);
  return json.dump();
}

PackedMatrix MakeHead(const ModelConfig& c, const PackedModel::Tensors& tensors, WeightType type) {
  if (c.head != "categorical") type = WeightType::kFloat32;
  // Tied: the embedding's first vocab rows.
  const std::vector<float>& weight = Find(tensors, c.tied ? "embed.weight" : "head.weight");
  return PackedMatrix::Pack(weight.data(), Find(tensors, "head.bias").data(), c.outputs(), c.dim,
                            type);
}

// Each panel where it first comes.
std::vector<PanelRange> Distinct(const std::vector<PanelRange>& all) {
  std::map<PackedMatrix*, std::vector<bool>> seen;
  std::vector<PanelRange> order;
  for (const PanelRange& run : all) {
    std::vector<bool>& panels = seen[run.matrix];
    panels.resize(static_cast<size_t>(run.matrix->panels()));
    for (int64_t p = run.begin; p < run.end; ++p) {
      if (panels[p]) continue;
      panels[p] = true;
      order.push_back({run.matrix, p, p + 1});
    }
  }
  return order;
}

// The weights of all layers in the order in which the threads of a shared step read them.
void LayOutForSteps(std::vector<PackedLayer>& layers, PackedMatrix& head) {
  std::vector<PanelRange> order;
  for (int64_t t = 0; t < kTerms; ++t) {
    for (PackedLayer& layer : layers) layer.AddReads({t, t + 1}, &order);
    if (t == 0) order.push_back({&head, 0, head.panels()});
  }
  LayOut(Distinct(order));
}

}  // namespace

Workspace::Workspace(const ModelConfig& c, int64_t rows)
    : x(rows * c.dim),
      y(rows * c.dim),
      attention(kTerms * rows * c.dim),
      mlp(kTerms * rows * c.dim),
      rows(rows),
      dim(c.dim),
      mlp_width(PackedLayer::MlpWidth(c)) {
  for (int64_t i = 0; i < c.layers(); ++i) {
    const LayerPlan plan = PlanLayer(c, i);
    row_width = std::max(row_width, RowLayout(plan).width);
    o_width = std::max(o_width, plan.output_channels());
  }
  row = FloatBuffer(rows * row_width);
  o = FloatBuffer(rows * o_width);
  up = FloatBuffer(rows * mlp_width);
  ReserveThreads();
}

void Workspace::ReserveThreads() {
  const auto count = static_cast<size_t>(omp_get_max_threads());
  const int64_t most = std::max({dim, row_width, o_width, mlp_width});
  while (threads.size() < count)
    threads.push_back(std::make_unique<ThreadRoom>(PreparedRows(std::min(rows, kBlockRows), most)));
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

PackedModel::PackedModel(const ModelConfig& config, const Tensors& tensors, WeightType type)
    : config_(config), type_(type) {
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
  const std::string text = Described(config);
  fingerprint_ = Digest(fingerprint_, text.data(), text.size());
  // What float32 weights remember is what it was before there were others.
  if (type != WeightType::kFloat32) fingerprint_ = Digest(fingerprint_, &type, sizeof type);
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
    weights->layers.emplace_back(config, tensors, i, type);
  }
  weights->norm = PackNorm(config, tensors, "norm");
  weights->head = MakeHead(config, tensors, type);
  LayOutForSteps(weights->layers, weights->head);
  weights_ = std::move(weights);
}

PackedModel::~PackedModel() = default;
PackedModel::PackedModel(PackedModel&&) noexcept = default;

PackedModel PackedModel::Load(const std::string& path, WeightType type) {
  const ModelFile file = LoadModel(path);
  return PackedModel(file.config, file.tensors, type);
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

void PackedModel::Embed(std::span<const int32_t> tokens, const LayerRows& rows) const {
  const int64_t dim = config_.dim;
  for (size_t i = 0; i < tokens.size(); ++i) {
    float* x = rows.x + static_cast<int64_t>(i) * dim;
    memcpy(x, &weights_->embed[int64_t{tokens[i]} * dim], dim * sizeof(float));
    AddPosition(rows.places[i], x);
  }
}

void PackedModel::EmbedFrames(const float* frames, const LayerRows& r) const {
  const PackedMatrix& input = weights_->input;
  r.prepared->Prepare(input.type(), r.rows(), input.in(), {frames, input.in()});
  MatMulPanels(*r.prepared, input, {0, input.panels()}, {r.x, config_.dim});
  for (int64_t i = 0; i < r.rows(); ++i) AddPosition(r.places[i], r.x + i * config_.dim);
}

void PackedModel::AddPosition(int64_t t, float* x) const {
  const int64_t dim = config_.dim;
  const auto add = [&](const std::vector<float>& table, int64_t index) {
    for (int64_t j = 0; j < dim; ++j) x[j] += table[index * dim + j];
  };
  if (!weights_->row.empty()) {
    add(weights_->row, t / (config_.width * config_.channels));
    add(weights_->column, t / config_.channels % config_.width);
    add(weights_->channel, t % config_.channels);
  } else if (!weights_->position.empty()) {
    add(weights_->position, t);
  } else if (config_.position == "sinusoidal") {
    AddSinusoid(t, dim, x);
  }
}

// Each buffer's part from row `begin` on. It is begin rows of the widest layer away from the start,
// so that groups of rows which are in different layers at a time keep apart.
LayerRows PackedModel::RowsOf(Workspace& w, int64_t begin, int64_t B, int64_t T) const {
  LayerRows r;
  r.B = B, r.T = T;
  r.x = w.x.data() + begin * w.dim;
  r.y = w.y.data() + begin * w.dim;
  r.row = w.row.data() + begin * w.row_width;
  r.o = w.o.data() + begin * w.o_width;
  r.up = w.up.data() + begin * w.mlp_width;
  r.attention = w.attention.data() + begin * w.dim;
  r.mlp = w.mlp.data() + begin * w.dim;
  r.term_stride = w.rows * w.dim;
  return r;
}

void PackedModel::Head(const LayerRows& r, int64_t part, int64_t parts, float* outputs) const {
  const PackedMatrix& head = weights_->head;
  LayerNorm(weights_->norm.Parameters(), r.x, r.rows(), r.y);
  r.prepared->Prepare(head.type(), r.rows(), head.in(), {r.y, config_.dim});
  const int64_t panels = head.panels();
  MatMulPanels(*r.prepared, head, {part * panels / parts, (part + 1) * panels / parts},
               {outputs, config_.outputs()});
}

namespace {

// run(block, first) for runs of the rows of a layer, by all threads.
template <class Run>
void ForEachBlock(const PackedLayer& layer, const LayerRows& r, Workspace& w, const Run& run) {
  const int64_t rows = r.rows(), threads = omp_get_max_threads();
  const int64_t blocks = std::max((rows + kBlockRows - 1) / kBlockRows,
                                  std::min(threads, rows / PreparedRows::kTileRows));
  w.ReserveThreads();
  constexpr int64_t kParallelWork = 1 << 18;  // products that repay the start of a team
#pragma omp parallel for schedule(dynamic) if (blocks > 1 && \
                                               rows * layer.products() > kParallelWork)
  for (int64_t i = 0; i < blocks; ++i) {
    const int64_t begin = i * rows / blocks, end = (i + 1) * rows / blocks;
    LayerRows block = layer.Part(r, begin, end);
    block.prepared = &w.threads[omp_get_thread_num()]->prepared;
    run(block, begin);
  }
}

}  // namespace

PackedLayer::Views PackedModel::Before(int64_t i, const LayerRows& r, Workspace& w) const {
  const PackedLayer& layer = weights_->layers[i];
  ForEachBlock(layer, r, w, [&](const LayerRows& block, int64_t) { layer.Project(block, {}); });
  layer.Convolve(r);
  ForEachBlock(layer, r, w, [&](const LayerRows& block, int64_t) { layer.Turn(block, {}); });
  return layer.ViewsOf(r);
}

void PackedModel::After(int64_t i, const LayerRows& r, Workspace& w) const {
  const PackedLayer& layer = weights_->layers[i];
  ForEachBlock(layer, r, w, [&](const LayerRows& block, int64_t) {
    layer.Out(block, {});
    layer.Mlp(block, {});
    layer.Finish(block);
  });
}

void PackedModel::EmbedFrames(const float* frames, const LayerRows& r, Workspace& w) const {
  ForEachBlock(layer(0), r, w, [&](const LayerRows& block, int64_t first) {
    EmbedFrames(frames + first * config_.row_width(), block);
  });
}

void PackedModel::Head(const LayerRows& r, Workspace& w, float* outputs) const {
  ForEachBlock(layer(0), r, w, [&](const LayerRows& block, int64_t first) {
    Head(block, 0, 1, outputs + first * config_.outputs());
  });
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
