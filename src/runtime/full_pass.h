#pragma once

#include <cstdint>
#include <span>

#include "runtime/packed_model.h"

namespace linattn {

// Whole sequences at once, without a memory: how a model scores data, how a bidirectional encoder
// runs, and the uncached baseline of generation. Owns its working memory, which grows to the
// largest call. The model must outlive it; one thread calls at a time.
class FullPass {
 public:
  enum class Positions { kAll, kLast };

  explicit FullPass(const PackedModel& model) : model_(model) {}
  const PackedModel& model() const { return model_; }

  // tokens [B,T], as Session reads them -> outputs [B,T,outputs], or of each last token
  // [B,outputs]. Valid until the next call. Throws Error if an id is out of range or T is not from
  // 1 to max_len.
  std::span<const float> Run(std::span<const int32_t> tokens, int64_t B,
                             Positions positions = Positions::kAll);
  // The same for models that read frames: [B,T,config().row_width()].
  std::span<const float> RunFrames(std::span<const float> frames, int64_t B,
                                   Positions positions = Positions::kAll);

 private:
  int64_t Length(int64_t rows, int64_t B) const;
  template <class Embed>
  std::span<const float> Layers(int64_t B, int64_t T, Positions positions, const Embed& embed);
  void Turn(int64_t B, int64_t T);
  void Mix(int64_t layer, const PackedLayer::Views& views);

  const PackedModel& model_;
  Workspace workspace_;
  FloatBuffer outputs_, scratch_;
};

}  // namespace linattn
