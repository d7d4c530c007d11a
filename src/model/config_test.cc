#include "model/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "base/error.h"
#include "model/layer.h"
#include "model/parameters.h"

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
  c.activation = "relu", c.feature_map = "relu", c.attn_normalise = false, c.map_dim = 12;
  c.conv_size = 0, c.output_norm = "none", c.output_gate = "swish", c.qk_norm = "l2";
  c.negative_eigenvalues = true, c.gate_rank = 3, c.gate_divisor = 2, c.features = 7;
  c.initial_decay = 1;
  c.decay_schedule = "lightning", c.attn_heads = 4, c.attn_head_dim = 6, c.kv_heads = 2;
  c.qkv_bias = true, c.rope_theta = 1e4, c.window = 9, c.sinks = 1, c.sparse_pattern = "fixed";
  c.sparse_stride = 5, c.sparse_summary = 2, c.lsh_rounds = 1, c.lsh_buckets = 4, c.lsh_chunk = 6;
  c.cache_dtype = "bf16", c.lsh_seed = 8, c.feature_seed = 9;
  c.classes = 2, c.class_names = {"cat", "dog"};
  ModelConfig d;  // what c cannot have, or has as the defaults do
  d.task = "speech", d.head = "categorical", d.position = "none", d.block = "modern";
  d.causal = false, d.mixers = {"linear"}, d.vocab = 3, d.units = {"", "a", "b"}, d.blank = 1;
  d.input_features = 2, d.subsample = 3, d.sample_rate = 8000, d.unit_kind = "phonemes";
  d.input_mean = {1, 2}, d.input_deviation = {3, 4}, d.attn_conv_size = 4, d.norm_eps = 1e-6;
  d.max_len = 9, d.dim = 24, d.mlp_dim = 50, d.heads = d.value_heads = 4, d.head_dim = 6;
  d.value_dim = 7;
  ModelConfig e;
  e.task = "text", e.head = "categorical", e.position = "none", e.tied = true, e.vocab = 99;
  e.mixers = {"softmax"}, e.max_len = 9;
  const Json defaults = ToJson(ModelConfig());
  std::set<std::string> seen;
  for (const ModelConfig& config : {c, d, e}) {
    const Json json = ToJson(config);
    EXPECT_EQ(ToJson(ConfigFromJson(Json::parse(json.dump()))), json);
    for (const auto& [key, value] : json.items())
      if (value != defaults.at(key)) seen.insert(key);
  }
  for (const auto& [key, value] : defaults.items())
    EXPECT_TRUE(seen.contains(key)) << key << " must have another value in one of them";
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

// Old files have none of the keys that came later.
TEST(ConfigTest, AbsentKeysKeepTheirDefaults) {
  Json json = ToJson(NamedConfig("mnist"));
  for (const char* key : {"block", "conv_size", "output_gate", "qk_norm", "window", "features"})
    json.erase(key);
  EXPECT_EQ(ToJson(ConfigFromJson(json)), ToJson(NamedConfig("mnist")));
}

TEST(ConfigTest, ShortFormsOfMixersAreRepeatedToFillTheLayers) {
  using Names = std::vector<std::string>;
  EXPECT_EQ(ExpandMixers("linear", 2), (Names{"linear", "linear"}));
  EXPECT_EQ(ExpandMixers("linear,softmax", 3), (Names{"linear", "softmax", "linear"}));
  EXPECT_EQ(ExpandMixers("3x linear + 1x softmax", 6),
            (Names{"linear", "linear", "linear", "softmax", "linear", "linear"}));
  EXPECT_EQ(ExpandMixers(" 2 x linear+softmax ", 3), (Names{"linear", "linear", "softmax"}));
  const auto message = [](const char* text) { return MessageOf([&] { ExpandMixers(text, 4); }); };
  EXPECT_THAT(message("linear,,softmax"), HasSubstr("one of them is empty (in 'linear,,softmax')"));
  EXPECT_THAT(message(""), HasSubstr("one of them is empty (in '')"));
  EXPECT_THAT(message("3x"), HasSubstr("is empty (in '3x')"));
  EXPECT_THAT(message("3 linear"), HasSubstr("followed by x, as in '3x linear', but '3 linear'"));
  EXPECT_THAT(message("0x linear"), HasSubstr("from 1 to 4096, but '0x linear' is not"));
  EXPECT_THAT(message("99999999999999999999x linear"), HasSubstr("from 1 to 4096"));
  EXPECT_THAT(message("3x linaer + 1x softmax"), HasSubstr("but is 'linaer'"));
}

