#include "runtime/symbol_sampler.h"

#include <cmath>

#include "base/error.h"

namespace linattn {

SymbolSampler::SymbolSampler(const ModelConfig& config, const SamplerOptions& options)
    : mixture_(config.head == "logistic_mixture"), options_(options) {
  CheckSampler(options);
  if (options_.top_k >= config.vocab) options_.top_k = 0;  // no limit: draw in symbol order
}

int32_t SymbolSampler::operator()(std::span<const float> outputs, int64_t place, Random& random) {
  if (mixture_) {
    uint8_t pixel = 0;
    SampleLogisticMixture(outputs, options_.temperature, random, {&pixel, 1});
    return pixel;
  }
  constexpr uint64_t kWords = 2;  // of a draw: one Uniform()
  random.Seek(kWords * static_cast<uint64_t>(place));
  return static_cast<int32_t>(SampleCategorical(outputs, options_, random, scratch_));
}

void CheckOutputs(std::span<const float> outputs, int64_t place, size_t sequence) {
  for (const float x : outputs) {
    Check(std::isfinite(x), "generate",
          "the model's outputs must be finite, but hold {} for token {} of sequence {}", x, place,
          sequence);
  }
}

}  // namespace linattn
