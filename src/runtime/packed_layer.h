#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kernels/gates.h"
#include "kernels/gemm.h"
#include "kernels/layer_norm.h"
#include "kernels/output_gate.h"
#include "kernels/rotary.h"
#include "kernels/short_conv.h"
#include "model/layer.h"

namespace linattn {

using ModelTensors = std::map<std::string, std::vector<float>>;

struct PackedNorm {
  std::vector<float> weight, bias;  // no bias: RMSNorm
  float eps = 0;

  LayerNormParameters Parameters() const;
};
PackedNorm PackNorm(const ModelConfig& config, const ModelTensors& tensors,
                    const std::string& name);

// Where the numbers of a token lie in its row, in floats: first what one product gives, the outputs
// of every projection of x; behind them what is made of those. Offsets of parts that the layer does
// not have mean nothing.
struct RowLayout {
  explicit RowLayout(const LayerPlan& plan);

  int64_t q = 0, k = 0, v = 0;  // q, k and v stand together: the convolution reads them so
  int64_t decay = 0, beta = 0, gate = 0;  // as mixer and output stage read them
  int64_t decay_in = 0, gate_in = 0;      // inputs of the second half of low-rank gates
  int64_t convolved = 0;                  // channels that the convolution covers, from 0 on
  int64_t product = 0;                    // channels of the first product
  int64_t width = 0;                      // of the row
};

// `rows` = B*T tokens of B sequences on their way through a layer.
struct LayerRows {
  int64_t B = 0, T = 0;
  const int64_t* places = nullptr;  // [B*T] of each token in its sequence
  float* const* history = nullptr;  // [B] of the convolution; null: sequences begin here
  float* x = nullptr;               // [rows,dim] residual stream
  float* y = nullptr;               // [rows,dim] scratch
  float* row = nullptr;             // [rows,layout().width]
  float* o = nullptr;               // [rows,output channels] what the mixer writes
  float* up = nullptr;              // [rows,mlp_width()]
  int64_t rows() const { return B * T; }
};

// One layer's weights in the order in which the kernels read them, and its two halves: what comes
// before the mixer and what comes after it. Immutable.
class PackedLayer {
 public:
  PackedLayer(const ModelConfig& config, const ModelTensors& tensors, int64_t layer);

  const LayerPlan& plan() const { return plan_; }
  const RowLayout& layout() const { return layout_; }
  const MixerOptions& options() const { return options_; }

  struct Views {
    Array q, k, v, g, beta, o;  // [B,T,heads,channels]; g, beta absent or [B,T,HV(,K)]
  };
  Views Before(const LayerRows& r) const;  // x -> row; what the mixer reads and writes
  void After(const LayerRows& r) const;    // o -> x

  static int64_t MlpWidth(const ModelConfig& config);  // floats of `up` a token

 private:
  void PackAttention(const ModelTensors& tensors, const std::string& attn);
  void PackGates(const ModelTensors& tensors, const std::string& attn);
  void PackConvolution(const ModelTensors& tensors, const std::string& attn);
  void MakeGates(const LayerRows& r) const;
  void MapHeads(const LayerRows& r, const PackedMatrix& map, int64_t from, int64_t to,
                int64_t heads) const;
  void Mlp(const LayerRows& r, const float* from) const;
  Views ViewsOf(const LayerRows& r) const;

  LayerPlan plan_;
  RowLayout layout_;
  MixerOptions options_;
  std::unique_ptr<const RandomFeatures> random_features_;
  std::unique_ptr<const Rotary> rotary_;  // null: no rotary positions
  int64_t dim_ = 0, mlp_dim_ = 0;
  bool pre_norm_ = true, swiglu_ = false, gelu_ = true;
  double gate_divisor_ = 1, beta_factor_ = 1;
  PackedNorm attn_norm_, mlp_norm_;
  PackedMatrix in_, decay_, gate_, map_q_, map_k_, out_, up_, down_;
  std::vector<float> rate_, dt_bias_;  // [decay channels] of DecayGate::kSoftplus
  std::vector<float> fixed_decay_;     // [HV]
  std::vector<float> conv_;            // [W, convolved]
  std::vector<float> o_norm_;          // [V]
  OutputStage output_;
};

// As Mixer::forward and Mixer::prefill read them.
MixerInputs InputsOf(const PackedLayer::Views& views, const MixerOptions& options);

}  // namespace linattn
