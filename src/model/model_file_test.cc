#include "model/model_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/temporary_directory.h"

namespace linattn {
namespace {

using testing::AllOf;
using testing::HasSubstr;

ModelConfig SmallConfig(bool tied) {
  ModelConfig config;
  config.height = 2;
  config.width = 3;
  config.channels = 1;
  config.max_len = 6;
  config.dim = 4;
  config.heads = config.value_heads = 2;
  config.head_dim = config.value_dim = 2;
  config.mlp_dim = 8;
  config.mixers = {"linear"};
  config.head = "categorical";
  config.tied = tied;
  return config;
}

// 0, 1/8, 2/8, ...: exact in every storage type.
std::map<std::string, std::vector<float>> SomeTensors(const ModelConfig& config) {
  std::map<std::string, std::vector<float>> tensors;
  for (const auto& spec : Parameters(config)) {
    int64_t size = 1;
    for (const int64_t n : spec.shape) size *= n;
    auto& values = tensors[spec.name];
    for (int64_t i = 0; i < size; ++i)
      values.push_back(static_cast<float>(i % 100 + spec.name.size()) / 8);
  }
  return tensors;
}

// Writes `tensors` (with the shapes that an untied config gives them) under the config's metadata.
void WriteRaw(const std::string& path, const ModelConfig& config,
              const std::map<std::string, std::vector<float>>& tensors) {
  std::vector<NamedTensor> named;
  for (const auto& spec : Parameters(SmallConfig(false)))
    if (const auto found = tensors.find(spec.name); found != tensors.end())
      named.push_back(ToStore<float>(spec.name, spec.shape, found->second));
  WriteSafetensors(path, named, {{std::string(kConfigKey), ToJson(config).dump()}});
}

std::string LoadMessage(const std::string& path) {
  try {
    LoadModel(path);
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

TEST(ModelFile, CarriesAVocabularyOfOddSize) {
  const TemporaryDirectory directory;
  const std::string path = directory / "m.safetensors";
  const ModelConfig config = SmallConfig(false);
  const Bytes vocabulary = {0, 255, 7};
  SaveModel(path, config, SomeTensors(config), DType::kBF16, {}, vocabulary);
  const ModelFile model = LoadModel(path);
  EXPECT_EQ(model.vocabulary, vocabulary);
  EXPECT_EQ(model.tensors, SomeTensors(config));
  EXPECT_EQ(model.storage, DType::kBF16);
  SaveModel(path, config, SomeTensors(config));
  EXPECT_TRUE(LoadModel(path).vocabulary.empty());
}

TEST(ModelFile, RoundTripsInEveryStorageType) {
  const TemporaryDirectory directory;
  const std::string path = directory / "m.safetensors";
  for (const bool tied : {false, true}) {
    const ModelConfig config = SmallConfig(tied);
    const auto tensors = SomeTensors(config);
    for (const DType storage : {DType::kF32, DType::kF16, DType::kBF16}) {
      SaveModel(path, config, tensors, storage, {{"step", "100"}});
      const ModelFile model = LoadModel(path);
      EXPECT_EQ(ToJson(model.config), ToJson(config));
      EXPECT_EQ(model.tensors, tensors);
      EXPECT_EQ(model.storage, storage);
      EXPECT_EQ(model.metadata, (std::map<std::string, std::string>{{"step", "100"}}));
    }
  }
}

// G5: the config says tied. Without a head it is tied; with one, equal or different, it is untied.
TEST(ModelFile, TiedByConfigUntiedIfBothAreThere) {
  const TemporaryDirectory directory;
  const std::string path = directory / "m.safetensors";
  const ModelConfig tied = SmallConfig(true);
  auto tensors = SomeTensors(SmallConfig(false));
  auto& head = tensors["head.weight"];
  const auto& embedding = tensors["embed.weight"];
  std::copy_n(embedding.begin(), head.size(), head.begin());  // equal
  WriteRaw(path, tied, tensors);
  EXPECT_FALSE(LoadModel(path).config.tied);
  head[3] += 1;  // different
  WriteRaw(path, tied, tensors);
  ModelFile model = LoadModel(path);
  EXPECT_FALSE(model.config.tied);
  EXPECT_EQ(model.Get("head.weight"), head);
  tensors.erase("head.weight");
  WriteRaw(path, tied, tensors);
  model = LoadModel(path);
  EXPECT_TRUE(model.config.tied);
  EXPECT_EQ(model.tensors.count("head.weight"), 0u);
  WriteRaw(path, SmallConfig(false), tensors);
  EXPECT_THAT(LoadMessage(path), HasSubstr("1 missing: head.weight"));
}

// G6: embedding dropped, head kept.
TEST(ModelFile, AMissingEmbeddingIsAnErrorEvenIfTied) {
  const TemporaryDirectory directory;
  const std::string path = directory / "m.safetensors";
  auto tensors = SomeTensors(SmallConfig(false));
  tensors.erase("embed.weight");
  for (const bool tied : {true, false}) {
    WriteRaw(path, SmallConfig(tied), tensors);
    EXPECT_THAT(LoadMessage(path),
                AllOf(HasSubstr("[model] " + path), HasSubstr("1 missing: embed.weight")));
  }
}

TEST(ModelFile, MissingAndSurplusTensorsAreListedTogether) {
  const TemporaryDirectory directory;
  const std::string path = directory / "m.safetensors";
  const auto tensors = SomeTensors(SmallConfig(false));
  std::vector<NamedTensor> named;
  for (const auto& spec : Parameters(SmallConfig(false)))
    if (spec.name != "norm.bias" && spec.name != "layers.0.attn.q_proj.weight")
      named.push_back(ToStore<float>(spec.name, spec.shape, tensors.at(spec.name)));
  const std::vector<float> one = {1};
  named.push_back(ToStore<float>("extra", {1}, one));
  WriteSafetensors(path, named, {{std::string(kConfigKey), ToJson(SmallConfig(false)).dump()}});
  EXPECT_THAT(LoadMessage(path),
              AllOf(HasSubstr("2 missing: layers.0.attn.q_proj.weight, norm.bias"),
                    HasSubstr("; 1 surplus: extra")));
}

TEST(ModelFile, ShapesAndConfigAreChecked) {
  const TemporaryDirectory directory;
  const std::string path = directory / "m.safetensors";
  const ModelConfig config = SmallConfig(false);
  const auto tensors = SomeTensors(config);
  ModelConfig wider = config;
  wider.mlp_dim = 9;
  WriteRaw(path, wider, tensors);
  EXPECT_THAT(LoadMessage(path), HasSubstr("tensor 'layers.0.mlp.up_proj.weight' must be [9,4] by "
                                           "the config, but has shape [8,4]"));
  WriteSafetensors(path, {}, {{"other", "x"}});
  EXPECT_THAT(LoadMessage(path), HasSubstr("metadata must hold the model's config"));
  WriteSafetensors(path, {}, {{std::string(kConfigKey), "{\"dim\":"}});
  EXPECT_THAT(LoadMessage(path), HasSubstr(path + ": config is not valid JSON"));
  WriteSafetensors(path, {}, {{std::string(kConfigKey), "{\"dimm\":4}"}});
  EXPECT_THAT(LoadMessage(path), AllOf(HasSubstr(path), HasSubstr("dimm")));
}

TEST(ModelFile, SaveRefusesWhatItCouldNotLoad) {
  const TemporaryDirectory directory;
  const std::string path = directory / "m.safetensors";
  const ModelConfig config = SmallConfig(false);
  auto tensors = SomeTensors(config);
  tensors["norm.bias"][0] = 70000;
  EXPECT_NO_THROW(SaveModel(path, config, tensors, DType::kBF16));
  EXPECT_THROW(SaveModel(path, config, tensors, DType::kF16), Error);
  tensors["norm.bias"][0] = std::numeric_limits<float>::max();
  EXPECT_THROW(SaveModel(path, config, tensors, DType::kBF16), Error);
  tensors["norm.bias"].push_back(0);
  EXPECT_THROW(SaveModel(path, config, tensors), Error);
  tensors.erase("norm.bias");
  EXPECT_THROW(SaveModel(path, config, tensors), Error);
  EXPECT_THROW(SaveModel(path, config, SomeTensors(config), DType::kF64), Error);
}

}  // namespace
}  // namespace linattn
