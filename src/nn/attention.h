#pragma once

#include <torch/nn/module.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/rotary.h"
#include "model/layer.h"
#include "nn/carry.h"
#include "nn/projection.h"
#include "ops/mix_op.h"

namespace linattn::nn {

// What a forward pass carries along.
struct Pass {
  at::Tensor mask{};       // [B,T] bool or undefined
  bool autocast = false;   // products and their inputs in bfloat16
  Carry* carry = nullptr;  // read and replaced, its count of tokens apart; null: there is none
  // Sees each layer's input (undefined of "embed") and output under its name; null: nobody looks.
  std::function<void(const std::string& layer, const at::Tensor& input, const at::Tensor& output)>
      observe{};
};

// Of each token the place among those of its row that are there: [T], or [B,T] with a mask.
at::Tensor Places(int64_t T, const Pass& pass);

// A projection of full or of low rank, y = second(first(x)); the second's input is the first's
// output.
struct GatePath {
  std::shared_ptr<Projection> first, second;  // null: there is none
  at::Tensor Finish(const at::Tensor& y) const { return second ? second->Forward(y) : y; }
};

// One filter a channel, [channels, 1, W].
struct Filter : torch::nn::Module {
  Filter(int64_t channels, int64_t width);
  at::Tensor weight;
};

// The token mixing of one layer: its mixer, and all that LayerPlan puts around it.
struct Attention : torch::nn::Module {
  Attention(const ModelConfig& config, int64_t layer);
  at::Tensor Forward(const at::Tensor& x, const Pass& pass) const;  // [B,T,dim]
  void RedrawFeatures(const ModelConfig& config, int64_t draw);
  void FeaturesChanged();  // the tensor `features` has been written into

 private:
  struct Projected {
    at::Tensor qkv{}, decay{}, beta{}, gate{};  // [B,T,channels]; logits
  };
  struct Heads {
    at::Tensor q{}, k{}, v{};  // [B,T,heads,channels]
    PackedHeads packed{};      // instead of them, where nothing stands before the mixer
  };
  GatePath AddGate(const std::string& name, int64_t out, int64_t rank, bool with_bias);
  void AddGates(const ModelConfig& config);
  void AddSoftplusParameters(double initial_decay);
  void AddFilters();
  void AddFeatureMaps();
  Projected Project(const at::Tensor& x) const;
  at::Tensor Convolved(const at::Tensor& qkv, const Pass& pass) const;
  Heads ByHead(const at::Tensor& qkv, const Pass& pass) const;
  at::Tensor LogDecay(const at::Tensor& logits, const at::Tensor& x) const;
  at::Tensor Output(const at::Tensor& o, const at::Tensor& gate) const;

  LayerPlan plan_;
  MixerOptions options_;
  std::unique_ptr<RandomFeatures> random_features_;
  std::shared_ptr<const Rotary> rotary_;
  int64_t layer_ = 0, dim_ = 0;
  double gate_divisor_ = 1, beta_factor_ = 1;
  at::Tensor A_log_, dt_bias_, features_;  // undefined: there is none
  at::Tensor fixed_decay_;                 // [HV]; not a parameter
  std::shared_ptr<Projection> q_proj_, k_proj_, v_proj_, b_proj_, o_proj_;
  GatePath decay_, gate_;
  std::shared_ptr<Filter> q_conv_, k_conv_, v_conv_;
  std::shared_ptr<Projection> feature_map_q_, feature_map_k_;
  std::shared_ptr<Norm> o_norm_;
};

}  // namespace linattn::nn
