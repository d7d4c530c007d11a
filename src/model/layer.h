#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/favor_map.h"
#include "kernels/mixer.h"
#include "kernels/output_gate.h"
#include "model/config.h"

namespace linattn {

// Where the log decays g come from, x being the layer's input.
enum class DecayGate : uint8_t {
  kNone,
  kFixed,       // FixedLogDecay, by decay_schedule
  kLogSigmoid,  // logsigmoid(W x + b) / gate_divisor; W is low-rank if per channel. Yang et al.
                // 2024, "GLA"
  kSoftplus,    // -exp(A_log) softplus(W x + dt_bias), alike. Yang et al. 2025, "Gated Delta
                // Networks"
};

// What the attention of one layer is made of, every default settled. Both the trainable model and
// the runtime build from this, and from nothing else.
//
// State mixers, and what "auto" is: output_norm is "rms" for mixers without a normaliser and for
// all in modern blocks. In modern blocks conv_size is 4 (causal models), and output_gate "swish"
// with a decay, "sigmoid" with a decay per channel and the delta rule, else "none"; in classic
// blocks there is neither unless it is set. qk_norm is "l2" with the delta rule. Cache mixers have
// none of these but a convolution, by attn_conv_size.
struct LayerPlan {
  const Mixer* mixer = nullptr;
  // State mixers: heads of q and k; of v, o, g and beta. Cache mixers: of q and o; of k and v.
  int64_t heads = 0, value_heads = 0;
  int64_t head_dim = 0, value_dim = 0;  // channels of a head of q and k; of v
  // An encoder's layer whose mixer needs an order: it runs causally, over the rows from the last to
  // the first if `reversed`. Every other layer is, so that from the second on a row has seen both
  // sides; Alkin et al. 2024, "Vision-LSTM".
  bool directed = false, reversed = false;
  bool bias = false, qkv_bias = false;  // of the block's projections and norms; of q, k, v
  int64_t conv_size = 0;
  DecayGate decay_gate = DecayGate::kNone;
  int64_t decay_rank = 0;  // 0: one full matrix
  OutputGate output_gate = OutputGate::kNone;
  int64_t gate_rank = 0;  // 0: one full matrix
  bool output_norm = false;
  int64_t map_dim =
      0;  // channels behind a learned linear map, before the feature map; 0: no such map
  int64_t features = 0;  // random ones, which the model keeps
  double rope_theta = 0;

  bool state() const { return mixer->family == Family::kState; }
  bool beta() const { return mixer->write == Write::kDelta; }
  int64_t key_heads() const { return state() ? heads : value_heads; }
  int64_t output_heads() const { return state() ? value_heads : heads; }
  int64_t mixed_dim() const { return map_dim > 0 ? map_dim : head_dim; }  // K, to the mixer
  int64_t query_channels() const { return heads * head_dim; }
  int64_t key_channels() const {  // of k_proj; 0: q is k
    return mixer->shared_qk ? 0 : key_heads() * head_dim;
  }
  int64_t value_channels() const { return value_heads * value_dim; }
  int64_t output_channels() const { return output_heads() * value_dim; }
  int64_t decay_channels() const {  // of g a token; 0: no decay
    if (mixer->decay == Decay::kNone) return 0;
    return mixer->decay == Decay::kScalar ? value_heads : value_heads * head_dim;
  }
  int64_t conv_channels() const { return query_channels() + key_channels() + value_channels(); }
};

// Throws Error if the mixer is unknown. The config has passed CheckConfig or is on its way through
// it.
LayerPlan PlanLayer(const ModelConfig& config, int64_t layer);

// What the kernels are told; throws Error if a feature map is unknown. With random features
// (LayerPlan::features > 0) the caller sets feature_map to the map that it makes of the model's
// tensor.
MixerOptions OptionsOf(const ModelConfig& config, int64_t layer);

// Sizes for one token of one sequence, as Mixer::state_floats reads them.
MixerDims StateDimsOf(const ModelConfig& config, int64_t layer);

// [value_heads] g of a layer with DecayGate::kFixed, the same for every token.
std::vector<float> FixedDecayOf(const ModelConfig& config, int64_t layer);

// [features, head_dim] random features of a layer: a function of feature_seed, the layer and the
// draw, 0 being the one that a model starts with.
std::vector<float> FeaturesOf(const ModelConfig& config, int64_t layer, int64_t draw = 0);

// A layer's random features as the maps of q and k.
class RandomFeatures {
 public:
  // features [M, head_dim] is copied.
  RandomFeatures(std::span<const float> features, int64_t head_dim)
      : query_(FavorRole::kQuery, features, head_dim), key_(FavorRole::kKey, features, head_dim) {}
  void UseIn(MixerOptions& options) const {  // must outlive what the options are used for
    options.feature_map = &query_;
    options.key_map = &key_;
  }

 private:
  FavorMap query_, key_;
};

// Floats of one sequence's memory in a layer with room for `capacity` tokens (which only caches
// need): the mixer's state, then the last conv_size - 1 inputs of the convolution, [conv_size - 1,
// conv_channels], newest last. All zero: a new sequence.
int64_t StateFloats(const ModelConfig& config, int64_t layer, int64_t capacity);
// The most tokens that a sequence may have: max_len, or kEndless if there are no learned positions
// and no layer whose memory grows with its tokens, so that only training knows of max_len.
inline constexpr int64_t kEndless = int64_t{1} << 60;
int64_t LongestSequence(const ModelConfig& config);
// Bytes of one sequence's memory, all layers together.
int64_t StateBytes(const ModelConfig& config, int64_t capacity);
// Floats of a layer's memory that are the mixer's.
int64_t MixerStateFloats(const ModelConfig& config, int64_t layer, int64_t capacity);

}  // namespace linattn
