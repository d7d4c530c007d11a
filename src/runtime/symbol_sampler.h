#pragma once

#include <cstdint>
#include <span>

#include "base/random.h"
#include "kernels/sampler.h"
#include "model/config.h"

namespace linattn {

// Draws symbols from a model's outputs, by its head.
class SymbolSampler {
 public:
  // Throws Error for options out of range.
  SymbolSampler(const ModelConfig& config, const SamplerOptions& options);

  // The symbol at `place` of a sequence whose numbers are `random`'s. A categorical head's are
  // those at its place, so that a sequence which is continued draws as one that was never
  // interrupted.
  int32_t operator()(std::span<const float> outputs, int64_t place, Random& random);

 private:
  bool mixture_;
  SamplerOptions options_;
  SamplerScratch scratch_;
};

// Throws Error naming the place if an output is not finite.
void CheckOutputs(std::span<const float> outputs, int64_t place, size_t sequence);

}  // namespace linattn
