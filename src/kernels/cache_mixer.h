#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "kernels/mixer.h"
#include "kernels/softmax_kernels.h"

// The mixers that keep their tokens as one family: groups of tokens that meet in the blocked
// softmax, the layout of a cache, decoding. A mixer whose visibility depends on places alone
// (softmax, sparse) is a pattern, see pattern_mixer.h; lsh brings lists of its own.
namespace linattn {

// ---- The cache: one block of floats that can be copied, saved and forked ----

// Keys [HV,slots,K], then values [HV,slots,V], in float32 or in bfloat16, two a float. With a
// window the slots behind the first `sinks` are a ring, so that a cache never holds more than sinks
// + window tokens, however long the sequence.
struct CacheLayout {
  int64_t HV, K, V, slots, sinks;
  DType dtype;

  // `capacity` tokens, or as many as a query can see.
  CacheLayout(const MixerOptions& options, int64_t HV, int64_t K, int64_t V, int64_t capacity);

  int64_t key_floats() const { return Floats(HV * slots * K); }
  int64_t floats() const { return key_floats() + Floats(HV * slots * V); }
  Array keys(float* state) const;    // [1,slots,HV,K]
  Array values(float* state) const;  // [1,slots,HV,V]
  CachedHead head(float* state, int64_t h) const;
  int64_t Slot(int64_t t) const { return t < slots ? t : sinks + (t - sinks) % (slots - sinks); }

 private:
  int64_t Floats(int64_t n) const { return dtype == DType::kBF16 ? (n + 1) / 2 : n; }
};

// Throws unless `tokens` more fit behind `length`; a ring always has room.
void CheckRoom(const Mixer& mixer, const MixerOptions& options, int64_t length, int64_t tokens,
               int64_t capacity);

// ---- What all of them check and do ----

float SoftmaxScale(const MixerOptions& options, int64_t K);
// The window, the cache's type, causal cross-attention with fewer keys than queries.
void CheckCacheOptions(const Mixer& mixer, const MixerOptions& options);
void CheckFastInputs(const Mixer& mixer, const MixerInputs& in, const Sequences& sequences);
void CheckNorm(const Mixer& mixer, const MixerOutputs& out);  // that forward wrote one
// Prefill's arguments; returns the sizes.
MixerDims CheckPrefill(const Mixer& mixer, const MixerInputs& in, const Array& o, int64_t length,
                       int64_t capacity);
// o = 0 and norm = -inf at masked tokens; gradients 0 where nothing flows.
void ClearOutputs(const MixerDims& dims, const MixerOutputs& out,
                  const std::vector<TokenList>& tokens);
void ClearGradients(const MixerGradients& gradients, const Sequences& sequences);

// Compulsory traffic of forward.
double CacheBytes(const MixerDims& dims, bool causal);

// What a step does, after its checks: begin(in, n) for each sequence n, if there is anything to
// begin, then head(in, n, h) for each of its key/value heads h (of the share), in parallel.
struct StepParts {
  void (*begin)(const StepInputs& in, int64_t n);
  void (*head)(const StepInputs& in, int64_t n, int64_t h);
};
void CacheStep(const Mixer& mixer, const StepInputs& in, const StepParts& parts);

// ---- Descriptors ----

// What is a mixer's own.
struct CacheMixerTraits {
  std::string_view name, summary;
  bool shared_qk = false, self_only = false;
  Tolerance tolerance;
  void (*forward_ref)(const MixerInputs&, const MixerOutputs&);
  void (*backward_ref)(const MixerInputs&, const MixerOutputs&, const MixerGradients&);
  double (*flops)(const MixerDims&, bool causal);
};

constexpr Mixer CacheMixer(const CacheMixerTraits& t) {
  return {.name = t.name,
          .summary = t.summary,
          .family = Family::kCache,
          .decay = Decay::kNone,
          .write = Write::kAdd,
          .normalised = true,
          .feature_map = "",
          .shared_qk = t.shared_qk,
          .self_only = t.self_only,
          .tolerance = t.tolerance,
          .forward_ref = t.forward_ref,
          .backward_ref = t.backward_ref,
          .scratch_bytes = nullptr,
          .forward = nullptr,
          .backward = nullptr,
          .state_floats = nullptr,
          .step = nullptr,
          .shares_steps = false,
          .prefill = nullptr,
          .flops = t.flops,
          .bytes = CacheBytes};
}

}  // namespace linattn
