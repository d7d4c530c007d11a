#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/mixer.h"
#include "model/parameters.h"
#include "runtime/float_buffer.h"
#include "runtime/packed_layer.h"

namespace linattn {

// What threads write must lie further apart than prefetchers run ahead: two of them that take each
// other's cache lines away lose more than they do in the time (int8, batch 1: 167 -> 130 us a
// token).
struct alignas(4096) ThreadRoom {
  explicit ThreadRoom(PreparedRows rows) : prepared(std::move(rows)) {}
  PreparedRows prepared;
};

// Room for the activations of up to `rows` tokens on their way through the layers, for any number
// of threads.
struct Workspace {
  Workspace() = default;
  Workspace(const ModelConfig& config, int64_t rows);
  // Room for as many threads as OpenMP now starts; allocates only if they have become more.
  void ReserveThreads();

  FloatBuffer x;               // [rows,dim] residual stream
  FloatBuffer y;               // [rows,dim] what a projection reads
  FloatBuffer row;             // [rows,row_width] what a layer makes of a token: RowLayout
  FloatBuffer o;               // [rows,o_width] what its mixer writes
  FloatBuffer up;              // [rows,mlp_width]
  FloatBuffer attention, mlp;  // [kTerms,rows,dim] terms of what a layer adds to x
  std::vector<std::unique_ptr<ThreadRoom>> threads;
  int64_t rows = 0;
  int64_t dim = 0, row_width = 0, o_width = 0, mlp_width = 0;  // the widest layer's
};

// Weights of an untrained model: what benchmarks run.
ModelTensors RandomTensors(const ModelConfig& config, uint64_t seed);

// A model's weights, packed once for the matrix kernels. Immutable: any number of threads and
// sessions may share one. A token's numbers depend neither on the rows that pass with it nor on the
// thread count, bit for bit.
//
// `type` is that of the layers' matrices and of a categorical head. Norms, gates' second matrices,
// learned feature maps, the embedding and a mixture's head, which are small, stay float32.
class PackedModel {
 public:
  // Every tensor of Parameters(config), row-major.
  using Tensors = ModelTensors;

  // Throws Error if the config is invalid, names an unknown mixer or feature map, or a tensor is
  // missing or of a wrong size.
  PackedModel(const ModelConfig& config, const Tensors& tensors,
              WeightType type = WeightType::kFloat32);
  ~PackedModel();
  PackedModel(PackedModel&&) noexcept;

  static PackedModel Load(const std::string& path,  // a model file
                          WeightType type = WeightType::kFloat32);

  const ModelConfig& config() const { return config_; }
  WeightType type() const { return type_; }
  // Of config, weights and type; state files carry it.
  uint64_t fingerprint() const { return fingerprint_; }
  int64_t input_symbols()
      const;  // rows of the embedding: symbols and start tokens; 0: reads frames

  const PackedLayer& layer(int64_t layer) const;
  const Mixer& mixer(int64_t layer) const;
  const MixerOptions& mixer_options(int64_t layer) const;

  // What rows of the workspace from `begin` on are for B sequences of T tokens; rows(), places and
  // history are the caller's. Tokens and places have been checked by the caller.
  LayerRows RowsOf(Workspace& w, int64_t begin, int64_t B, int64_t T) const;
  void Embed(std::span<const int32_t> tokens, const LayerRows& rows) const;  // -> x
  void EmbedFrames(const float* frames, const LayerRows& rows) const;        // [rows, row_width()]
  // x -> outputs [rows, config().outputs()]: part `part` of `parts` of them. Starts no threads.
  void Head(const LayerRows& rows, int64_t part, int64_t parts, float* outputs) const;

  // The passes of a forward on whole runs of tokens, by all threads: Embed, then for each layer
  // Before, the mixer on the views that it gives, After; then Head. Steps go through the layers
  // themselves (runtime/session.cc).
  void EmbedFrames(const float* frames, const LayerRows& rows, Workspace& w) const;
  PackedLayer::Views Before(int64_t layer, const LayerRows& rows, Workspace& w) const;
  void After(int64_t layer, const LayerRows& rows, Workspace& w) const;
  void Head(const LayerRows& rows, Workspace& w, float* outputs) const;

  // Throws Error naming position, id and size unless every id is a symbol, or, at position 0 of a
  // sequence, a start token. tokens[i] stands at position first + i.
  void CheckTokens(std::span<const int32_t> tokens, int64_t first) const;
  // Throws Error unless the model reads frames and these are whole rows; returns how many.
  int64_t CheckFrames(std::span<const float> frames) const;

 private:
  void AddPosition(int64_t t, float* x) const;

  struct Weights;

  ModelConfig config_;
  WeightType type_;
  uint64_t fingerprint_ = 0;
  std::unique_ptr<const Weights> weights_;
};

}  // namespace linattn
