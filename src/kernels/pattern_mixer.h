#pragma once

#include <cstdint>
#include <vector>

#include "kernels/cache_mixer.h"

// Mixers that keep their tokens and whose visibility depends on places alone: what tells one from
// another is a Pattern, and everything else is here.
namespace linattn {

// Lists of a sequence's tokens by place, and what each query of the list sees of the list of keys.
// An empty list stands for the sequence's own order.
struct PatternLists {
  std::vector<int64_t> queries, keys;
  std::vector<int64_t> first, end;  // [queries], see Visibility
  int64_t sinks = 0;
};

struct Pattern {
  int64_t kinds;  // query head h is of kind h % kinds
  void (*check)(const MixerOptions& options);
  // T queries, the last of S places if causal. Every query stands in its list once.
  PatternLists (*lists)(const MixerOptions& options, int64_t T, int64_t S, int64_t kind);
  // Gives the reader every place of a cache that token `length` sees, which it holds already.
  void (*read)(const MixerOptions& options, const CacheLayout& cache, int64_t length, int64_t kind,
               CacheReader& reader);
};

int64_t PatternScratchBytes(const MixerDims& dims, int threads);
void PatternForward(const Mixer& mixer, const Pattern& pattern, const MixerInputs& in,
                    const MixerOutputs& out, void* scratch);
void PatternBackward(const Mixer& mixer, const Pattern& pattern, const MixerInputs& in,
                     const MixerOutputs& out, const MixerGradients& gradients, void* scratch);
void PatternPrefill(const Mixer& mixer, const Pattern& pattern, const MixerInputs& in,
                    const Array& o, float* state, int64_t length, int64_t capacity);
void PatternStepHead(const Pattern& pattern, const StepInputs& in, int64_t n, int64_t h);

// The descriptor of a pattern; `mixer` is the variable that it becomes:
//
//     constinit const Mixer k_softmax = PatternMixer<k_softmax, kPattern>({.name = "softmax",
//     ...});
template <const Mixer& mixer, const Pattern& pattern>
constexpr Mixer PatternMixer(const CacheMixerTraits& traits) {
  Mixer m = CacheMixer(traits);
  m.scratch_bytes = PatternScratchBytes;
  m.forward = [](const MixerInputs& in, const MixerOutputs& out, void* scratch) {
    PatternForward(mixer, pattern, in, out, scratch);
  };
  m.backward = [](const MixerInputs& in, const MixerOutputs& out, const MixerGradients& gradients,
                  void* scratch) { PatternBackward(mixer, pattern, in, out, gradients, scratch); };
  m.state_floats = [](const MixerDims& d, const MixerOptions& options, int64_t capacity) {
    return CacheLayout(options, d.HV, d.K, d.V, capacity).floats();
  };
  m.step = [](const StepInputs& in) {
    pattern.check(in.options);
    CacheStep(mixer, in,
              {.begin = nullptr, .head = [](const StepInputs& step, int64_t n, int64_t h) {
                 PatternStepHead(pattern, step, n, h);
               }});
  };
  m.shares_steps = true;
  m.prefill = [](const MixerInputs& in, const Array& o, float* state, int64_t length,
                 int64_t capacity) {
    PatternPrefill(mixer, pattern, in, o, state, length, capacity);
  };
  return m;
}

}  // namespace linattn
