#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace linattn {

// What a model is, apart from its weights. Travels as JSON in the model file's metadata.
struct ModelConfig {
  std::string task = "images";      // "images" | "text"
  int64_t height = 0, width = 0, channels = 0;  // images; token t is sub-pixel (t/(W C), t/C mod W, t mod C)
  int64_t vocab = 256;              // input symbols; the embedding has vocab + max(1, classes) rows:
  int64_t classes = 0;              // symbol, then one start token a class (or one for all)
  std::vector<std::string> class_names;         // [classes], or empty
  int64_t max_len = 0;              // longest sequence; images: height * width * channels

  int64_t dim = 256, heads = 8, value_heads = 8, head_dim = 32, value_dim = 32, mlp_dim = 1024;
  std::vector<std::string> mixers;  // one name a layer
  bool causal = true;               // false: bidirectional encoder
  std::string feature_map = "elu1"; // linear
  double attn_eps = 1e-6;           // linear
  bool pre_norm = true;             // false: post-norm
  double norm_eps = 1e-5;
  std::string activation = "gelu";  // "gelu" (exact, erf) | "relu"
  double dropout = 0;
  std::string position = "image";   // "image" (row + column + channel) | "learned" | "none"
  std::string head = "logistic_mixture";  // | "categorical"
  int64_t mixtures = 10;            // components; the head has 3 * mixtures outputs a sub-pixel
  bool tied = false;                // categorical: head.weight = embed.weight[:vocab]

  int64_t layers() const { return static_cast<int64_t>(mixers.size()); }
  int64_t outputs() const { return head == "categorical" ? vocab : 3 * mixtures; }
  int64_t start_token(int64_t label) const { return vocab + (classes > 0 ? label : 0); }
};

// Throws Error naming the field, what it must be and what it is.
void CheckConfig(const ModelConfig& config);

// Strict: an unknown or wrongly typed key is an Error. Absent keys keep their defaults.
nlohmann::json ToJson(const ModelConfig& config);
ModelConfig ConfigFromJson(const nlohmann::json& json);

// "mnist" (8 layers, T = 784) and "cifar10" (16 layers, T = 3072), the paper's; "fashion-small", what demo trains.
// Every layer gets `mixer`.
ModelConfig NamedConfig(const std::string& name, const std::string& mixer = "linear");

// Every parameter of the model with its shape, in file order:
//   embed.weight [vocab + max(1,classes), dim]
//   position.{row,column,channel}.weight [height|width|channels, dim]  or  position.weight [max_len, dim]
//   layers.{i}.attn_norm.{weight,bias} [dim]      layers.{i}.mlp_norm.{weight,bias} [dim]
//   layers.{i}.attn.{q,k,v,o}_proj.{weight,bias}  weight [out, in]
//   layers.{i}.mlp.{up,down}_proj.{weight,bias}
//   norm.{weight,bias} [dim]
//   head.weight [outputs, dim] (absent if tied)   head.bias [outputs]
// Pre-norm:  h = x + attn(attn_norm(x)), y = h + mlp(mlp_norm(h)).  Post-norm: h = attn_norm(x + attn(x)),
// y = mlp_norm(h + mlp(h)). Both end with norm, then head.
struct ParameterSpec {
  std::string name;
  std::vector<int64_t> shape;
};
std::vector<ParameterSpec> Parameters(const ModelConfig& config);

}  // namespace linattn
