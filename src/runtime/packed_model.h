#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/mixer.h"
#include "model/parameters.h"
#include "runtime/float_buffer.h"
#include "runtime/packed_layer.h"

namespace linattn {

// Room for the activations of up to `rows` tokens on their way through the layers.
struct Workspace {
  Workspace() = default;
  Workspace(const ModelConfig& config, int64_t rows);

  FloatBuffer x;    // [rows,dim] residual stream
  FloatBuffer y;    // [rows,dim] what a projection reads
  FloatBuffer row;  // [rows,row_width] what a layer makes of a token: RowLayout
  FloatBuffer o;    // [rows,o_width] what its mixer writes
  FloatBuffer up;   // [rows,mlp_width]
  int64_t rows = 0;
  int64_t row_width = 0, o_width = 0, mlp_width = 0;  // the widest layer's
};

// Weights of an untrained model: what benchmarks run.
ModelTensors RandomTensors(const ModelConfig& config, uint64_t seed);

// A model's weights, packed once for the matrix kernels. Immutable: any number of threads and
// sessions may share one. A token's numbers depend neither on the rows that pass with it nor on the
// thread count, bit for bit.
class PackedModel {
 public:
  // Every tensor of Parameters(config), row-major.
  using Tensors = ModelTensors;

  // Throws Error if the config is invalid, names an unknown mixer or feature map, or a tensor is
  // missing or of a wrong size.
  PackedModel(const ModelConfig& config, const Tensors& tensors);
  ~PackedModel();
  PackedModel(PackedModel&&) noexcept;

  static PackedModel Load(const std::string& path);  // a model file

  const ModelConfig& config() const { return config_; }
  // Of config and weights; state files carry it.
  uint64_t fingerprint() const { return fingerprint_; }
  int64_t input_symbols()
      const;  // rows of the embedding: symbols and start tokens; 0: reads frames

  const PackedLayer& layer(int64_t layer) const;
  const Mixer& mixer(int64_t layer) const;
  const MixerOptions& mixer_options(int64_t layer) const;

  // The passes of a forward on tokens of the workspace: Embed, then for each layer Before, the
  // mixer on the views that it gives, After; then Head. Tokens and places have been checked by the
  // caller.
  struct TokenRows {
    int64_t begin = 0, B = 0, T = 0;  // rows [begin, begin + B*T): T tokens of B sequences
    const int64_t* places = nullptr;  // [B*T] of each token in its sequence
  };
  void Embed(std::span<const int32_t> tokens, const TokenRows& rows, Workspace& w) const;  // -> x
  // frames [B*T, config().row_width()]: of models that read frames.
  void EmbedFrames(const float* frames, const TokenRows& rows, Workspace& w) const;
  // history: of the layer's convolution, a pointer a sequence; null: the sequences begin here.
  PackedLayer::Views Before(int64_t layer, const TokenRows& rows, float* const* history,
                            Workspace& w) const;
  void After(int64_t layer, const TokenRows& rows, Workspace& w) const;
  // Of rows [begin, begin + rows): outputs [rows, config().outputs()]
  void Head(Workspace& w, int64_t begin, int64_t rows, float* outputs) const;

  // Throws Error naming position, id and size unless every id is a symbol, or, at position 0 of a
  // sequence, a start token. tokens[i] stands at position first + i.
  void CheckTokens(std::span<const int32_t> tokens, int64_t first) const;
  // Throws Error unless the model reads frames and these are whole rows; returns how many.
  int64_t CheckFrames(std::span<const float> frames) const;

 private:
  void AddPosition(int64_t t, float* x) const;

  struct Weights;

  ModelConfig config_;
  uint64_t fingerprint_ = 0;
  std::unique_ptr<const Weights> weights_;
};

}  // namespace linattn
