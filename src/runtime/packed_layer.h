#pragma once

#include <algorithm>
#include <array>
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

// The output projection and the MLP's second matrix are sums over heads and over hidden units that
// are taken in up to kTerms terms, each a matrix of its own: as many threads can share a token with
// two meetings a layer. Which terms there are depends on the layer alone, and so does the result.
constexpr int64_t kTerms = 2;

// How heads or hidden units are dealt out to terms: `each` to a term, the last may have fewer.
struct TermSplit {
  TermSplit() = default;
  TermSplit(int64_t size, int64_t multiple);
  int64_t begin(int64_t term) const { return std::min(size, term * each); }
  int64_t count() const { return (size + each - 1) / each; }

  int64_t size = 0, each = 1;
};

// The terms [begin, end) that a thread computes, and what they need of the layer.
struct LayerShare {
  int64_t begin = 0, end = kTerms;
};

// Runs of a matrix's panels, in rising order.
struct PanelRuns {
  // Of outputs [begin, end), which come in rising order; a panel that is in the list already is not
  // repeated.
  void Add(int64_t begin, int64_t end);

  struct Run {
    int64_t begin, end;
  };
  std::array<Run, 8> runs;
  size_t count = 0;
};

// `rows` = B*T tokens of B sequences on their way through a layer, and room for what a thread makes
// of them.
struct LayerRows {
  int64_t B = 0, T = 0;
  const int64_t* places = nullptr;             // [B*T] of each token in its sequence
  float* const* history = nullptr;             // [B] of the convolution; null: sequences begin here
  float* x = nullptr;                          // [rows,dim] residual stream
  float* y = nullptr;                          // [rows,dim] scratch
  float* row = nullptr;                        // [rows,layout().width]
  float* o = nullptr;                          // [rows,output channels] what the mixer writes
  float* up = nullptr;                         // [rows,mlp_width()]
  float *attention = nullptr, *mlp = nullptr;  // terms [kTerms][rows,dim], term_stride apart
  int64_t term_stride = 0;
  PreparedRows* prepared = nullptr;
  int64_t rows() const { return B * T; }
};

// One layer's weights in the order in which the kernels read them, and what a layer does, cut where
// a mixer or a meeting of threads comes between. No function starts threads. Immutable.
class PackedLayer {
 public:
  PackedLayer(const ModelConfig& config, const ModelTensors& tensors, int64_t layer,
              WeightType type);

  const LayerPlan& plan() const { return plan_; }
  const RowLayout& layout() const { return layout_; }
  const MixerOptions& options() const { return options_; }
  LayerRows Part(const LayerRows& r, int64_t begin, int64_t end) const;  // those rows, as B = 1
  int64_t products() const;                        // of weights and activations a token
  HeadShare Heads(const LayerShare& share) const;  // the mixer's; may be empty

  void Project(const LayerRows& r, const LayerShare& share) const;  // x -> row, gates
  // What needs the tokens before: of whole sequences, or (T = 1) a share of one token of each.
  void Convolve(const LayerRows& r) const;
  void ConvolveToken(const LayerRows& r, const LayerShare& share) const;
  void Turn(const LayerRows& r, const LayerShare& share) const;  // learned maps, rotary positions
  void Out(const LayerRows& r, const LayerShare& share) const;   // o -> attention
  void Mlp(const LayerRows& r, const LayerShare& share) const;   // x + attention -> mlp
  void Finish(const LayerRows& r) const;                         // x + mlp -> x

  // Appends what a thread with this share reads of the large matrices, in its order.
  void AddReads(const LayerShare& share, std::vector<PanelRange>* order);

  struct Views {
    Array q, k, v, g, beta, o;  // [B,T,heads,channels]; g, beta absent or [B,T,HV(,K)]
  };
  Views ViewsOf(const LayerRows& r) const;

  static int64_t MlpWidth(const ModelConfig& config);  // floats of `up` a token

 private:
  void PackAttention(const ModelTensors& tensors, const std::string& attn, WeightType type);
  void PlanSections();
  void PackGates(const ModelTensors& tensors, const std::string& attn);
  void PackConvolution(const ModelTensors& tensors, const std::string& attn);
  PanelRuns ProjectionRuns(const HeadShare& heads) const;
  PanelRuns MlpRuns(const LayerShare& share) const;
  void MakeGates(const LayerRows& r, const HeadShare& heads) const;
  void MapHeads(const LayerRows& r, const PackedMatrix& map, int64_t from, int64_t to,
                const HeadShare& heads) const;
  void Activate(const LayerRows& r, int64_t begin, int64_t end) const;

  // Channels of the first product that belong to key heads in turn, or (shared) to all.
  struct Section {
    int64_t begin, width;
    bool shared;
  };

  LayerPlan plan_;
  RowLayout layout_;
  MixerOptions options_;
  std::unique_ptr<const RandomFeatures> random_features_;
  std::unique_ptr<const Rotary> rotary_;  // null: no rotary positions
  int64_t dim_ = 0, mlp_dim_ = 0, key_heads_ = 0;
  bool pre_norm_ = true, swiglu_ = false, gelu_ = true;
  double gate_divisor_ = 1, beta_factor_ = 1;
  PackedNorm attn_norm_, mlp_norm_;
  std::vector<Section> sections_;
  TermSplit heads_, units_;
  PackedMatrix in_, decay_, gate_, map_q_, map_k_, up_;
  std::vector<PackedMatrix> out_, down_;  // [terms]
  std::vector<float> rate_, dt_bias_;     // [decay channels] of DecayGate::kSoftplus
  std::vector<float> fixed_decay_;        // [HV]
  std::vector<float> conv_;               // [W, convolved]
  std::vector<float> o_norm_;             // [V]
  OutputStage output_;
};

// As Mixer::forward and Mixer::prefill read them.
MixerInputs InputsOf(const PackedLayer::Views& views, const MixerOptions& options);

}  // namespace linattn
