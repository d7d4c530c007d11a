#pragma once

#include "kernels/mixer.h"
#include "kernels/state_ref.h"
#include "kernels/state_step.h"

// The state mixers as one family: everything that the policies of a descriptor (decay, write,
// normalised) decide, so that mixers/<name>.cc holds a descriptor and nothing else.
namespace linattn {

// What tells one state mixer from another.
struct StateMixerTraits {
  std::string_view name, summary;
  Decay decay = Decay::kNone;
  Write write = Write::kAdd;
  bool normalised = false;
  std::string_view feature_map = "identity";  // the default
  double (*fixed_decay)(int64_t head, int64_t heads) = nullptr;
  Tolerance tolerance = {.forward = 5e-6,
                         .backward = 2e-5,
                         .reason = "float32 sums over T tokens, regrouped by chunk"};
};

// Options with their defaults filled in: the maps of q and k, and the scale on phi(q), which is 1
// for normalised mixers and K^-1/2 for the others.
const FeatureMap& QueryMap(const Mixer& mixer, const MixerOptions& options);
const FeatureMap& KeyMap(const Mixer& mixer, const MixerOptions& options);
double ScaleOf(const Mixer& mixer, const MixerOptions& options, int64_t K);

// The functions of the contract (kernels/mixer.h), for the policies of `mixer`. Arrays of the fast
// ones are F32, BF16 or F16; each throws Error for what it would misread. Forward and Backward need
// StateScratchBytes of scratch; Prefill allocates it. The chunkwise algorithm is in chunk.h, (1) to
// (18) and onwards of docs/mixers.md.
int64_t StateScratchBytes(const Mixer& mixer, const MixerDims& dims, int threads);
void StateForward(const Mixer& mixer, const MixerInputs& in, const MixerOutputs& out,
                  void* scratch);
void StateBackward(const Mixer& mixer, const MixerInputs& in, const MixerOutputs& out,
                   const MixerGradients& grad, void* scratch);
// Through mixer.forward, from `state` and into it.
void StatePrefill(const Mixer& mixer, const MixerInputs& in, const Array& o, float* state);
int64_t StateFloats(const Mixer& mixer, const MixerDims& dims);
double StateFlops(const Mixer& mixer, const MixerDims& dims);
double StateBytes(const Mixer& mixer, const MixerDims& dims);

// The descriptor of `traits`; `mixer` is the variable that it becomes:
//
//     constinit const Mixer k_gla = StateMixer<k_gla>({.name = "gla", ...});
template <const Mixer& mixer>
constexpr Mixer StateMixer(const StateMixerTraits& traits) {
  return {
      .name = traits.name,
      .summary = traits.summary,
      .family = Family::kState,
      .decay = traits.decay,
      .write = traits.write,
      .normalised = traits.normalised,
      .feature_map = traits.feature_map,
      .fixed_decay = traits.fixed_decay,
      .causal_only = traits.decay != Decay::kNone || traits.write == Write::kDelta,
      .tolerance = traits.tolerance,
      .forward_ref = [](const MixerInputs& in,
                        const MixerOutputs& out) { StateForwardRef(mixer, in, out); },
      .backward_ref = [](const MixerInputs& in, const MixerOutputs& out,
                         const MixerGradients& grad) { StateBackwardRef(mixer, in, out, grad); },
      .scratch_bytes = [](const MixerDims& dims,
                          int threads) { return StateScratchBytes(mixer, dims, threads); },
      .forward = [](const MixerInputs& in, const MixerOutputs& out,
                    void* scratch) { StateForward(mixer, in, out, scratch); },
      .backward = [](const MixerInputs& in, const MixerOutputs& out, const MixerGradients& grad,
                     void* scratch) { StateBackward(mixer, in, out, grad, scratch); },
      .state_floats = [](const MixerDims& dims, const MixerOptions&,
                         int64_t) { return StateFloats(mixer, dims); },
      .step = [](const StepInputs& in) { StateStep(mixer, in); },
      .shares_steps = true,
      .prefill = [](const MixerInputs& in, const Array& o, float* state, int64_t,
                    int64_t) { StatePrefill(mixer, in, o, state); },
      .flops = [](const MixerDims& dims, bool) { return StateFlops(mixer, dims); },
      .bytes = [](const MixerDims& dims, bool) { return StateBytes(mixer, dims); },
  };
}

}  // namespace linattn
