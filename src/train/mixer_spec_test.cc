#include "train/mixer_spec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "model/layer.h"
#include "train/config.h"

namespace linattn {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

TEST(MixerSpec, ReadsAMixerAndItsOptions) {
  const MixerSpec spec = ParseMixerSpec("lsh:rounds=1:chunk=64");
  EXPECT_EQ(spec.directory, "lsh-rounds-1-chunk-64");
  EXPECT_THAT(spec.sets,
              ElementsAre("model.mixer=\"lsh\"", "model.lsh_rounds=1", "model.lsh_chunk=64"));
  EXPECT_THAT(ParseMixerSpec("linear:feature_map=dpfp").sets,
              ElementsAre("model.mixer=\"linear\"", "model.feature_map=dpfp"));
}

TEST(MixerSpec, ReadsHybrids) {
  const MixerSpec spec = ParseMixerSpec("3x gla + 1x softmax");
  EXPECT_EQ(spec.directory, "3x-gla-1x-softmax");
  std::vector<std::string> sets = spec.sets;
  sets.push_back("model.layers=4");
  EXPECT_THAT(ResolveConfig("", sets).model.mixers, ElementsAre("gla", "gla", "gla", "softmax"));
}

TEST(MixerSpec, RefusesWhatIsNoOption) {
  EXPECT_THAT([] { ParseMixerSpec("lsh:colour=red"); },
              ThrowsMessage<Error>(HasSubstr("lsh_colour and colour are none")));
  EXPECT_THAT([] { ParseMixerSpec("lsh:rounds"); }, ThrowsMessage<Error>(HasSubstr("KEY=VALUE")));
  EXPECT_THAT([] { ParseMixerSpec(" "); }, ThrowsMessage<Error>(HasSubstr("a name")));
}

TEST(MixerSpec, TakesLayersAndALearningRate) {
  EXPECT_THAT(
      ParseMixerSpec("1x gla + 1x softmax:layers=4:lr=3e-3").sets,
      ElementsAre("model.mixer=\"1x gla + 1x softmax\"", "model.layers=4", "train.lr=3e-3"));
}

TEST(MixerSpec, MatchesTheStateByWhatDecidesItsSize) {
  const ModelConfig first = NamedConfig("fashion-small", "gated_delta");
  const int64_t target = StateBytes(first, first.max_len);
  const auto matched = [&](const char* mixer, auto change) {
    ModelConfig c = NamedConfig("fashion-small", mixer);
    change(c);
    MatchState(target, c);
    return c;
  };
  const auto near = [&](const ModelConfig& c) {
    return std::abs(static_cast<double>(StateBytes(c, c.max_len)) / static_cast<double>(target) -
                    1);
  };
  EXPECT_EQ(matched("gated_delta", [](auto&) {}).head_dim, first.head_dim);
  EXPECT_EQ(matched("linear", [](auto&) {}).head_dim, 31);  // its normaliser is a row more
  const ModelConfig wide = matched("linear", [](auto& c) { c.feature_map = "dpfp"; });
  EXPECT_EQ(wide.head_dim, 16);  // the map doubles it
  EXPECT_LT(near(wide), 0.1);
  const ModelConfig random = matched("performer", [](auto&) {});
  EXPECT_EQ(random.head_dim, 32);
  EXPECT_LT(near(random), 0.1);
  const ModelConfig window = matched("softmax", [](auto& c) { c.window = 100; });
  EXPECT_EQ(window.window, 16);  // keys and values of 32: a token is as large as two rows
  EXPECT_EQ(matched("softmax", [](auto&) {}).window, 0);
}

TEST(MixerSpec, MatchesParametersByTheWidthOfTheMlp) {
  const ModelConfig linear = NamedConfig("fashion-small", "linear");
  const int64_t target = TrainedParameters(linear);
  for (const char* mixer : {"linear", "softmax", "gla", "delta", "performer", "lsh"}) {
    for (const char* block : {"classic", "modern"}) {
      ModelConfig c = NamedConfig("fashion-small", mixer);
      c.block = block;
      MatchParameters(mixer, target, c);
      EXPECT_NEAR(static_cast<double>(TrainedParameters(c)), static_cast<double>(target),
                  0.01 * static_cast<double>(target))
          << mixer << " " << block;
      EXPECT_EQ(c.mlp_dim % 8, 0);
    }
  }
  ModelConfig same = linear;
  MatchParameters("linear", target, same);
  EXPECT_EQ(same.mlp_dim, linear.mlp_dim);
}

TEST(MixerSpec, SaysWhenParametersCannotMatch) {
  ModelConfig c = NamedConfig("fashion-small", "linear");
  EXPECT_THAT([&] { MatchParameters("linear", 1000, c); },
              ThrowsMessage<Error>(HasSubstr("'linear' must come within 2% of 1000")));
}

}  // namespace
}  // namespace linattn
