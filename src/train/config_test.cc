#include "train/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/temporary_directory.h"

namespace linattn {
namespace {

using testing::HasSubstr;

std::string MessageOf(const std::string& path, const std::vector<std::string>& sets) {
  try {
    ResolveConfig(path, sets);
  } catch (const Error& e) {
    EXPECT_EQ(e.fault(), Fault::kCaller);
    return e.what();
  }
  return "";
}

TEST(RunConfig, DefaultsAreFashionSmall) {
  const RunConfig config = ResolveConfig("", {});
  EXPECT_EQ(ToJson(config.model), ToJson(NamedConfig("fashion-small", "linear")));
  EXPECT_EQ(config.data.source, "fashion-mnist");
  EXPECT_EQ(config.train.dtype, "bf16");
}

TEST(RunConfig, FileThenOverrides) {
  const TemporaryDirectory directory;
  const std::string path = directory.path() + "/a.toml";
  WriteFileAtomic(path, std::string_view("[model]\nbase = 'mnist'\nmixer = 'softmax'\n"
                                         "[data]\nsource = 'mnist:x'\n"
                                         "[train]\nlr = 1e-4\nsteps = 7\n"));
  RunConfig config = ResolveConfig(path, {});
  EXPECT_EQ(config.model.layers(), 8);
  EXPECT_EQ(config.model.mixers[7], "softmax");
  EXPECT_EQ(config.train.lr, 1e-4);
  EXPECT_EQ(config.train.steps, 7);
  config = ResolveConfig(path, {"train.lr=1", "model.mixer=linear,softmax", "model.layers=3",
                                "data.source=/some/folder", "model.pre_norm=false"});
  EXPECT_EQ(config.train.lr, 1.0);
  EXPECT_EQ(config.model.mixers, (std::vector<std::string>{"linear", "softmax", "linear"}));
  EXPECT_EQ(config.data.source, "/some/folder");
  EXPECT_FALSE(config.model.pre_norm);
}

TEST(RunConfig, MixersInShortAreRepeatedToFillTheLayers) {
  using Names = std::vector<std::string>;
  const Names want = {"gated_delta", "gated_delta", "gated_delta", "softmax", "gated_delta"};
  const std::string mixer = "model.mixer=3x gated_delta + 1x softmax";
  EXPECT_EQ(ResolveConfig("", {mixer, "model.layers=5"}).model.mixers, want);
  const TemporaryDirectory directory;
  const std::string path = directory.path() + "/a.toml";
  WriteFileAtomic(path,
                  std::string_view("[model]\nmixer = '3x gated_delta + softmax'\nlayers = 5"));
  EXPECT_EQ(ResolveConfig(path, {}).model.mixers, want);
  EXPECT_THAT(MessageOf("", {"model.mixer=3x gatd_delta"}), HasSubstr("but is 'gatd_delta'"));
  // Without further settings: the gates and norms that such a mixer needs.
  EXPECT_EQ(MessageOf("", {"model.mixer=gated_delta"}), "");
}

TEST(RunConfig, MixerAndLayersOverrideAnExplicitList) {
  const TemporaryDirectory directory;
  const std::string path = directory.path() + "/a.toml";
  WriteFileAtomic(path, std::string_view("[model]\nmixers = ['linear', 'softmax', 'linear']\n"));
  using Names = std::vector<std::string>;
  EXPECT_EQ(ResolveConfig(path, {}).model.mixers, (Names{"linear", "softmax", "linear"}));
  EXPECT_EQ(ResolveConfig(path, {"model.mixer=softmax"}).model.mixers, Names(3, "softmax"));
  EXPECT_EQ(ResolveConfig(path, {"model.layers=2"}).model.mixers, (Names{"linear", "softmax"}));
}

TEST(RunConfig, ResolvedFileReadsBackTheSame) {
  const TemporaryDirectory directory;
  const RunConfig config = ResolveConfig(
      "", {"train.eps=1e-9", "model.mixer=softmax", "data.source='a \"b\" \\\\ c'", "train.lr=3"});
  WriteFileAtomic(directory.path() + "/config.toml", ToToml(config));
  const RunConfig back = ResolveConfig(directory.path() + "/config.toml", {});
  EXPECT_EQ(ToJson(back).dump(), ToJson(config).dump());
  EXPECT_EQ(ToJson(RunConfigFromJson(ToJson(config))).dump(), ToJson(config).dump());
}

TEST(RunConfig, UnknownKeysNameTheNearest) {
  EXPECT_THAT(MessageOf("", {"train.lrr=1"}),
              HasSubstr("'train.lrr' is not, did you mean train.lr"));
  EXPECT_THAT(MessageOf("", {"lr=1"}), HasSubstr("train.lr"));
  EXPECT_THAT(MessageOf("", {"train.stpes=1"}), HasSubstr("did you mean train.steps?"));
  EXPECT_THAT(MessageOf("", {"train.optimizer=adam"}), HasSubstr("train.optimiser"));
  EXPECT_THAT(MessageOf("", {"model.head_dims=3"}), HasSubstr("model.head_dim"));
  EXPECT_THAT(MessageOf("", {"model.zzzzzz=3"}), HasSubstr("'model.zzzzzz' is not"));
  const TemporaryDirectory directory;
  const std::string path = directory.path() + "/a.toml";
  WriteFileAtomic(path, std::string_view("[train]\nwarm_up = 3\n"));
  EXPECT_THAT(MessageOf(path, {}), HasSubstr("train.warmup"));
  WriteFileAtomic(path, std::string_view("[train\nwarm_up = 3\n"));
  EXPECT_THAT(MessageOf(path, {}), HasSubstr("line 1"));
}

TEST(RunConfig, RefusesWrongTypesAndRanges) {
  EXPECT_THAT(MessageOf("", {"train.steps=fast"}), HasSubstr("train.steps must be an integer"));
  EXPECT_THAT(MessageOf("", {"train.steps=1.5"}), HasSubstr("train.steps must be an integer"));
  EXPECT_THAT(MessageOf("", {"train.dtype=f64"}),
              HasSubstr("train.dtype must be one of f32, bf16"));
  EXPECT_THAT(MessageOf("", {"train.batch=0"}), HasSubstr("train.batch"));
  EXPECT_THAT(MessageOf("", {"train.lr=-1"}), HasSubstr("lr must be positive"));
  EXPECT_THAT(MessageOf("", {"nonsense"}), HasSubstr("KEY=VALUE"));
  EXPECT_THAT(MessageOf("/nonexistent.toml", {}), HasSubstr("/nonexistent.toml"));
}

TEST(RunConfig, TrajectoryIgnoresLengthAndReports) {
  const RunConfig a = ResolveConfig("", {});
  const auto difference = [&](const std::string& set) {
    return TrajectoryDifference(a, ResolveConfig("", {set}));
  };
  for (const char* free : {"train.steps=9", "train.keep=9", "train.minutes=3"}) {
    EXPECT_EQ(difference(free), "") << free;
  }
  EXPECT_EQ(difference("train.lr=9"), "train.lr (0.001, not 9.0)");
  EXPECT_EQ(difference("train.seed=9"), "train.seed (1, not 9)");
  EXPECT_EQ(difference("model.dropout=0.5"), "model.dropout (0.0, not 0.5)");
}

TEST(RunConfig, MinutesReplaceSteps) {
  EXPECT_EQ(ResolveConfig("", {}).train.steps, 3000);
  EXPECT_EQ(ResolveConfig("", {"train.minutes=3"}).train.steps, 0);
  EXPECT_EQ(ResolveConfig("", {"train.steps=5", "train.minutes=3"}).train.steps, 0);
  EXPECT_EQ(ResolveConfig("", {"train.minutes=3", "train.steps=5"}).train.steps, 5);
}

}  // namespace
}  // namespace linattn
