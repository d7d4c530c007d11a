#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/mixer.h"
#include "model/layer.h"
#include "model/parameters.h"
#include "runtime/float_buffer.h"

namespace linattn {

// Room for the activations of up to `rows` tokens on their way through the layers.
struct Workspace {
  Workspace() = default;
  Workspace(const ModelConfig& config, int64_t rows);

  FloatBuffer x;    // [rows,dim] residual stream
  FloatBuffer y;    // [rows,dim] what a projection reads
  FloatBuffer qkv;  // [rows,qkv_width] q, then k, then v of each token
  FloatBuffer o;    // [rows,value_heads*value_dim]
  FloatBuffer up;   // [rows,mlp_dim]
  int64_t rows = 0;
};

// Weights of an untrained model: what benchmarks run.
std::map<std::string, std::vector<float>> RandomTensors(const ModelConfig& config, uint64_t seed);

// A model's weights, packed once for the matrix kernels. Immutable: any number of threads and
// sessions may share one. A token's numbers depend neither on the rows that pass with it nor on the
// thread count, bit for bit.
class PackedModel {
 public:
  // Every tensor of Parameters(config), row-major.
  using Tensors = std::map<std::string, std::vector<float>>;

  // Throws Error if the config is invalid, names an unknown mixer or feature map, or a tensor is
  // missing or of a wrong size.
  PackedModel(const ModelConfig& config, const Tensors& tensors);
  ~PackedModel();
  PackedModel(PackedModel&&) noexcept;

  static PackedModel Load(const std::string& path);  // a model file

  const ModelConfig& config() const { return config_; }
  // Of config and weights; state files carry it.
  uint64_t fingerprint() const { return fingerprint_; }
  int64_t input_symbols() const;  // rows of the embedding: symbols and start tokens

  const Mixer& mixer(int64_t layer) const;
  MixerOptions mixer_options() const;

  // The passes of a forward, on rows [begin, begin + rows) of `w`: Embed, then for each layer
  // Project, the mixer from qkv to o, Finish; then Head. Tokens and positions have been checked by
  // the caller.
  void Embed(std::span<const int32_t> tokens, const int64_t* positions, Workspace& w,
             int64_t begin) const;                                               // -> x
  void Project(int64_t layer, Workspace& w, int64_t begin, int64_t rows) const;  // x -> qkv
  void Finish(int64_t layer, Workspace& w, int64_t begin, int64_t rows) const;   // o -> x
  // outputs [rows, config().outputs()]
  void Head(Workspace& w, int64_t begin, int64_t rows, float* outputs) const;

  // Views of rows [begin, begin + B*T) of the workspace as q, k [B,T,H,K], v, o [B,T,HV,V].
  struct HeadViews {
    Array q, k, v, o;
  };
  HeadViews Views(Workspace& w, int64_t begin, int64_t B, int64_t T) const;

  // Throws Error naming position, id and size unless every id is a symbol, or, at position 0 of a
  // sequence, a start token. tokens[i] stands at position first + i.
  void CheckTokens(std::span<const int32_t> tokens, int64_t first) const;

 private:
  struct Weights;

  ModelConfig config_;
  uint64_t fingerprint_ = 0;
  std::unique_ptr<const Weights> weights_;
};

}  // namespace linattn
