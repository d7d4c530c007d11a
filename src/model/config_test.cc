#include "model/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace linattn {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

std::string MessageOf(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& e) {
    EXPECT_EQ(e.fault(), Fault::kCaller);
    return e.what();
  }
  return "no error";
}

int64_t Count(const ModelConfig& config) {
  int64_t total = 0;
  for (const ParameterSpec& spec : Parameters(config)) {
    int64_t size = 1;
    for (int64_t extent : spec.shape) size *= extent;
    total += size;
  }
  return total;
}

TEST(ConfigTest, NamedModelsHaveThePapersSizes) {
  const ModelConfig cifar = NamedConfig("cifar10");
  EXPECT_EQ(cifar.layers(), 16);
  EXPECT_EQ(cifar.max_len, 3072);
  EXPECT_EQ(cifar.outputs(), 30);
  // 16 layers of 12 * 256^2 + 13 * 256 = 789,760, and 91,166 outside them.
  EXPECT_EQ(Count(cifar), 12'727'326);
  const ModelConfig mnist = NamedConfig("mnist", "softmax");
  EXPECT_EQ(mnist.layers(), 8);
  EXPECT_EQ(mnist.max_len, 784);
  EXPECT_EQ(mnist.mixers[7], "softmax");
  EXPECT_THAT(MessageOf([] { NamedConfig("cifar100"); }),
              HasSubstr("[config] the model must be one of mnist, cifar10"));
}

TEST(ConfigTest, ParametersFollowPositionTiesAndClasses) {
  ModelConfig c = NamedConfig("fashion-small");
  std::vector<ParameterSpec> list = Parameters(c);
  EXPECT_EQ(list[0].shape, (std::vector<int64_t>{266, 128}));
  EXPECT_EQ(list[2].name, "position.column.weight");
  EXPECT_EQ(list.back().shape, (std::vector<int64_t>{30}));
  EXPECT_EQ(c.start_token(3), 259);
  EXPECT_EQ(list.size(), 4u + 6 * 16 + 2 + 2);

  c.task = "text", c.position = "learned", c.head = "categorical", c.tied = true, c.classes = 0;
  c.max_len = 99;
  CheckConfig(c);
  list = Parameters(c);
  EXPECT_EQ(list[0].shape, (std::vector<int64_t>{257, 128}));
  EXPECT_EQ(list[1].shape, (std::vector<int64_t>{99, 128}));
  EXPECT_EQ(list[list.size() - 2].name, "norm.bias");
  EXPECT_EQ(list.back().shape, (std::vector<int64_t>{256}));
}

TEST(ConfigTest, JsonRoundTripKeepsEveryField) {
  ModelConfig c = NamedConfig("mnist");
  c.mixers = {"linear", "softmax"};
  c.dropout = 0.1, c.attn_eps = 1e-10, c.pre_norm = false, c.value_heads = 16, c.mixtures = 5;
  c.activation = "relu", c.causal = false, c.feature_map = "relu";
  c.classes = 2, c.class_names = {"cat", "dog"};
  const Json json = ToJson(c);
  EXPECT_EQ(json.size(), 26u);
  EXPECT_EQ(ToJson(ConfigFromJson(Json::parse(json.dump()))), json);
}

TEST(ConfigTest, JsonIsStrict) {
  const Json good = ToJson(NamedConfig("mnist"));
  const auto with = [&](const char* key, Json value) {
    Json json = good;
    json[key] = std::move(value);
    return MessageOf([&] { ConfigFromJson(json); });
  };
  EXPECT_THAT(with("dims", 3), HasSubstr("\"dims\""));
  EXPECT_THAT(with("dim", "256"), HasSubstr("dim must be an integer, but is \"256\""));
  EXPECT_THAT(with("dim", 256.5), HasSubstr("dim must be an integer, but is 256.5"));
  EXPECT_THAT(with("dim", true), HasSubstr("dim must be an integer"));
  EXPECT_THAT(with("dim", UINT64_MAX), HasSubstr("dim must be an integer"));
  EXPECT_THAT(with("dim", INT64_MAX), HasSubstr("dim must be from 1 to 16777216"));
  EXPECT_THAT(with("mixers", Json::array({1})), HasSubstr("mixers must be a list of strings"));
  EXPECT_THAT(with("causal", 1), HasSubstr("causal must be true or false"));
  EXPECT_THAT(MessageOf([] { ConfigFromJson(Json::array()); }), HasSubstr("JSON object"));
}

TEST(ConfigTest, WrongValuesAreNamed) {
  const auto with = [](const std::function<void(ModelConfig&)>& change) {
    ModelConfig c = NamedConfig("mnist");
    change(c);
    return MessageOf([&] { CheckConfig(c); });
  };
  EXPECT_THAT(with([](auto& c) { c.max_len = 785; }), HasSubstr("= 784 for images, but is 785"));
  EXPECT_THAT(with([](auto& c) { c.value_heads = 12; }), HasSubstr("multiple of heads = 8"));
  EXPECT_THAT(with([](auto& c) { c.mixers.clear(); }), HasSubstr("number of layers"));
  EXPECT_THAT(with([](auto& c) { c.channels = 2; }), HasSubstr("channels must be 1 or 3"));
  EXPECT_THAT(with([](auto& c) { c.tied = true; }), HasSubstr("tied must be false"));
  EXPECT_THAT(with([](auto& c) { c.activation = "silu"; }), HasSubstr("gelu, relu"));
  EXPECT_THAT(with([](auto& c) { c.norm_eps = 0; }), HasSubstr("norm_eps"));
  EXPECT_THAT(with([](auto& c) { c.dropout = 1; }), HasSubstr("dropout"));
  EXPECT_THAT(with([](auto& c) { c.task = "text"; }), HasSubstr("position"));
  EXPECT_THAT(with([](auto& c) { c.vocab = 255; }), HasSubstr("vocab must be 256"));
}

}  // namespace
}  // namespace linattn
