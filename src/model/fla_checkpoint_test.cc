#include "model/fla_checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/temporary_directory.h"

namespace linattn {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Json = nlohmann::json;
namespace fs = std::filesystem;

std::string Original(const std::string& name) { return LINATTN_TESTDATA "/fla/" + name; }

// A copy of a checkpoint of testdata, to be spoilt.
class Copy {
 public:
  explicit Copy(const std::string& name) {
    for (const auto& entry : fs::directory_iterator(Original(name)))
      fs::copy_file(entry.path(), directory_ / entry.path().filename().string());
  }
  std::string path() const { return directory_.path(); }
  std::string operator/(const std::string& name) const { return directory_ / name; }

  void EditJson(const std::string& file, const std::function<void(Json&)>& edit) const {
    Json json = Json::parse(AsText(ReadFile(*this / file)));
    edit(json);
    WriteFileAtomic(*this / file, json.dump());
  }
  void EditTensors(const std::function<void(std::map<std::string, StoredTensor>&)>& edit) const {
    const auto file = SafetensorsFile::Open(*this / "model.safetensors");
    auto tensors = file.tensors();
    edit(tensors);
    std::vector<NamedTensor> named;
    for (const auto& [name, tensor] : tensors) named.push_back({name, tensor});
    WriteSafetensors(*this / "model.safetensors", named);
  }
  std::string Refusal() const {
    try {
      LoadFlaCheckpoint(path());
    } catch (const Error& e) {
      return e.what();
    }
    return "no error";
  }

