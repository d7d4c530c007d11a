#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <string>
#include <vector>

#include "nn/attention.h"
#include "nn/lstm.h"

// The parts of the transformer. Their parameters are named by the tree of modules:
// "layers.0.attn.q_proj.weight".
namespace linattn::nn {

struct Embedding : torch::nn::Module {
  Embedding(int64_t rows, int64_t dim, double standard_deviation);
  at::Tensor weight;  // [rows, dim]
};

// A vector for each place in the sequence; images: the sum of a row's, a column's and a channel's.
struct Position : torch::nn::Module {
  Position(const ModelConfig& config, double standard_deviation);
  // Of Places(T, pass), [T,dim] or [B,T,dim].
  at::Tensor Forward(int64_t T, const Pass& pass) const;
  at::Tensor Table(int64_t T) const;  // [T,dim]
  int64_t width, channels;
  at::Tensor weight;  // [max_len, dim], learned positions only
  int64_t sinusoidal_dim = 0;  // 0: not sinusoidal
  mutable at::Tensor sinusoids;  // [as far as they have been asked for, dim]
  std::shared_ptr<Embedding> row, column, channel;
};

struct Mlp : torch::nn::Module {
  explicit Mlp(const ModelConfig& config);
  at::Tensor Forward(const at::Tensor& x) const;              // [B,T,dim]
  bool gelu;                                                  // else relu; without gate_proj
  std::shared_ptr<Projection> gate_proj, up_proj, down_proj;  // gate_proj: SwiGLU, else null
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
  // What the layer ".attn" or ".mlp" adds to the stream: its y of x after dropout, shown to the
  // observer.
  at::Tensor Branch(const char* part, const at::Tensor& x, at::Tensor y, const Pass& pass) const;
  std::string name;  // "layers.3"
  bool pre_norm, reversed;
  double dropout;
  std::shared_ptr<Norm> attn_norm, mlp_norm;
  std::shared_ptr<Attention> attn;
  std::shared_ptr<Mlp> mlp;
};

struct Head : torch::nn::Module {
  Head(const ModelConfig& config, double standard_deviation);
  at::Tensor weight, bias;  // [outputs, dim], undefined if tied; [outputs]
};

struct Model : torch::nn::Module {
  explicit Model(const ModelConfig& config);
  at::Tensor Forward(const at::Tensor& inputs, const Pass& pass) const;  // -> [B,T,outputs]
  Stream Layers(const at::Tensor& x, const Pass& pass) const;
  ModelConfig config;
  std::shared_ptr<Embedding> embed;   // of symbols, or
  std::shared_ptr<Projection> input;  // of frames
  std::shared_ptr<Position> position;  // null: none
  std::vector<std::shared_ptr<Block>> layers;
  std::vector<std::shared_ptr<LstmBlock>> lstm_layers;  // instead
  std::shared_ptr<Norm> norm;
  std::shared_ptr<Head> head;
};

}  // namespace linattn::nn
