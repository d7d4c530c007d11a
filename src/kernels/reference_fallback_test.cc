#include "kernels/reference_fallback.h"

#include <gmock/gmock.h>

#include "kernels/mixer_testing.h"
#include "kernels/mixers/kda.h"

namespace linattn {
namespace {

using namespace mixer_testing;

// kda's definition under a descriptor that has nothing else.
extern const Mixer k_bare;
constinit const Mixer k_bare = {
    .name = "bare",
    .summary = "only references",
    .family = Family::kState,
    .decay = Decay::kPerChannel,
    .write = Write::kDelta,
    .feature_map = "identity",
    .causal_only = true,
    .tolerance = {.forward = 1e-6, .backward = 1e-6, .reason = "float64, rounded once"},
    .forward_ref = [](const MixerInputs& in,
                      const MixerOutputs& out) { StateForwardRef(k_bare, in, out); },
    .backward_ref = [](const MixerInputs& in, const MixerOutputs& out,
                       const MixerGradients& grad) { StateBackwardRef(k_bare, in, out, grad); },
};

// A new mixer works from its first day: in short floats, masked, stepwise and by prefill.
TEST(ReferenceFallbackTest, FillsInWhatADescriptorLeavesOut) {
  const Mixer& filled = Filled<k_bare>();
  const Problem p = MakeProblem(
      filled, {.B = 3, .T = 11, .group = 2, .states = true, .exact = true, .lengths = {11, 7, 0}});
  const Results ref = Reference(k_kda, p, true);
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16})
    ExpectClose(filled, Fast(filled, p, true, dtype), ref);
  Problem whole = p;
  whole.spec.lengths.clear();
  const Tensor o = Reference(k_kda, whole).at("o");
  for (const auto run : {StepTokens, PrefillTokens}) {
    const Call call(filled, whole, DType::kF32, DType::kF32);
    const States states(filled, whole, 0);
    run(filled, call, states, 0, 4), run(filled, call, states, 4, 11);
    EXPECT_LE(RelativeError(call.Read(false).at("o"), o), 1e-6);
  }
  const MixerDims dims{.B = 3, .T = 11, .S = 11, .H = 2, .HV = 4, .K = 8, .F = 8, .V = 6, .N = 3};
  EXPECT_EQ(filled.flops(dims, true), k_kda.flops(dims, true));
  EXPECT_EQ(filled.bytes(dims, true), k_kda.bytes(dims, true));
}

TEST(ReferenceFallbackTest, TheRegistryLeavesNothingNull) {
  for (const Mixer* m : AllMixers()) {
    EXPECT_TRUE(m->forward_ref && m->backward_ref && m->scratch_bytes && m->forward &&
                m->backward && m->state_floats && m->step && m->prefill && m->flops && m->bytes)
        << m->name;
  }
}

constinit const Mixer k_cache_without_step = {
    .name = "no_step", .summary = "", .family = Family::kCache, .tolerance = {1, 1, ""}};

TEST(ReferenceFallbackTest, ACacheMixerMustBringItsStep) {
  EXPECT_THAT([] { Filled<k_cache_without_step>(); },
              testing::ThrowsMessage<Error>(testing::HasSubstr("[no_step] the descriptor must")));
}

}  // namespace
}  // namespace linattn
