#pragma once

#include <torch/nn/module.h>

#include <memory>

#include "nn/attention.h"

namespace linattn::nn {

// The weights of an LSTM's direction, as LibTorch has them: gates i, f, g, o.
struct LstmDirection : torch::nn::Module {
  LstmDirection(int64_t in, int64_t hidden);
  at::Tensor weight_ih, weight_hh, bias_ih, bias_hh;  // [4 hidden, in|hidden], [4 hidden]
};

// A layer of the recurrent baseline: x + proj(LSTM(norm(x))), the LSTM bidirectional, of mlp_dim
// units a direction, LibTorch's. The baseline of Katharopoulos et al. 2020, section 4.3.
struct LstmBlock : torch::nn::Module {
  LstmBlock(const ModelConfig& config, int64_t layer);
  // x [B,T,dim], in float32 always. Masked rows must stand behind all others of their sequence.
  at::Tensor Forward(const at::Tensor& x, const Pass& pass) const;
  std::string name;  // "layers.3"
  double dropout;
  std::shared_ptr<LstmDirection> forward, backward;
  std::shared_ptr<Norm> norm;
  std::shared_ptr<Projection> proj;
};

}  // namespace linattn::nn
