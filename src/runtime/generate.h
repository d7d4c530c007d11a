#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "kernels/sampler.h"
#include "runtime/packed_model.h"

namespace linattn {

inline constexpr int32_t kUnknown = -1;  // a symbol that is to be sampled

// A sequence to be made. Symbols that are known (a prompt, the visible part of a picture) stand in
// it, wherever they are, and are read instead of sampled.
struct Request {
  std::vector<int32_t> symbols;  // [1..LongestSequence], each in [0,vocab) or kUnknown
  int64_t label = 0;             // class of a conditional model
  uint64_t stream = 0;  // its random numbers are Random(seed, stream), one stream a sequence
};

struct GenerateOptions {
  uint64_t seed = 0;
  SamplerOptions sampler;  // top_k and top_p: categorical heads only
  int64_t batch = 32;      // sequences that are stepped together; the result does not depend on it
  bool cached =
      true;  // false: the whole prefix is recomputed for every token (the paper's baseline)
  // Called after every step; what it throws ends the generation.
  std::function<void(int64_t symbols_done, int64_t symbols_total)> progress;
  // Called for every sampled symbol, in the order of the sequence.
  std::function<void(size_t request, int32_t symbol)> sampled;
};

// Replaces every kUnknown. The same seed gives the same symbols whatever the batch and the thread
// count are. Throws Error before any work if a request is too long (naming both lengths), a known
// symbol or a label is out of range; and when a model's outputs are not finite, naming the token.
void Generate(const PackedModel& model, std::span<Request> requests,
              const GenerateOptions& options);

}  // namespace linattn
