#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "model/config.h"

namespace at {
class Tensor;
}

namespace linattn {

struct Carry;  // nn/carry.h

// The model of model/config.h as a trainable LibTorch module: causal decoder or bidirectional
// encoder. Its tensors have the names, shapes and order of Parameters(config).
//
// Initial weights: projections normal(0, 1/sqrt(3 in)), those that write into the residual stream
// (o_proj, down_proj) divided by sqrt(2 L); embeddings, positions and head normal(0, min(0.02, 1/(4
// sqrt(dim)))); biases 0; norms 1 and 0. So an untrained categorical model has a loss of ln(vocab).
// The bias of the mixture head spreads the means over [-1,1] and makes each component half as wide
// as their spacing, a nearly flat density: about 8 bits a sub-pixel. Convolutions uniform(-1, 1)/
// sqrt(W); learned feature maps the identity; A_log the log of uniform(0, 16), in kda of (1, 16);
// dt_bias such that softplus gives a log-uniform step in [1e-3, 1e-1]; random features by
// feature_seed.
class Transformer {
 public:
  // Draws weights from torch's default generator (torch::manual_seed). Throws Error as CheckConfig
  // does.
  explicit Transformer(const ModelConfig& config);
  ~Transformer();
  Transformer(Transformer&&) noexcept;
  Transformer& operator=(Transformer&&) noexcept;

  const ModelConfig& config() const;

  // tokens [B,T] int64 (of models that read frames: [B,T,row_width] floats), T <= max_len: what the model reads, so for training the start token
  // followed by symbols 0..T-2. mask: null, or [B,T] bool, nonzero where there is a token (padding
  // on either side or within). Returns [B,T,outputs], float32 (float64 after ToFloat64); rows that
  // are masked out hold nothing of use.
  // carry: null, or what came before these tokens, which the call brings up to date: pieces of a
  // sequence one after the other give the same as all of it at once. Then there is no mask, and all
  // mixers keep a state.
  at::Tensor Forward(const at::Tensor& tokens, const at::Tensor* mask = nullptr,
                     Carry* carry = nullptr);

  void SetTraining(bool on);  // dropout is active; a new model is in training mode
  // Activations and products in bfloat16, with float32 weights, norms, residual stream, states and
  // outputs.
  void SetAutocast(bool on);
  void ToFloat64();  // for gradient checks

  // Leaf tensors that require gradients, in file order; they share memory with the model. The
  // others (random features) are drawn anew, the same, by the config's feature_seed.
  std::vector<std::pair<std::string, at::Tensor>> NamedParameters() const;

  // Draws the random features of all layers anew, a function of feature_seed and `draw`; 0: those
  // of the beginning. Not between a forward pass and its backward.
  void RedrawFeatures(int64_t draw);

  // Where the first NaN or infinity of a forward pass (in evaluation mode, without gradients)
  // arises: the name of a parameter ("layers.2.mlp.up_proj.weight"), else of the first layer whose
  // output holds one
  // ("layers.2.mlp"), else "".
  std::string FirstNonFinite(const at::Tensor& tokens, const at::Tensor* mask = nullptr);

  // How far the attention of each layer is from that of `teacher`, which has as many layers of the
  // same width, when both read what the teacher's layer reads: [L], sum |y - y_teacher|^2 / sum
  // |y_teacher|^2 over the rows that are there. Gradients reach this model's attention only. The
  // teacher should be in evaluation mode. (The loss of attention transfer in Zhang et al. 2024,
  // "LoLCATs", here by the teacher's size.)
  at::Tensor AttentionDistance(const Transformer& teacher, const at::Tensor& tokens,
                               const at::Tensor* mask = nullptr) const;

  // Weights as the model file keeps them: name and row-major float32 data, in file order. Import
  // throws Error if a name or a size is not the model's, before anything is changed.
  using Weights = std::vector<std::pair<std::string, std::vector<float>>>;
  Weights Export() const;
  void Import(const Weights& weights);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace linattn
