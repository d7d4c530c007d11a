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

 private:
  void Mix(int64_t layer, const PackedLayer::Views& views);

  const PackedModel& model_;
  Workspace workspace_;
  FloatBuffer outputs_, scratch_;
};

}  // namespace linattn