 private:
  TemporaryDirectory directory_;
};

// Ours by fla's name and the other way round, byte for byte.
TEST(FlaCheckpointTest, TensorsKeepTheirValues) {
  const FlaCheckpoint got = LoadFlaCheckpoint(Original("gla"));
  const auto file = SafetensorsFile::Open(Original("gla") + "/model.safetensors");
  const auto& tensors = got.model.tensors;
  EXPECT_EQ(tensors.size(), file.tensors().size() + 1);  // head.bias
  const std::pair<const char*, const char*> names[] = {
      {"head.weight", "lm_head.weight"},
      {"norm.weight", "model.norm.weight"},
      {"layers.1.attn.o_norm.weight", "model.layers.1.attn.g_norm_swish_gate.weight"},
      {"layers.0.attn.gk_proj.1.bias", "model.layers.0.attn.gk_proj.1.bias"},
      {"layers.0.mlp.gate_proj.weight", "model.layers.0.mlp.gate_proj.weight"}};
  for (const auto& [ours, flas] : names) EXPECT_EQ(tensors.at(ours), file.Floats(flas)) << ours;

  const std::vector<float>& embed = tensors.at("embed.weight");
  std::vector<float> want = file.Floats("model.embeddings.weight");
  want.insert(want.end(), want.begin() + 32, want.begin() + 64);  // the start token is token 1
  EXPECT_EQ(embed, want);
  EXPECT_EQ(tensors.at("head.bias"), std::vector<float>(40, 0.0f));
}

TEST(FlaCheckpointTest, StorageLosesNothing) {
  EXPECT_EQ(LoadFlaCheckpoint(Original("gla")).model.storage, DType::kBF16);
  EXPECT_EQ(LoadFlaCheckpoint(Original("delta_net_no_conv")).model.storage, DType::kF16);
  EXPECT_EQ(LoadFlaCheckpoint(Original("delta_net")).model.storage, DType::kF32);
  // BF16, but for A_log and dt_bias.
  EXPECT_EQ(LoadFlaCheckpoint(Original("gated_deltanet")).model.storage, DType::kF32);
}

TEST(FlaCheckpointTest, WithoutBosTheStartTokenIsZero) {
  const Copy copy("kda");
  copy.EditJson("config.json", [](Json& c) { c["bos_token_id"] = c["eos_token_id"] = nullptr; });
  const FlaCheckpoint got = LoadFlaCheckpoint(copy.path());
  const std::vector<float>& embed = got.model.tensors.at("embed.weight");
  EXPECT_EQ(std::vector<float>(embed.end() - 32, embed.end()), std::vector<float>(32, 0.0f));
}

TEST(FlaCheckpointTest, EveryWrongTensorIsNamedWithItsShapes) {
  const Copy copy("hybrid");
  const std::vector<float> zeros(64);
  copy.EditTensors([&](auto& tensors) {
    tensors.erase("model.layers.0.attn.b_proj.weight");
    tensors.erase("model.layers.1.attn.q_proj.bias");
    tensors["model.layers.2.attn.q_conv1d.bias"] =
        ToStore<float>("", {16}, std::span(zeros).first(16)).tensor;
    tensors["model.layers.2.attn.A_log"] =
        ToStore<float>("", {1, 1, 2, 1}, std::span(zeros).first(2)).tensor;
  });
  EXPECT_EQ(copy.Refusal(),
            "[fla] " + copy.path() +
                " must hold the tensors of its config.json, but 2 missing: "
                "model.layers.0.attn.b_proj.weight [2,32], model.layers.1.attn.q_proj.bias [32]; "
                "1 surplus: model.layers.2.attn.q_conv1d.bias [16]; "
                "1 of another shape: model.layers.2.attn.A_log must be [2], but is [1,1,2,1]");
}

TEST(FlaCheckpointTest, ConfigAndTensorsMustAgree) {
  const std::tuple<const char*, const char*, Json, const char*> cases[] = {
      {"gla", "num_hidden_layers", 3, "14 missing: "},
      {"gla", "num_hidden_layers", 1, "14 surplus: "},
      {"gla", "use_short_conv", true, "model.layers.0.attn.q_conv1d.weight [16,1,4]"},
      {"gla", "vocab_size", 41, "model.embeddings.weight must be [41,32], but is [40,32]"},
      {"gla", "intermediate_size", nullptr, "up_proj.weight must be [256,32], but is [24,32]"},
      {"gla", "use_output_gate", false, "g_proj.weight [32,32]"},
      {"kda", "num_v_heads", 4, "A_log must be [4], but is [2]"},
      {"gated_deltanet", "use_gate", false, "g_proj.weight [48,32]"},
      {"linear_attn", "elementwise_affine", false, "model.layers.0.attn.norm.weight [8]"}};
  for (const auto& [name, field, value, message] : cases) {
    const Copy copy(name);
    copy.EditJson("config.json", [&, f = field, v = value](Json& c) { c[f] = v; });
    EXPECT_THAT(copy.Refusal(), HasSubstr(message)) << name << " " << field;
  }
}

TEST(FlaCheckpointTest, TiedHeadsAreTheEmbedding) {
  const Copy same("kda"), other("kda");
  for (const Copy* copy : {&same, &other})
    copy->EditJson("config.json", [](Json& c) { c["tie_word_embeddings"] = true; });
  same.EditTensors([](auto& t) { t["lm_head.weight"] = t["model.embeddings.weight"]; });
  const FlaCheckpoint got = LoadFlaCheckpoint(same.path());
  EXPECT_TRUE(got.model.config.tied);
  EXPECT_EQ(got.model.tensors.count("head.weight"), 0u);
  EXPECT_THAT(other.Refusal(), HasSubstr("lm_head.weight must be model.embeddings.weight"));
}

TEST(FlaCheckpointTest, ShardsMustHoldWhatTheIndexSays) {
  const std::string index = "model.safetensors.index.json";
  const std::string first = "model-00001-of-00002.safetensors";
  const Copy whole("delta_net");
  EXPECT_EQ(LoadFlaCheckpoint(whole.path()).model.tensors.size(), 32u);
  fs::remove(whole / first);
  EXPECT_THAT(whole.Refusal(), AllOf(HasSubstr("is missing"), HasSubstr(first)));  // G7

  const auto refusal = [&](const std::function<void(Json&)>& edit) {
    const Copy copy("delta_net");
    copy.EditJson(index, edit);
    return copy.Refusal();
  };
  const std::string norm = "model.norm.weight", embed = "model.embeddings.weight";
  EXPECT_THAT(refusal([&](Json& j) { j["weight_map"][norm] = first; }),
              HasSubstr(first + ": must hold tensor 'model.norm.weight'"));
  EXPECT_THAT(refusal([&](Json& j) { j["weight_map"]["model.extra"] = first; }),
              HasSubstr("must hold tensor 'model.extra'"));
  EXPECT_THAT(refusal([&](Json& j) { j["weight_map"][embed] = "../x.safetensors"; }),
              HasSubstr("must be in a file *.safetensors beside it, but is in"));
  EXPECT_THAT(refusal([&](Json& j) { j["weight_map"][embed] = 3; }), HasSubstr("but is in 3"));
  EXPECT_THAT(refusal([](Json& j) { j.erase("weight_map"); }), HasSubstr("weight_map"));
  EXPECT_THAT(refusal([](Json& j) { j["weight_map"] = Json::object(); }), HasSubstr("31 missing"));
  EXPECT_THAT(refusal([](Json& j) { j = Json::array(); }), HasSubstr("weight_map"));
}

TEST(FlaCheckpointTest, TheIndexDecidesAndStrayFilesAreIgnored) {  // G8
  const Copy copy("delta_net");
  const auto want = LoadFlaCheckpoint(copy.path()).model.tensors;
  const auto first = SafetensorsFile::Open(copy / "model-00001-of-00002.safetensors");
  const std::vector<float> others(1 << 16, 7.0f);
  std::vector<NamedTensor> stray;
  for (const auto& [name, tensor] : first.tensors()) {
    const std::span<const float> values(others.data(), tensor.size());
    stray.push_back(ToStore(name, tensor.shape, values));
  }
  WriteSafetensors(copy / "model.safetensors", stray);
  WriteSafetensors(copy / "model-00003-of-00002.safetensors", stray);
  EXPECT_EQ(LoadFlaCheckpoint(copy.path()).model.tensors, want);
}

TEST(FlaCheckpointTest, BrokenFilesAreNamed) {
  const Copy cut("gla");
  fs::resize_file(cut / "model.safetensors", 20000);
  EXPECT_THAT(cut.Refusal(), AllOf(HasSubstr("[fla] "), HasSubstr("model.safetensors")));
  WriteFileAtomic(cut / "config.json", std::string_view("{\"model_type\": \"gla\", "));
  EXPECT_THAT(cut.Refusal(), HasSubstr("config.json is not valid JSON"));
  WriteFileAtomic(cut / "config.json", std::string((1 << 20) + 1, ' '));
  EXPECT_THAT(cut.Refusal(), HasSubstr("must have at most 1048576 bytes, but has 1048577"));
  fs::remove(cut / "config.json");
  EXPECT_THAT(cut.Refusal(), HasSubstr("cannot read"));

  const Copy pickle("gla");
  fs::rename(pickle / "model.safetensors", pickle / "pytorch_model.bin");
  EXPECT_THAT(pickle.Refusal(), AllOf(HasSubstr("holds neither"), HasSubstr("pickle")));

  const Copy integers("gla");
  const std::vector<int64_t> ids(32);
  integers.EditTensors([&](auto& tensors) {
    tensors["model.norm.weight"] = ToStore<int64_t>("", {32}, ids).tensor;
  });
  EXPECT_THAT(integers.Refusal(), HasSubstr("model.norm.weight"));
}

}  // namespace
}  // namespace linattn
