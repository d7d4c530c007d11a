#include "kernels/cache_mixer.h"

#include <omp.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"

namespace linattn {

// ---- The cache ----

CacheLayout::CacheLayout(const MixerOptions& options, int64_t heads, int64_t k, int64_t v,
                         int64_t capacity)
    : HV(heads),
      K(k),
      V(v),
      slots(capacity),
      sinks(std::min(options.sinks, capacity)),
      dtype(options.cache) {
  if (options.window > 0 && options.window < capacity - sinks) slots = sinks + options.window;
}

namespace {

Array Rows(void* data, DType dtype, int64_t slots, int64_t heads, int64_t channels) {
  Array a = MakeArray(data, dtype, {1, slots, heads, channels});
  a.stride = {0, channels, slots * channels, 1};
  return a;
}

void* Row(const Array& a, int64_t h) {
  return static_cast<char*>(a.data) + h * a.stride[2] * SizeOf(a.dtype);
}

}  // namespace

Array CacheLayout::keys(float* state) const { return Rows(state, dtype, slots, HV, K); }

Array CacheLayout::values(float* state) const {
  return Rows(state + key_floats(), dtype, slots, HV, V);
}

CachedHead CacheLayout::head(float* state, int64_t h) const {
  return {Row(keys(state), h), Row(values(state), h), dtype};
}

void CheckRoom(const Mixer& mixer, const MixerOptions& options, int64_t length, int64_t tokens,
               int64_t capacity) {
  const bool ring = options.window > 0 && options.window <= capacity - options.sinks;
  Check(length >= 0 && capacity >= 0, mixer.name,
        "length and capacity must be at least 0, but are {} and {}", length, capacity);
  Check(ring || length <= capacity - tokens, mixer.name,
        "the cache must have room for {} tokens, but its capacity is {}", length + tokens,
        capacity);
}

// ---- What all of them check and do ----

float SoftmaxScale(const MixerOptions& options, int64_t K) {
  return static_cast<float>(options.scale != 0 ? options.scale
                                               : 1 / std::sqrt(static_cast<double>(K)));
}

void CheckCacheOptions(const Mixer& mixer, const MixerOptions& options) {
  Check(options.window >= 0 && options.sinks >= 0, mixer.name,
        "window and sinks must be >= 0, but are {} and {}", options.window, options.sinks);
  Check(options.window == 0 || options.causal, mixer.name,
        "a window needs causal attention, but causal is false");
  Check(options.window > 0 || options.sinks == 0, mixer.name,
        "sinks need a window, but there are {} without one", options.sinks);
  Check(options.cache == DType::kF32 || options.cache == DType::kBF16, mixer.name,
        "the cache must be F32 or BF16, but is {}", NameOf(options.cache));
}

void CheckFastInputs(const Mixer& mixer, const MixerInputs& in, const Sequences& sequences) {
  CheckCacheOptions(mixer, in.options);
  Check(in.q.dtype != DType::kF64, mixer.name,
        "q must be F32, BF16 or F16 here, but is F64 (the reference functions take it)");
  for (size_t n = 0; n < sequences.queries.size() && in.options.causal; ++n)
    Check(sequences.keys[n].length >= sequences.queries[n].length, mixer.name,
          "causal attention must have no fewer keys than queries, but sequence {} has {} keys and "
          "{} queries",
          n, sequences.keys[n].length, sequences.queries[n].length);
}

void CheckNorm(const Mixer& mixer, const MixerOutputs& out) {
  Check(out.norm.present(), mixer.name,
        "backward must be given the norm that forward wrote, but it is absent");
}

MixerDims CheckPrefill(const Mixer& mixer, const MixerInputs& in, const Array& o, int64_t length,
                       int64_t capacity) {
  const MixerDims dims = CheckInputs(mixer, in);
  CheckCacheOptions(mixer, in.options);
  const Segments& s = in.segments;
  Check(dims.B == 1 && !s.lengths.present() && !s.mask.present() && !s.boundaries.present(),
        mixer.name, "prefill must be given one sequence without masks, but has {} rows or a mask",
        dims.B);
  Check(in.options.causal && !in.options.cross, mixer.name,
        "prefill must be causal and not cross, but is not");
  CheckOutputs(mixer, dims, {.o = o, .norm = {}, .ST = {}, .zT = {}});
  CheckRoom(mixer, in.options, length, dims.T, capacity);
  return dims;
}

void ClearOutputs(const MixerDims& dims, const MixerOutputs& out,
                  const std::vector<TokenList>& tokens) {
  ZeroTokens(out.o, tokens);
  if (!out.norm.present()) return;
  for (const TokenList& list : tokens)
    for (int64_t i = 0; i < list.length; ++i)
      for (int64_t h = 0; h < dims.H; ++h)
        *out.norm.At<float>(list.row, list[i], h) = -std::numeric_limits<float>::infinity();
}

void ClearGradients(const MixerGradients& gradients, const Sequences& sequences) {
  for (const auto* lists : {&sequences.masked_q, &sequences.queries})
    ZeroTokens(gradients.d_q, *lists);
  for (const auto* lists : {&sequences.masked_k, &sequences.keys})
    for (const Array& d : {gradients.d_k, gradients.d_v}) ZeroTokens(d, *lists);
}

double CacheBytes(const MixerDims& d, bool) {
  const double queries = d.B * d.T * d.H, keys = d.B * d.S * d.HV;
  return 4.0 * (queries * (d.K + d.V + 1) + keys * (d.K + d.V));
}

namespace {

void StepShare(const StepInputs& in, const StepParts& parts) {
  for (int64_t i = 0; i < in.q.shape[0]; ++i) {
    if (parts.begin) parts.begin(in, i);
    for (int64_t h = in.share.begin; h < in.share.end; ++h) parts.head(in, i, h);
  }
}

}  // namespace

void CacheStep(const Mixer& mixer, const StepInputs& in, const StepParts& parts) {
  if (!in.share.whole()) return StepShare(in, parts);
  CheckStep(mixer, in);
  CheckCacheOptions(mixer, in.options);
  Check(in.options.causal && !in.options.cross, mixer.name,
        "a step must be causal and not cross, but is not");
  const int64_t n = in.q.shape[0], HV = in.k.shape[1], K = in.q.shape[2], V = in.v.shape[2];
  const CacheLayout cache(in.options, HV, K, V, in.capacity);
  int64_t rows = 0;
  for (int64_t i = 0; i < n; ++i) {
    CheckRoom(mixer, in.options, in.length[i], 1, in.capacity);
    rows += std::min(in.length[i] + 1, cache.slots);
  }
  for (int64_t i = 0; i < n && parts.begin; ++i) parts.begin(in, i);
  // Waking a thread costs about as much as reading this many floats.
  constexpr int64_t kFloatsWorthAThread = 1 << 15;
  const bool share = rows * in.q.shape[1] * (K + V) > 2 * kFloatsWorthAThread;
#pragma omp parallel for collapse(2) schedule(dynamic) if (share)
  for (int64_t i = 0; i < n; ++i)
    for (int64_t h = 0; h < HV; ++h) parts.head(in, i, h);
}

}  // namespace linattn
