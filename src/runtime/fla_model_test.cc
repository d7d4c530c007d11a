#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/safetensors.h"
#include "base/temporary_directory.h"
#include "model/fla_checkpoint.h"
#include "runtime/session_testing.h"

// Checkpoints of flash-linear-attention run as their definition says: testdata/fla is written by
// scripts/make_fla_checkpoints, which computes the logits by itself.
namespace linattn {
namespace {

// float32 sums through two or three layers: measured below 5e-6, but for t2r's 1.3e-5, whose small
// outputs the heads' RMSNorm enlarges by up to 1e-5^-1/2.
double BoundOf(const std::string& name) { return name == "linear_attn_t2r" ? 5e-5 : 2e-5; }

struct Expected {
  std::vector<int32_t> tokens;  // [T]
  std::vector<double> logits;   // [T, vocab]
  reference::Vector At(size_t t) const {
    const size_t vocab = logits.size() / tokens.size();
    return {logits.begin() + t * vocab, logits.begin() + (t + 1) * vocab};
  }
};

std::string Directory(const std::string& name) { return LINATTN_TESTDATA "/fla/" + name; }

Expected ExpectedOf(const std::string& name) {
  const auto file = SafetensorsFile::Open(Directory(name) + "/expected.safetensors");
  Expected want;
  want.logits = file.Doubles("logits");
  for (const int64_t id : file.Integers("tokens")) want.tokens.push_back(static_cast<int32_t>(id));
  return want;
}

class FlaModelTest : public ::testing::TestWithParam<const char*> {};

// Whole sequences, token by token, and in pieces; through a file, so that nothing is in memory
// only.
TEST_P(FlaModelTest, LogitsAreThoseOfTheDefinition) {
  const Expected want = ExpectedOf(GetParam());
  const double bound = BoundOf(GetParam());
  const size_t T = want.tokens.size();
  const TemporaryDirectory directory;
  const ModelFile converted = LoadFlaCheckpoint(Directory(GetParam())).model;
  const std::string path = directory / "model.safetensors";
  SaveModel(path, converted.config, converted.tensors, converted.storage, converted.metadata);
  const PackedModel model = PackedModel::Load(path);
  const int64_t vocab = model.config().vocab;
  FullPass pass(model);
  const std::span<const float> outputs = pass.Run(want.tokens, 1);
  Session session(model, 2);
  for (size_t t = 0; t < T; ++t) {
    SCOPED_TRACE(t);
    ExpectNear(outputs.subspan(t * vocab, vocab), want.At(t), bound);
    session.Step(std::vector<int64_t>{0}, std::vector<int32_t>{want.tokens[t]});
    ExpectNear(session.outputs(0), want.At(t), bound);
  }
  const std::span<const int32_t> tokens = want.tokens;
  session.Prefill(1, tokens.first(T / 2));
  session.Prefill(1, tokens.subspan(T / 2));
  ExpectNear(session.outputs(1), want.At(T - 1), bound);
}

// A start token stands for bos: the copy of its row gives what its id gives.
TEST_P(FlaModelTest, StartTokenIsBos) {
  const FlaCheckpoint checkpoint = LoadFlaCheckpoint(Directory(GetParam()));
  ASSERT_EQ(checkpoint.config.start_token, 1);
  const PackedModel model(checkpoint.model.config, checkpoint.model.tensors);
  Session session(model, 2);
  session.Prefill(0, std::vector<int32_t>{1});
  session.Prefill(1, std::vector<int32_t>{static_cast<int32_t>(model.config().start_token(0))});
  ExpectClose(session.outputs(0), session.outputs(1), 0);
}

// The logits can tell: with one field of the config wrong they are off by more than the bound.
TEST(FlaModelFieldsTest, WrongFieldsAreSeen) {
  using Change = void (*)(ModelConfig&);
  const std::pair<const char*, Change> cases[] = {
      {"linear_attn", [](ModelConfig& c) { c.attn_normalise = true; }},
      {"linear_attn_normalised", [](ModelConfig& c) { c.attn_normalise = false; }},
      {"linear_attn", [](ModelConfig& c) { c.feature_map = "relu"; }},
      {"gla", [](ModelConfig& c) { c.gate_divisor = 15; }},
      {"delta_net", [](ModelConfig& c) { c.qk_norm = "none"; }},
      {"kda_grouped", [](ModelConfig& c) { c.negative_eigenvalues = false; }},
      {"kda", [](ModelConfig& c) { c.output_gate = "swish"; }},
      {"hybrid", [](ModelConfig& c) { c.window = 6; }},
      {"hybrid", [](ModelConfig& c) { c.rope_theta = 1e3; }},
      {"hybrid", [](ModelConfig& c) { c.norm_eps = 1e-6; }}};
  int number = 0;
  for (const auto& [name, change] : cases) {
    const Expected want = ExpectedOf(name);
    ModelFile file = LoadFlaCheckpoint(Directory(name)).model;
    change(file.config);
    const PackedModel model(file.config, file.tensors);
    FullPass pass(model);
    const std::span<const float> got = pass.Run(want.tokens, 1);
    double error = 0, largest = 0;
    for (size_t i = 0; i < want.logits.size(); ++i) {
      error = std::max(error, std::abs(got[i] - want.logits[i]));
      largest = std::max(largest, std::abs(want.logits[i]));
    }
    EXPECT_GT(error, BoundOf(name) * largest) << name << ", case " << number;
    ++number;
  }
}

INSTANTIATE_TEST_SUITE_P(Checkpoints, FlaModelTest,
                         ::testing::Values("linear_attn", "linear_attn_normalised",
                                           "linear_attn_elementwise_product", "linear_attn_t2r",
                                           "linear_attn_dpfp", "linear_attn_hedgehog", "gla",
                                           "gla_conv", "delta_net", "delta_net_no_conv",
                                           "gated_deltanet", "kda", "kda_grouped", "hybrid"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace linattn
