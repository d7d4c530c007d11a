#include "nn/modules.h"

#include <fmt/format.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "model/position.h"
#include "ops/gelu_op.h"
#include "ops/linear_op.h"
#include "ops/swiglu_op.h"

namespace linattn::nn {
namespace {

using at::Tensor;

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

std::shared_ptr<Norm> MakeNorm(const ModelConfig& c) {
  return std::make_shared<Norm>(c.dim, c.norm_eps, c.block == "classic");
}

}  // namespace

Embedding::Embedding(int64_t rows, int64_t dim, double standard_deviation) {
  weight = register_parameter("weight", Normal({rows, dim}, standard_deviation));
}

Position::Position(const ModelConfig& c, double standard_deviation)
    : width(c.width), channels(c.channels) {
  if (c.position == "learned") {
    weight = register_parameter("weight", Normal({c.max_len, c.dim}, standard_deviation));
    return;
  }
  if (c.position == "sinusoidal") {
    sinusoidal_dim = c.dim;
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
  if (sinusoidal_dim > 0) {
    const int64_t known = sinusoids.defined() ? sinusoids.size(0) : 0;
    if (known < T) {
      const Tensor rows = at::zeros({T, sinusoidal_dim});
      for (int64_t t = 0; t < T; ++t)
        AddSinusoid(t, sinusoidal_dim, rows.data_ptr<float>() + t * sinusoidal_dim);
      sinusoids = rows;
    }
    return sinusoids.narrow(0, 0, T);
  }
  const Tensor t = at::arange(T, at::kLong);
  const Tensor pixel = at::floor_divide(t, channels);
  return at::embedding(row->weight, at::floor_divide(pixel, width)) +
         at::embedding(column->weight, at::remainder(pixel, width)) +
         at::embedding(channel->weight, at::remainder(t, channels));
}

Tensor Position::Forward(int64_t T, const Pass& pass) const {
  if (pass.mask.defined()) return at::embedding(Table(T), Places(T, pass));
  const int64_t first = pass.carry ? pass.carry->tokens : 0;
  return Table(first + T).narrow(0, first, T);
}

Mlp::Mlp(const ModelConfig& c) : gelu(c.activation == "gelu") {
  const bool modern = c.block == "modern";
  const auto projection = [&](const char* name, int64_t in, int64_t out, double deviation) {
    return register_module(name, std::make_shared<Projection>(in, out, deviation, !modern));
  };
  const double in = InputDeviation(c.dim);
  if (modern) gate_proj = projection("gate_proj", c.dim, c.mlp_dim, in);
  up_proj = projection("up_proj", c.dim, c.mlp_dim, in);
  down_proj = projection("down_proj", c.mlp_dim, c.dim, OutputDeviation(c.mlp_dim, c.layers()));
}

Tensor Mlp::Forward(const Tensor& x) const {
  if (gate_proj) return down_proj->Forward(SwiGlu(ForwardTogether(x, {gate_proj, up_proj})));
  const Tensor up = up_proj->Forward(x);
  return down_proj->Forward(gelu ? Gelu(up) : at::relu(up));
}

Block::Block(const ModelConfig& c, int64_t layer)
    : name(fmt::format("layers.{}", layer)),
      pre_norm(c.pre_norm),
      reversed(PlanLayer(c, layer).reversed),
      dropout(c.dropout) {
  attn_norm = register_module("attn_norm", MakeNorm(c));
  mlp_norm = register_module("mlp_norm", MakeNorm(c));
  attn = register_module("attn", std::make_shared<Attention>(c, layer));
  mlp = register_module("mlp", std::make_shared<Mlp>(c));
}

Tensor Block::Branch(const char* part, const Tensor& x, Tensor y, const Pass& pass) const {
  if (dropout > 0 && is_training()) y = at::dropout(y, dropout, true);
  if (pass.observe) pass.observe(name + part, x, y);
  return y;
}

Stream Block::Forward(const Stream& in, const Pass& pass) const {
  if (pre_norm) {
    const auto first = attn_norm->Forward(in.x, in.delta, pass.autocast);
    const Tensor a = Branch(".attn", first.y, attn->Forward(first.y, pass), pass);
    const auto second = mlp_norm->Forward(first.sum, a, pass.autocast);
    return {second.sum, Branch(".mlp", second.y, mlp->Forward(second.y), pass)};
  }
  const auto narrow = [&](const Tensor& y) { return pass.autocast ? y.to(at::kBFloat16) : y; };
  const Tensor x = narrow(in.x);
  const Tensor a = Branch(".attn", x, attn->Forward(x, pass), pass);
  const Tensor h = attn_norm->Forward(in.x, a, false).y, up = narrow(h);
  const Tensor m = Branch(".mlp", up, mlp->Forward(up), pass);
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
  if (c.reads_frames()) {
    const double in = InputDeviation(c.row_width());
    input = register_module("input", std::make_shared<Projection>(c.row_width(), c.dim, in, true));
  } else {
    embed =
        register_module("embed", std::make_shared<Embedding>(c.vocab + starts, c.dim, deviation));
  }
  if (c.position != "none")
    position = register_module("position", std::make_shared<Position>(c, deviation));
  const auto list = register_module("layers", std::make_shared<torch::nn::Module>());
  for (int64_t i = 0; i < c.layers(); ++i) {
    const std::string number = std::to_string(i);
    if (c.block == "lstm")
      lstm_layers.push_back(list->register_module(number, std::make_shared<LstmBlock>(c, i)));
    else
      layers.push_back(list->register_module(number, std::make_shared<Block>(c, i)));
  }
  norm = register_module("norm", MakeNorm(c));
  head = register_module("head", std::make_shared<Head>(c, deviation));
}

Stream Model::Layers(const Tensor& x, const Pass& pass) const {
  Stream stream{x, {}};
  for (const auto& layer : lstm_layers) stream.x = layer->Forward(stream.x, pass);
  Pass turned = pass;  // as the stream stands: of reversed layers, the other way round
  const auto turn = [&] {
    for (Tensor* t : {&stream.x, &stream.delta, &turned.mask})
      if (t->defined()) *t = t->flip(1);
  };
  bool reversed = false;
  for (const auto& layer : layers) {
    if (std::exchange(reversed, layer->reversed) != layer->reversed) turn();
    stream = layer->Forward(stream, turned);
  }
  if (reversed) turn();
  return stream;
}

Tensor Model::Forward(const Tensor& tokens, const Pass& pass) const {
  const auto seen = [&](const char* layer, const Tensor& input, Tensor x) {
    if (pass.observe) pass.observe(layer, input, x);
    return x;
  };
  Tensor x = input ? input->Forward(tokens) : at::embedding(embed->weight, tokens);
  if (position) x = x + position->Forward(tokens.size(1), pass);
  if (config.dropout > 0 && is_training()) x = at::dropout(x, config.dropout, true);
  x = seen("embed", {}, x);
  const Stream stream = Layers(x, pass);
  x = seen("norm", stream.x, norm->Forward(stream.x, stream.delta, false).y);
  // In float32 also under autocast: the loss feels every bit of its inputs, and the head is small.
  const Tensor weight = config.tied ? embed->weight.narrow(0, 0, config.vocab) : head->weight;
  return seen("head", x, Linear(x, weight, head->bias));
}

}  // namespace linattn::nn
