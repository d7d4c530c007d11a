#include "model/fla_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/error.h"

namespace linattn {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Json = nlohmann::json;

FlaConfig Parse(const Json& json) { return ParseFlaConfig(json.dump(), "DIR/config.json"); }

std::string Refusal(const Json& json) {
  try {
    Parse(json);
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

// As fla's layers come out of a config that says nothing but its type.
TEST(FlaConfigTest, AbsentFieldsHaveFlasDefaults) {
  struct Case {
    Json json;
    const char* mixer;
    int64_t layers, heads, head_dim, value_dim, conv_size;
  };
  const Case cases[] = {{{{"model_type", "linear_attn"}}, "linear", 24, 4, 512, 512, 0},
                        {{{"model_type", "gla"}}, "gla", 24, 4, 256, 512, 0},
                        {{{"model_type", "delta_net"}}, "delta", 24, 16, 128, 128, 4},
                        {{{"model_type", "gated_deltanet"}}, "gated_delta", 21, 6, 256, 512, 4},
                        {{{"model_type", "kda"}}, "kda", 24, 16, 128, 128, 4}};
  for (const Case& one : cases) {
    SCOPED_TRACE(one.mixer);
    const FlaConfig fla = Parse(one.json);
    const ModelConfig& c = fla.model;
    EXPECT_EQ(c.mixers, std::vector<std::string>(one.layers, one.mixer));
    EXPECT_EQ(c.dim, 2048);
    EXPECT_EQ(c.mlp_dim, 5632);  // 2/3 of 4 * 2048, up to the next multiple of 256
    EXPECT_EQ(c.vocab, 32000);
    EXPECT_EQ(c.max_len, 2048);
    EXPECT_EQ(c.heads, one.heads);
    EXPECT_EQ(c.value_heads, one.heads);
    EXPECT_EQ(c.head_dim, one.head_dim);
    EXPECT_EQ(c.value_dim, one.value_dim);
    EXPECT_EQ(c.conv_size, one.conv_size);
    EXPECT_EQ(c.norm_eps, 1e-6);
    EXPECT_FALSE(c.tied);
    EXPECT_EQ(fla.start_token, 1);
    EXPECT_TRUE(fla.ignored.empty());
  }
}

TEST(FlaConfigTest, EveryLayerOfAHybridMayBeSoftmax) {
  const Json attn = {{"layers", {1, 3}},   {"num_heads", 16},   {"num_kv_heads", 4},
                     {"window_size", 512}, {"rope_theta", 5e5}, {"qkv_bias", true}};
  Json json = {{"model_type", "gla"}, {"num_hidden_layers", 4}, {"attn", attn}};
  const ModelConfig c = Parse(json).model;
  EXPECT_THAT(c.mixers, ElementsAre("gla", "softmax", "gla", "softmax"));
  EXPECT_EQ(c.attn_heads, 16);
  EXPECT_EQ(c.attn_head_dim, 128);
  EXPECT_EQ(c.kv_heads, 4);
  EXPECT_EQ(c.window, 512);
  EXPECT_EQ(c.rope_theta, 5e5);
  EXPECT_TRUE(c.qkv_bias);

  Json first = attn, second = attn;
  first["layers"] = {1}, second["layers"] = {3};
  json["attn"] = {first, second};
  EXPECT_EQ(ToJson(Parse(json).model), ToJson(c));
  second["window_size"] = nullptr;
  json["attn"] = {first, second};
  EXPECT_THAT(Refusal(json), HasSubstr("attn[1] must have the settings of attn[0]"));
  json["attn"] = {first, first};
  EXPECT_THAT(Refusal(json), HasSubstr("attn[1].layers must not name a layer twice, but do 1"));
}

// What would be computed otherwise is refused, by field and value.
TEST(FlaConfigTest, UnsupportedFieldsAreNamed) {
  struct Case {
    const char* type;
    const char* field;
    Json value;
    const char* shown;
  };
  const Case cases[] = {
      {"linear_attn", "feature_map", "favor", "'favor'"},
      {"linear_attn", "norm_q", true, "true"},
      {"linear_attn", "norm_k", true, "true"},
      {"linear_attn", "num_kv_heads", 2, "2"},
      {"gla", "num_kv_heads", 1, "1"},
      {"gla", "feature_map", "relu", "\"relu\""},
      {"gla", "clamp_min", -3.5, "-3.5"},
      {"gla", "use_gk", false, "false"},
      {"gla", "use_gv", true, "true"},
      {"gla", "hidden_act", "relu", "\"relu\""},
      {"gla", "expand_k", 0.3, "2048 * 0.3"},
      {"delta_net", "qk_norm", "sum", "\"sum\""},
      {"delta_net", "qk_activation", "elu", "\"elu\""},
      {"delta_net", "use_beta", false, "false"},
      {"delta_net", "conv_bias", true, "true"},
      {"gated_deltanet", "num_v_heads", 7, "7"},
      {"gated_deltanet", "expand_v", 1.001, "256.256"},
      {"gated_deltanet", "quantization_config", Json::object(), "{}"},
      {"kda", "safe_gate", true, "true"},
      {"kda", "lower_bound", -5, "-5"},
  };
  for (const Case& one : cases) {
    Json json = {{"model_type", one.type}};
    json[one.field] = one.value;
    EXPECT_THAT(Refusal(json), AllOf(HasSubstr("[fla] DIR/config.json: "), HasSubstr(one.field),
                                     HasSubstr(std::string("is ") + one.shown)))
        << one.type;
  }
  EXPECT_THAT(Refusal({{"model_type", "mamba2"}}),
              HasSubstr("must be one of linear_attn, gla, delta_net, gated_deltanet, kda, but is "
                        "'mamba2'"));
  const Json attn = {{"layers", {0}}, {"num_heads", 16}, {"qk_norm", true}};
  EXPECT_THAT(Refusal({{"model_type", "gla"}, {"attn", attn}}),
              HasSubstr("attn.qk_norm must be false (nothing else is supported), but is true"));
}

TEST(FlaConfigTest, WrongTypesAndSizesAreNamed) {
  const std::pair<const char*, Json> cases[] = {{"hidden_size", "2048"},
                                                {"hidden_size", 0},
                                                {"hidden_size", -4},
                                                {"hidden_size", 1e9},
                                                {"hidden_size", 18446744073709551615u},
                                                {"num_hidden_layers", 5000},
                                                {"vocab_size", 1},
                                                {"norm_eps", 0},
                                                {"norm_eps", "small"},
                                                {"num_heads", nullptr},
                                                {"tie_word_embeddings", 1},
                                                {"hidden_ratio", 1e20},
                                                {"conv_size", 65},
                                                {"attn", 3},
                                                {"expand_k", 1e29}};
  for (const auto& [field, value] : cases) {
    if (value.is_null()) continue;
    const Json json = {{"model_type", "gla"}, {field, value}};
    EXPECT_THAT(Refusal(json), HasSubstr(field)) << json.dump();
  }
  for (const Json& layers : {Json(2), Json({24}), Json({-1}), Json({"1"}), Json(nullptr)}) {
    const Json attn = {{"layers", layers}, {"num_heads", 16}};
    EXPECT_THAT(Refusal({{"model_type", "gla"}, {"attn", attn}}), HasSubstr("attn.layers must be"));
  }
  EXPECT_THAT(Refusal({{"model_type", "gla"}, {"attn", {{"layers", {0}}}}}),
              HasSubstr("attn.num_heads must be given"));
  EXPECT_THAT(Refusal(Json::array()), HasSubstr("must be a JSON object"));
  EXPECT_THROW(ParseFlaConfig("{\"model_type\": ", "x"), Error);
  EXPECT_THROW(ParseFlaConfig("", "x"), Error);
}

TEST(FlaConfigTest, HarmlessFieldsPassAndUnknownOnesAreReported) {
  const FlaConfig fla = Parse({{"model_type", "gla"},
                               {"fuse_norm", false},
                               {"use_cache", true},
                               {"torch_dtype", "bfloat16"},
                               {"architectures", {"X"}},
                               {"colour", "green"},
                               {"num_heads", nullptr}});
  EXPECT_THAT(fla.ignored, ElementsAre("colour"));
  EXPECT_EQ(fla.model.heads, 4);
}

TEST(FlaConfigTest, StartTokenIsBosOrElseEos) {
  const auto start = [](const Json& bos, const Json& eos) {
    return Parse({{"model_type", "gla"}, {"bos_token_id", bos}, {"eos_token_id", eos}}).start_token;
  };
  EXPECT_EQ(start(5, 6), 5);
  EXPECT_EQ(start(nullptr, 6), 6);
  EXPECT_EQ(start(32000, 6), 6);  // beyond the vocabulary
  EXPECT_EQ(start(nullptr, {6, 7}), -1);
}

}  // namespace
}  // namespace linattn
