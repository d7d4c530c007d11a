// What the chunk kernels owe beyond the registered mixers, which the suite tests: every policy,
// normalised or not, and every length of the two levels of states that backward keeps.
#include "kernels/chunk.h"

#include "kernels/mixer_testing.h"
#include "kernels/state_mixer.h"

namespace linattn {
namespace {

using namespace mixer_testing;

template <const Mixer& mixer>
constexpr Mixer Normalised(Decay decay, Write write) {
  return StateMixer<mixer>({.name = "normalised",
                            .summary = "",
                            .decay = decay,
                            .write = write,
                            .normalised = true,
                            .feature_map = "elu1",
                            .tolerance = {5e-6, 2e-5, ""}});
}
extern const Mixer k_scalar, k_channel, k_delta, k_scalar_delta, k_channel_delta;
const Mixer k_scalar = Normalised<k_scalar>(Decay::kScalar, Write::kAdd);
const Mixer k_channel = Normalised<k_channel>(Decay::kPerChannel, Write::kAdd);
const Mixer k_delta = Normalised<k_delta>(Decay::kNone, Write::kDelta);
const Mixer k_scalar_delta = Normalised<k_scalar_delta>(Decay::kScalar, Write::kDelta);
const Mixer k_channel_delta = Normalised<k_channel_delta>(Decay::kPerChannel, Write::kDelta);

TEST(ChunkTest, EveryPolicyMayBeNormalised) {
  for (const Mixer* mixer : {&k_scalar, &k_channel, &k_delta, &k_scalar_delta, &k_channel_delta}) {
    for (const Spec& spec : {Spec{.T = 5, .K = 3, .V = 2, .states = true},
                             Spec{.T = 70, .group = 2, .K = 17, .V = 33, .states = true}}) {
      SCOPED_TRACE(testing::Message() << "decay " << static_cast<int>(mixer->decay) << " write "
                                      << static_cast<int>(mixer->write) << " T=" << spec.T);
      Problem p = MakeProblem(*mixer, spec);
      if (mixer->write == Write::kDelta)  // elu1 gives keys far from norm 1
        for (double& beta : p.inputs["beta"].values) beta = static_cast<float>(beta / 50);
      const Results ref = Reference(*mixer, p, true);
      OnEveryTarget([&] { ExpectClose(*mixer, Fast(*mixer, p, true), ref); });
    }
  }
}

// Segments of one chunk, of several, the last one short or full.
TEST(ChunkTest, BackwardAtEveryNumberOfKeptStates) {
  for (const char* name : {"gla", "gated_delta"}) {
    const Mixer& mixer = MixerByName(name);
    for (const int64_t T : {1, 16, 17, 32, 48, 63, 64, 65, 144, 150, 160, 500}) {
      SCOPED_TRACE(testing::Message() << name << " T=" << T);
      const Problem p = MakeProblem(mixer, {.B = 1, .T = T, .K = 4, .V = 5, .states = true});
      const Results ref = Reference(mixer, p, true);
      OnEveryTarget([&] { ExpectClose(mixer, Fast(mixer, p, true), ref); });
    }
  }
}

// A factor next to 1, rounded once a token, is wrong by 1e-4 over a memory of 4096 tokens.
TEST(ChunkTest, LongMemoriesDoNotDrift) {
  for (const char* name : {"simple_gla", "gla"}) {
    const Mixer& mixer = MixerByName(name);
    Problem p = MakeProblem(mixer, {.B = 1, .T = 20000, .heads = 1, .K = 2, .V = 2});
    for (auto& [input, tensor] : p.inputs)
      std::fill(tensor.values.begin(), tensor.values.end(),
                input == "g" ? double{-1.0f / 4096} : 1);
    const Results ref = Reference(mixer, p, true);
    OnEveryTarget([&] { ExpectClose(mixer, Fast(mixer, p, true), ref); });
  }
}

TEST(ChunkTest, ScratchGrowsWithTheRootOfTheLength) {
  const MixerDims short_one{
      .B = 1, .T = 1024, .S = 1024, .H = 8, .HV = 8, .K = 64, .F = 64, .V = 64, .N = 1};
  MixerDims long_one = short_one;
  long_one.T = long_one.S = 64 * 1024;
  const auto floats = [](const MixerDims& dims) {
    return static_cast<double>(ScratchFloats(ShapeOfChunks(MixerByName("kda"), dims, 1)));
  };
  EXPECT_LT(floats(long_one), 8.1 * floats(short_one));
}

}  // namespace
}  // namespace linattn
