#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace linattn {

// What a model is, apart from its weights. Travels as JSON in the model file's metadata.
struct ModelConfig {
  std::string task = "images";  // "images" | "text" | "speech" | "copy" | "recall"
  int64_t height = 0, width = 0,
          channels = 0;  // images; token t is sub-pixel (t/(W C), t/C mod W, t mod C)
  int64_t vocab = 256;   // input symbols; the embedding has vocab + max(1, classes) rows:
  int64_t classes = 0;   // symbol, then one start token a class (or one for all)
  std::vector<std::string> class_names;  // [classes], or empty
  int64_t max_len = 0;                   // longest sequence; images: height * width * channels

  // speech: the model reads frames instead of symbols, and its vocab outputs are the units and
  // CTC's blank. Frame t is log-mel energies, less input_mean, over input_deviation; `subsample`
  // frames that follow each other are one row.
  int64_t input_features = 0;  // channels of a frame; 0: symbols
  int64_t subsample = 1;
  int64_t sample_rate = 0;                          // Hz, of the audio that frames are made of
  std::vector<double> input_mean, input_deviation;  // [input_features], or empty: 0 and 1
  std::vector<std::string> units;  // [vocab] what each output stands for, or empty: not yet known
  std::string unit_kind = "characters";  // | "phonemes": are joined by spaces
  int64_t blank = 0;                     // the unit that stands for none

  int64_t dim = 256, heads = 8, value_heads = 8, head_dim = 32, value_dim = 32, mlp_dim = 1024;
  std::vector<std::string> mixers;  // one name a layer
  // "classic": LayerNorm, MLP with `activation`, biases. "modern": RMSNorm, SwiGLU (Shazeer 2020),
  // no biases but the head's, pre-norm.
  // "lstm": instead of attention and MLP, a bidirectional LSTM of mlp_dim units a direction; for
  // comparisons, in training only.
  std::string block = "classic";
  // false: bidirectional encoder; layers whose mixer needs an order then read the rows forwards and
  // backwards in turn.
  bool causal = true;
  std::string feature_map = "elu1";  // linear
  double attn_eps = 1e-6;            // linear
  bool attn_normalise =
      true;              // linear, performer; false: no division, but scale F^-1/2 (F features)
  int64_t map_dim = 0;   // linear: a learned matrix [map_dim, head_dim] maps each head of q and k
                         // before feature_map; 0: none (hedgehog: head_dim)
  bool pre_norm = true;  // false: post-norm
  double norm_eps = 1e-5;
  std::string activation = "gelu";  // "gelu" (exact, erf) | "relu"
  double dropout = 0;
  // "image" (row + column + channel) | "learned" | "sinusoidal" (Vaswani et al. 2017) | "none"
  std::string position = "image";
  std::string head = "logistic_mixture";  // | "categorical"
  int64_t mixtures = 10;  // components; the head has 3 * mixtures outputs a sub-pixel
  bool tied = false;      // categorical: head.weight = embed.weight[:vocab]

  // Layers of state mixers. What "auto", -1 and 0 stand for follows from block and mixer:
  // model/layer.h.
  int64_t conv_size =
      -1;  // width of a causal depthwise convolution, then silu, of q, k and v; 0: none
  std::string output_norm = "auto";  // "rms": RMSNorm of each head's output | "none"
  std::string output_gate =
      "auto";                    // times g sigmoid(g): "swish" | "sigmoid" | "none"; g = g_proj x
  std::string qk_norm = "auto";  // "l2" | "none"; mixers without a normaliser
  bool negative_eigenvalues = false;   // delta rule: beta in (0,2), not (0,1)
  int64_t gate_rank = 0;               // of low-rank gates; 0: 16 (gla), value_dim (kda)
  double gate_divisor = 16;            // of logsigmoid gates (gla, simple_gla)
  double initial_decay = 16;           // largest A before training (gated_delta, kda)
  std::string decay_schedule = "own";  // of mixers with fixed decays: the mixer's own | "lightning"
  int64_t features = 0;                // random features a head (performer); 0: by head_dim
  int64_t feature_seed = 0;

  // Layers of cache mixers.
  int64_t attn_heads = 0,
          attn_head_dim = 0;   // of q, and of k and v too: 0: heads; head_dim and value_dim
  int64_t kv_heads = 0;        // of k and v; 0: as many as of q
  bool qkv_bias = false;       // in modern blocks
  int64_t attn_conv_size = 0;  // as conv_size; 0: none
  double rope_theta = 0;  // base of rotary positions, also of mixers with fixed decays; 0: none
  int64_t window = 0,
          sinks = 0;  // a query sees its last `window` keys and the first `sinks`; 0: all
  std::string cache_dtype = "f32";         // of keys and values kept while decoding: | "bf16"
  std::string sparse_pattern = "strided";  // | "fixed"
  int64_t sparse_stride = 64, sparse_summary = 8;
  int64_t lsh_rounds = 4, lsh_buckets = 32, lsh_chunk = 32, lsh_seed = 0;

  int64_t layers() const { return static_cast<int64_t>(mixers.size()); }
  int64_t outputs() const { return head == "categorical" ? vocab : 3 * mixtures; }
  bool reads_frames() const { return input_features > 0; }
  int64_t row_width() const { return input_features * subsample; }  // of stacked frames
  // Rows that `frames` frames make: the one rule for features, loss and model. The last row is
  // filled up with zeros.
  int64_t RowsOf(int64_t frames) const { return (frames + subsample - 1) / subsample; }
  int64_t start_token(int64_t label) const { return vocab + (classes > 0 ? label : 0); }
};

// Throws Error naming the field, what it must be and what it is.
void CheckConfig(const ModelConfig& config);

// Strict: an unknown or wrongly typed key is an Error. Absent keys keep their defaults.
nlohmann::json ToJson(const ModelConfig& config);
ModelConfig ConfigFromJson(const nlohmann::json& json);

// "mnist" (8 layers, T = 784) and "cifar10" (16 layers, T = 3072), the paper's; "fashion-small",
// what demo trains. `mixer`: as ExpandMixers reads it.
ModelConfig NamedConfig(const std::string& name, const std::string& mixer = "linear");

// The mixers of `layers` layers from a short form, repeated to fill them: names joined by "+" or
// ",", each with a count before it if it comes several times, as in "3x gated_delta + 1x softmax".
// Throws Error naming the part that is wrong.
std::vector<std::string> ExpandMixers(const std::string& text, int64_t layers);

}  // namespace linattn