TEST(ConfigTest, ModernBlocksHaveGatesOfThreeMatricesAndNoBiases) {
  ModelConfig c = NamedConfig("fashion-small", "linear,softmax");
  c.block = "modern", c.kv_heads = 2, c.qkv_bias = true;
  CheckConfig(c);
  std::vector<std::string> names;
  for (const ParameterSpec& spec : Parameters(c)) {
    if (spec.name.starts_with("layers.0.")) names.push_back(spec.name.substr(9));
    if (spec.name == "layers.1.attn.k_proj.bias") {
      EXPECT_EQ(spec.shape[0], 2 * 32);
    }
  }
  EXPECT_THAT(names,
              ::testing::ElementsAre(
                  "attn_norm.weight", "mlp_norm.weight", "attn.q_proj.weight", "attn.k_proj.weight",
                  "attn.v_proj.weight", "attn.o_proj.weight", "attn.q_conv1d.weight",
                  "attn.k_conv1d.weight", "attn.v_conv1d.weight", "attn.o_norm.weight",
                  "mlp.gate_proj.weight", "mlp.up_proj.weight", "mlp.down_proj.weight"));
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
  EXPECT_THAT(with([](auto& c) { c.block = "new"; }), HasSubstr("block must be one of classic"));
  EXPECT_THAT(with([](auto& c) { c.block = "modern", c.pre_norm = false; }), HasSubstr("pre_norm"));
  EXPECT_THAT(with([](auto& c) { c.conv_size = 65; }), HasSubstr("conv_size"));
  EXPECT_THAT(with([](auto& c) { c.attn_conv_size = 65; }), HasSubstr("attn_conv_size"));
  EXPECT_THAT(with([](auto& c) { c.conv_size = 4, c.causal = false; }), HasSubstr("encoder"));
  EXPECT_THAT(with([](auto& c) { c.output_gate = "tanh"; }), HasSubstr("auto, none, swish"));
  EXPECT_THAT(with([](auto& c) { c.mixers[2] = "mamba"; }), HasSubstr("'mamba'"));
  EXPECT_THAT(with([](auto& c) { c.mixers[2] = "softmax", c.value_heads = 16; }),
              HasSubstr("layer 2: softmax must have as many value heads as heads = 8, but"));
  EXPECT_THAT(with([](auto& c) { c.mixers[2] = "softmax", c.kv_heads = 3; }),
              HasSubstr("layer 2: kv_heads must divide the 8 heads of softmax, but is 3"));
  EXPECT_THAT(
      with([](auto& c) { c.mixers[2] = "softmax", c.rope_theta = 1e4, c.attn_head_dim = 5; }),
      HasSubstr("even head dimension"));
}

ModelConfig Speech() {
  ModelConfig c;
  c.task = "speech", c.head = "categorical", c.position = "sinusoidal", c.causal = false;
  c.input_features = 40, c.subsample = 4, c.sample_rate = 8000, c.vocab = 3, c.max_len = 10;
  c.units = {"", "a", "b"}, c.input_mean.assign(40, -2.5), c.input_deviation.assign(40, 1.5);
  c.mixers = {"linear", "gated_delta", "softmax", "kda"};
  return c;
}

TEST(ConfigTest, FramesRoundUpToRows) {  // E10
  ModelConfig c = Speech();
  for (const int64_t factor : {4, 8}) {
    c.subsample = factor;
    for (const int64_t frames : {1, 3, 4, 5, 7, 8, 9})
      EXPECT_EQ(c.RowsOf(frames), frames <= factor ? 1 : frames <= 2 * factor ? 2 : 3);
  }
}

TEST(ConfigTest, SpeechTravelsAndIsChecked) {
  const ModelConfig c = Speech();
  CheckConfig(c);
  EXPECT_EQ(ToJson(ConfigFromJson(ToJson(c))), ToJson(c));
  EXPECT_EQ(Parameters(c)[0].name, "input.weight");
  EXPECT_EQ(Parameters(c)[0].shape, (std::vector<int64_t>{256, 160}));
  const auto with = [&](const std::function<void(ModelConfig&)>& change) {
    ModelConfig changed = c;
    change(changed);
    return MessageOf([&] { CheckConfig(changed); });
  };
  EXPECT_THAT(with([](auto& c) { c.blank = 3; }), HasSubstr("blank must be from 0 to 2"));
  EXPECT_THAT(with([](auto& c) { c.units.pop_back(); }), HasSubstr("units must have 3 entries"));
  EXPECT_THAT(with([](auto& c) { c.input_mean.pop_back(); }), HasSubstr("input_mean must have 40"));
  EXPECT_THAT(with([](auto& c) { c.input_deviation[3] = 0; }), HasSubstr("above 0, but one is 0"));
  EXPECT_THAT(with([](auto& c) { c.input_features = 0; }), HasSubstr("input_features"));
  EXPECT_THAT(with([](auto& c) { c.position = "image"; }), HasSubstr("for speech"));
  EXPECT_THAT(with([](auto& c) { c.conv_size = 4; }), HasSubstr("layer 0: conv_size must be 0"));
  EXPECT_THAT(with([](auto& c) { c.causal = true, c.block = "lstm"; }), HasSubstr("bidirectional"));
}

// Mixers with an order take turns at reading forwards and backwards, with their convolutions.
TEST(ConfigTest, EncodersReadBothWays) {
  ModelConfig c = Speech();
  c.block = "modern", c.mixers = {"gated_delta", "gated_delta", "linear", "kda"};
  const bool reversed[] = {false, true, false, true};
  for (int64_t i = 0; i < 4; ++i) {
    const LayerPlan plan = PlanLayer(c, i);
    EXPECT_EQ(plan.reversed, reversed[i]);
    EXPECT_EQ(plan.directed, i != 2);
    EXPECT_EQ(plan.conv_size, i == 2 ? 0 : 4);
    EXPECT_EQ(OptionsOf(c, i).causal, i != 2);
  }
  c.causal = true;
  for (int64_t i = 0; i < 4; ++i) EXPECT_FALSE(PlanLayer(c, i).directed);
}

}  // namespace
}  // namespace linattn
