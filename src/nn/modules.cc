#include "nn/modules.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "ops/gelu_op.h"
#include "ops/linear_op.h"
#include "ops/mix_op.h"

namespace linattn::nn {
namespace {

using at::Tensor;

Tensor Normal(at::IntArrayRef shape, double standard_deviation) {
  return at::randn(shape) * standard_deviation;
}

// Keeps the variance of x through a projection at a third, as LibTorch's own default does; the
// outputs into the residual stream are smaller, so that the sum over 2 L of them stays of the size
// of one.
double InputDeviation(int64_t in) { return 1 / std::sqrt(3.0 * static_cast<double>(in)); }
double OutputDeviation(int64_t in, int64_t layers) {
  return InputDeviation(in) / std::sqrt(2.0 * static_cast<double>(layers));
}

// Of embeddings and head. An untrained head's logits have deviation at most 1/4, so that the loss
// is within 0.04 of ln(vocab) at any width.
double TableDeviation(int64_t dim) {
  return std::min(0.02, 0.25 / std::sqrt(static_cast<double>(dim)));
}

// Mixtures start as a nearly flat density over [-1,1]: means in the middles of M equal parts, of
// scale half a part. M logits, M means, M log-scales.
Tensor HeadBias(const ModelConfig& c) {
  if (c.head == "categorical") return at::zeros({c.outputs()});
  const auto M = static_cast<double>(c.mixtures);
  const Tensor means = (at::arange(c.mixtures, at::kFloat) + 0.5) * (2 / M) - 1;
  return at::cat({at::zeros({c.mixtures}), means, at::full({c.mixtures}, std::log(1 / M))});
}

}  // namespace

Projection::Projection(int64_t in, int64_t out, double standard_deviation) {
  weight = register_parameter("weight", Normal({out, in}, standard_deviation));
  bias = register_parameter("bias", at::zeros({out}));
}

Tensor Projection::Forward(const Tensor& x) const { return Linear(x, weight, bias); }

LayerNorm::LayerNorm(int64_t dim, double eps) : eps(eps) {
  weight = register_parameter("weight", at::ones({dim}));
  bias = register_parameter("bias", at::zeros({dim}));
}

NormResult LayerNorm::Forward(const Tensor& x, const Tensor& delta, bool narrow) const {
  return AddNorm(x, delta, weight, bias, eps, narrow ? at::kBFloat16 : weight.scalar_type());
}

Embedding::Embedding(int64_t rows, int64_t dim, double standard_deviation) {
  weight = register_parameter("weight", Normal({rows, dim}, standard_deviation));
}

Position::Position(const ModelConfig& c, double standard_deviation)
    : width(c.width), channels(c.channels) {
  if (c.position == "learned") {
    weight = register_parameter("weight", Normal({c.max_len, c.dim}, standard_deviation));
    return;
  }
  const auto table = [&](int64_t rows) {
    return std::make_shared<Embedding>(rows, c.dim, standard_deviation);
  };
  row = register_module("row", table(c.height));
  column = register_module("column", table(c.width));
  channel = register_module("channel", table(c.channels));
}

Tensor Position::Table(int64_t T) const {
  if (weight.defined()) return weight.narrow(0, 0, T);
  const Tensor t = at::arange(T, at::kLong);
  const Tensor pixel = at::floor_divide(t, channels);
  return at::embedding(row->weight, at::floor_divide(pixel, width)) +
         at::embedding(column->weight, at::remainder(pixel, width)) +
         at::embedding(channel->weight, at::remainder(t, channels));
}

Tensor Position::Forward(int64_t T, const Tensor& mask) const {
  const Tensor table = Table(T);
  if (!mask.defined()) return table;
  return at::embedding(table, (mask.ne(0).cumsum(1) - 1).clamp_min(0));
}

Attention::Attention(const ModelConfig& c, const std::string& mixer_name)
    : mixer(MixerByName(mixer_name)), heads(c.heads), value_heads(c.value_heads) {
  options.causal = c.causal;
  if (mixer.family == Family::kState && mixer.normalised) {
    options.eps = c.attn_eps;
    options.feature_map = &FeatureMapByName(c.feature_map);
  }
  const auto projection = [&](const char* name, int64_t in, int64_t out, double deviation) {
    return register_module(name, std::make_shared<Projection>(in, out, deviation));
  };
  const int64_t keys = c.heads * c.head_dim, values = c.value_heads * c.value_dim;
  const double deviation = InputDeviation(c.dim);
  q_proj = projection("q_proj", c.dim, keys, deviation);
  k_proj = projection("k_proj", c.dim, keys, deviation);
  v_proj = projection("v_proj", c.dim, values, deviation);
  o_proj = projection("o_proj", values, c.dim, OutputDeviation(values, c.layers()));
}

Tensor Attention::Forward(const Tensor& x, const Pass& pass) const {
  // One product for the three: x is read once, and its gradient written once.
  const Tensor qkv = Linear(x, at::cat({q_proj->weight, k_proj->weight, v_proj->weight}),
                            at::cat({q_proj->bias, k_proj->bias, v_proj->bias}));
  const int64_t keys = q_proj->weight.size(0), values = v_proj->weight.size(0);
  const auto parts = qkv.split_with_sizes({keys, keys, values}, -1);
  const auto by_head = [](const Tensor& part, int64_t count) {
    return part.view({part.size(0), part.size(1), count, part.size(2) / count});  // [B,T,H,K]
  };
  MixTensors in;
  in.q = by_head(parts[0], heads);
  in.k = by_head(parts[1], heads);
  in.v = by_head(parts[2], value_heads);
  in.mask = pass.mask;
  in.options = options;
  in.final_state = false;
  return o_proj->Forward(Mix(mixer, in).o.flatten(2));
}

Mlp::Mlp(const ModelConfig& c) : gelu(c.activation == "gelu") {
  up_proj = register_module("up_proj",
                            std::make_shared<Projection>(c.dim, c.mlp_dim, InputDeviation(c.dim)));
  down_proj = register_module(
      "down_proj",
      std::make_shared<Projection>(c.mlp_dim, c.dim, OutputDeviation(c.mlp_dim, c.layers())));
}

Tensor Mlp::Forward(const Tensor& x) const {
  const Tensor up = up_proj->Forward(x);
  return down_proj->Forward(gelu ? Gelu(up) : at::relu(up));
}

Block::Block(const ModelConfig& c, int64_t layer)
    : name(fmt::format("layers.{}", layer)), pre_norm(c.pre_norm), dropout(c.dropout) {
  attn_norm = register_module("attn_norm", std::make_shared<LayerNorm>(c.dim, c.norm_eps));
  mlp_norm = register_module("mlp_norm", std::make_shared<LayerNorm>(c.dim, c.norm_eps));
  attn = register_module("attn", std::make_shared<Attention>(c, c.mixers[layer]));
  mlp = register_module("mlp", std::make_shared<Mlp>(c));
}

Tensor Block::Branch(const char* part, Tensor y, const Pass& pass) const {
  if (dropout > 0 && is_training()) y = at::dropout(y, dropout, true);
  if (pass.observe) pass.observe(name + part, y);
  return y;
}

Stream Block::Forward(const Stream& in, const Pass& pass) const {
  if (pre_norm) {
    const auto first = attn_norm->Forward(in.x, in.delta, pass.autocast);
    const Tensor a = Branch(".attn", attn->Forward(first.y, pass), pass);
    const auto second = mlp_norm->Forward(first.sum, a, pass.autocast);
    return {second.sum, Branch(".mlp", mlp->Forward(second.y), pass)};
  }
  const auto narrow = [&](const Tensor& y) { return pass.autocast ? y.to(at::kBFloat16) : y; };
  const Tensor a = Branch(".attn", attn->Forward(narrow(in.x), pass), pass);
  const Tensor h = attn_norm->Forward(in.x, a, false).y;
  const Tensor m = Branch(".mlp", mlp->Forward(narrow(h)), pass);
  return {mlp_norm->Forward(h, m, false).y, {}};
}

Head::Head(const ModelConfig& c, double standard_deviation) {
  if (!c.tied)
    weight = register_parameter("weight", Normal({c.outputs(), c.dim}, standard_deviation));
  bias = register_parameter("bias", HeadBias(c));
}

Model::Model(const ModelConfig& c) : config(c) {
  const double deviation = TableDeviation(c.dim);
  const int64_t starts = std::max<int64_t>(1, c.classes);
  embed = register_module("embed", std::make_shared<Embedding>(c.vocab + starts, c.dim, deviation));
  if (c.position != "none")
    position = register_module("position", std::make_shared<Position>(c, deviation));
  const auto list = register_module("layers", std::make_shared<torch::nn::Module>());
  for (int64_t i = 0; i < c.layers(); ++i)
    layers.push_back(list->register_module(std::to_string(i), std::make_shared<Block>(c, i)));
  norm = register_module("norm", std::make_shared<LayerNorm>(c.dim, c.norm_eps));
  head = register_module("head", std::make_shared<Head>(c, deviation));
}

Tensor Model::Forward(const Tensor& tokens, const Pass& pass) const {
  const auto seen = [&](const char* layer, Tensor x) {
    if (pass.observe) pass.observe(layer, x);
    return x;
  };
  Tensor x = at::embedding(embed->weight, tokens);
  if (position) x = x + position->Forward(tokens.size(1), pass.mask);
  if (config.dropout > 0 && is_training()) x = at::dropout(x, config.dropout, true);
  x = seen("embed", x);
  Stream stream{x, {}};
  for (const auto& layer : layers) stream = layer->Forward(stream, pass);
  x = seen("norm", norm->Forward(stream.x, stream.delta, false).y);
  // In float32 also under autocast: the loss feels every bit of its inputs, and the head is small.
  const Tensor weight = config.tied ? embed->weight.narrow(0, 0, config.vocab) : head->weight;
  return seen("head", Linear(x, weight, head->bias));
}

}  // namespace linattn::nn
