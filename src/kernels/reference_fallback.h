#pragma once

#include "base/error.h"
#include "kernels/mixer.h"
#include "kernels/state_mixer.h"

// How a mixer without fast functions works from its first day: by its float64 references. Arrays
// are copied into float64 and the results back; exact and slow, on one thread.
namespace linattn {

void ForwardByReference(const Mixer& mixer, const MixerInputs& in, const MixerOutputs& out);
void BackwardByReference(const Mixer& mixer, const MixerInputs& in, const MixerOutputs& out,
                         const MixerGradients& grad);
// A state mixer's step by its prefill of one token, a sequence at a time; allocates.
void StepByPrefill(const Mixer& mixer, const StepInputs& in);

// `mixer` with what its descriptor left null. Every mixer brings forward_ref and backward_ref; one
// of the cache family also step, prefill, state_floats, flops and bytes, for what its cache holds
// is its own affair. Throws Error if it does not.
template <const Mixer& mixer>
const Mixer& Filled();

// ---- Only how it is done from here on ----

template <const Mixer& mixer>
void FillStateDefaults(Mixer& m) {
  if (!m.state_floats)
    m.state_floats = [](const MixerDims& dims, const MixerOptions&, int64_t) {
      return StateFloats(mixer, dims);
    };
  if (!m.prefill)
    m.prefill = [](const MixerInputs& in, const Array& o, float* state, int64_t, int64_t) {
      StatePrefill(Filled<mixer>(), in, o, state);
    };
  if (!m.step) m.step = [](const StepInputs& in) { StepByPrefill(Filled<mixer>(), in); };
  if (!m.flops) m.flops = [](const MixerDims& dims, bool) { return StateFlops(mixer, dims); };
  if (!m.bytes) m.bytes = [](const MixerDims& dims, bool) { return StateBytes(mixer, dims); };
}

template <const Mixer& mixer>
const Mixer& Filled() {
  static const Mixer filled = [] {
    Mixer m = mixer;
    if (!m.scratch_bytes)  // some: allocators refuse to give nothing
      m.scratch_bytes = [](const MixerDims&, int) { return int64_t{64}; };
    if (!m.forward)
      m.forward = [](const MixerInputs& in, const MixerOutputs& out, void*) {
        ForwardByReference(mixer, in, out);
      };
    if (!m.backward)
      m.backward = [](const MixerInputs& in, const MixerOutputs& out, const MixerGradients& grad,
                      void*) { BackwardByReference(mixer, in, out, grad); };
    if (m.family == Family::kState) FillStateDefaults<mixer>(m);
    Check(m.forward_ref && m.backward_ref && m.step && m.prefill && m.state_floats && m.flops &&
              m.bytes,
          m.name,
          "the descriptor must have forward_ref and backward_ref (a cache mixer: also step, "
          "prefill, state_floats, flops and bytes), but one is null");
    return m;
  }();
  return filled;
}

}  // namespace linattn
