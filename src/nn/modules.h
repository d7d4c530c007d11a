#pragma once

#include <torch/nn/module.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/mixer.h"
#include "model/config.h"
#include "ops/residual_norm_op.h"

// The parts of the transformer. Their parameters are named by the tree of modules:
// "layers.0.attn.q_proj.weight".
namespace linattn::nn {

// What a forward pass carries along.
struct Pass {
  at::Tensor mask{};      // [B,T] bool or undefined
  bool autocast = false;  // products and their inputs in bfloat16
  // Sees each layer's output under its name; null: nobody looks.
  std::function<void(const std::string& layer, const at::Tensor& output)> observe{};
};

// y = x W^T + b, in the dtype of x.
struct Projection : torch::nn::Module {
  Projection(int64_t in, int64_t out, double standard_deviation);
  at::Tensor Forward(const at::Tensor& x) const;
  at::Tensor weight, bias;  // [out, in], [out]
};

// Takes the residual sum along: see AddNorm. Computed in float32; y is bfloat16 if `narrow`.
struct LayerNorm : torch::nn::Module {
  LayerNorm(int64_t dim, double eps);
  NormResult Forward(const at::Tensor& x, const at::Tensor& delta, bool narrow) const;
  at::Tensor weight, bias;  // [dim]
  double eps;
};

struct Embedding : torch::nn::Module {
  Embedding(int64_t rows, int64_t dim, double standard_deviation);
  at::Tensor weight;  // [rows, dim]
};

// A vector for each place in the sequence; images: the sum of a row's, a column's and a channel's.
struct Position : torch::nn::Module {
  Position(const ModelConfig& config, double standard_deviation);
  // Of T places, [T,dim]; with a mask [B,T], of the place that each token has among those that are
  // there, [B,T,dim].
  at::Tensor Forward(int64_t T, const at::Tensor& mask) const;
  at::Tensor Table(int64_t T) const;  // [T,dim]
  int64_t width, channels;
  at::Tensor weight;  // [max_len, dim], learned positions only
  std::shared_ptr<Embedding> row, column, channel;
};

struct Attention : torch::nn::Module {
  Attention(const ModelConfig& config, const std::string& mixer);
  at::Tensor Forward(const at::Tensor& x, const Pass& pass) const;  // [B,T,dim]
  const Mixer& mixer;
  MixerOptions options;
  int64_t heads, value_heads;
  std::shared_ptr<Projection> q_proj, k_proj, v_proj, o_proj;
};

struct Mlp : torch::nn::Module {
  explicit Mlp(const ModelConfig& config);
  at::Tensor Forward(const at::Tensor& x) const;  // [B,T,dim]
  bool gelu;                                      // else relu
  std::shared_ptr<Projection> up_proj, down_proj;
};

// The residual stream, x + delta [B,T,dim]; the sum is taken by the norm that reads it. It is
// float32 under autocast too: rounding it 2 L times to 8 bits would cost more accuracy than all the
// products together.
struct Stream {
  at::Tensor x;
  at::Tensor delta;  // undefined: zero
};

struct Block : torch::nn::Module {
  Block(const ModelConfig& config, int64_t layer);
  Stream Forward(const Stream& in, const Pass& pass) const;
  // What the layer ".attn" or ".mlp" adds to the stream: y after dropout, shown to the observer.
  at::Tensor Branch(const char* part, at::Tensor y, const Pass& pass) const;
  std::string name;  // "layers.3"
  bool pre_norm;
  double dropout;
  std::shared_ptr<LayerNorm> attn_norm, mlp_norm;
  std::shared_ptr<Attention> attn;
  std::shared_ptr<Mlp> mlp;
};

struct Head : torch::nn::Module {
  Head(const ModelConfig& config, double standard_deviation);
  at::Tensor weight, bias;  // [outputs, dim], undefined if tied; [outputs]
};

struct Model : torch::nn::Module {
  explicit Model(const ModelConfig& config);
  at::Tensor Forward(const at::Tensor& tokens, const Pass& pass) const;  // [B,T] -> [B,T,outputs]
  ModelConfig config;
  std::shared_ptr<Embedding> embed;
  std::shared_ptr<Position> position;  // null: none
  std::vector<std::shared_ptr<Block>> layers;
  std::shared_ptr<LayerNorm> norm;
  std::shared_ptr<Head> head;
};

}  // namespace linattn::nn
