#include "train/linearize.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <numeric>
#include <set>

#include "base/error_testing.h"
#include "base/file.h"
#include "base/png.h"
#include "base/temporary_directory.h"
#include "tasks/task.h"
#include "train/linearize_testing.h"
#include "train/linearize_verb.h"
#include "train/optimiser.h"
#include "train/score.h"

namespace linattn {
namespace {

using ::testing::HasSubstr;

double Sum(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

// Names of the tensors of `after` that are not, bit for bit, in `before`.
std::set<std::string> Changed(const ModelFile& before, const ModelFile& after) {
  std::set<std::string> names;
  for (const auto& [name, values] : after.tensors) {
    const auto found = before.tensors.find(name);
    if (found == before.tensors.end() || found->second != values) names.insert(name);
  }
  return names;
}

// A task's first metric; the parts of Linearize measured by hand.
double Measured(const ModelFile& file, const TaskOptions& options) {
  Transformer model(file.config);
  Transformer::Weights weights;
  for (const auto& [name, values] : model.Export()) weights.emplace_back(name, file.Get(name));
  model.Import(weights);
  model.SetTraining(false);
  return ScoreHeldOut(model, *MakeTask(options)).headline();
}

std::function<bool()> After(int calls) {
  return [calls, n = 0]() mutable { return ++n > calls; };
}

TEST(Linearize, MeasuresEachPartAndRecovers) {
  const ModelFile teacher = UntrainedModel(TinyTextConfig({"softmax", "softmax"}));
  const LinearizeOptions options = TinyLinearize(40);
  const LinearizeResult r = Linearize(teacher, options);
  EXPECT_FALSE(r.stopped);
  EXPECT_EQ(r.metric, "bits_per_byte");
  EXPECT_EQ(r.transfer_steps, 40);
  EXPECT_EQ(r.steps, 40);
  EXPECT_EQ(r.skipped, 0);
  for (const double value : {r.before, r.swapped, r.transferred, r.recovered})
    EXPECT_TRUE(value > 0 && value < 20) << value;
  EXPECT_LT(r.recovered, r.swapped - 0.5);  // the teacher knows nothing
  EXPECT_LT(Sum(r.distance_after), 0.8 * Sum(r.distance_before));
  EXPECT_EQ(r.model.config.mixers, std::vector<std::string>(2, "linear"));
  EXPECT_EQ(r.before, HeldOut(teacher, options, "again"));

  const TemporaryDirectory directory;
  SaveModel(directory / "m", r.model.config, r.model.tensors);
  EXPECT_EQ(LoadModel(directory / "m").tensors, r.model.tensors);
}

TEST(Linearize, SwapAndTransferTouchFeatureMapsAlone) {
  const ModelFile teacher = UntrainedModel(TinyTextConfig({"softmax", "softmax"}));
  LinearizeOptions options = TinyLinearize(5);
  const ModelFile swapped = WithConfig(teacher, LinearizedConfig(teacher.config, options));
  std::set<std::string> maps;
  for (const char* layer : {"layers.0.attn.", "layers.1.attn."})
    for (const char* name : {"feature_map_q.weight", "feature_map_q.bias", "feature_map_k.weight",
                             "feature_map_k.bias"})
      maps.insert(std::string(layer) + name);
  EXPECT_EQ(Changed(teacher, swapped), maps);
  options.transfer_share = 1;
  const LinearizeResult r = Linearize(teacher, options);
  EXPECT_EQ(r.steps, 0);
  EXPECT_EQ(Changed(teacher, r.model), maps);
  EXPECT_EQ(Changed(swapped, r.model), maps);
  EXPECT_EQ(r.recovered, r.transferred);
}

TEST(Linearize, LayersThatAreNoSoftmaxHaveNoDistance) {
  const ModelFile teacher = UntrainedModel(TinyTextConfig({"softmax", "gated_delta"}));
  const LinearizeResult r = Linearize(teacher, TinyLinearize(2));
  EXPECT_TRUE(std::isfinite(r.distance_before[0]));
  EXPECT_TRUE(std::isnan(r.distance_before[1]));
  EXPECT_EQ(r.model.config.mixers[1], "gated_delta");
}

TEST(Linearize, RefusesWhatLinearAttentionCannotStandInFor) {
  const auto refusal = [](const std::function<void(ModelConfig&)>& change,
                          const std::string& map = "hedgehog") {
    ModelConfig c = TinyTextConfig({"linear", "softmax"});
    c.feature_map = map;
    change(c);
    LinearizeOptions options;
    options.feature_map = map;
    return MessageOf([&] { LinearizedConfig(c, options); });
  };
  EXPECT_EQ(refusal([](ModelConfig&) {}), "no error");
  EXPECT_EQ(refusal([](ModelConfig&) {}, "elu1"), "no error");  // its matrix begins as the identity
  EXPECT_THAT(refusal([](ModelConfig& c) { c.feature_map = "elu1"; }),
              HasSubstr("use --feature-map elu1"));
  EXPECT_THAT(refusal([](ModelConfig& c) { c.map_dim = 4; }), HasSubstr("of 4 channels"));
  EXPECT_THAT(refusal([](ModelConfig& c) {
                c.mixers = {"linear", "linear"};
              }),
              HasSubstr("must have a softmax layer"));
  EXPECT_THAT(refusal([](ModelConfig& c) { c.attn_conv_size = 4; }),
              HasSubstr("layer 1 has a convolution of width 4, and would have 0"));
  EXPECT_THAT(refusal([](ModelConfig& c) { c.kv_heads = 1; }), HasSubstr("heads of keys 1"));
  EXPECT_THAT(refusal([](ModelConfig& c) { c.output_gate = "swish"; }), HasSubstr("output gates"));
  EXPECT_THAT(refusal([](ModelConfig& c) { c.window = 8; }), HasSubstr("window = 8"));
  EXPECT_THAT(refusal([](ModelConfig& c) { c.block = "modern"; }), HasSubstr("block = modern"));
}

TEST(Linearize, NeedsTheDataOfATextModel) {
  const ModelFile teacher = UntrainedModel(TinyTextConfig({"softmax"}));
  EXPECT_THAT(MessageOf([&] { Linearize(teacher, {}); }), HasSubstr("--data"));
}

TEST(Linearize, VocabularyIsReadAndKept) {
#ifdef LINATTN_SANITIZED
  GTEST_SKIP() << "AddressSanitizer cannot keep SentencePiece's protobuf from LibTorch's";
#endif
  ModelConfig config = TinyTextConfig({"softmax"});
  TaskOptions task{config, TinyLinearize(1).data, 4, 6, 1};
  task.data.vocabulary = LINATTN_TESTDATA "/text/pieces.model";
  MakeTask(task)->FitModel(config);
  ModelFile teacher = UntrainedModel(config);
  teacher.vocabulary = ReadFile(task.data.vocabulary);
  const LinearizeResult r = Linearize(teacher, TinyLinearize(1));
  EXPECT_EQ(r.model.vocabulary, teacher.vocabulary);
  task.model = config;
  EXPECT_NEAR(r.before, Measured(teacher, task), 1e-9);
}

TEST(Linearize, ImagesAreMeasuredOnTheTestSplit) {
  const TemporaryDirectory directory;
  std::filesystem::create_directories(directory / "a");
  for (int i = 0; i < 20; ++i)
    WritePng(fmt::format("{}/a/{:02}.png", directory.path(), i),
             {2, 2, 1, std::vector<uint8_t>(4, static_cast<uint8_t>(12 * i))});
  ModelConfig config = TinyTextConfig({"softmax"});
  config.task = "images", config.position = "image", config.head = "logistic_mixture";
  config.height = config.width = 2, config.channels = 1, config.classes = 1, config.max_len = 4;
  const ModelFile teacher = UntrainedModel(config);
  LinearizeOptions options = TinyLinearize(1);
  options.data.source = "png:" + directory.path();
  TaskOptions task{config, options.data, 4, 0, 1};
  task.data.full_train = true;
  const double test = Measured(teacher, task);
  task.data.full_train = false;
  EXPECT_EQ(HeldOut(teacher, options, "softmax"), test);
  EXPECT_NE(Measured(teacher, task), test);
  EXPECT_EQ(HeldOutName("images"), "the test split");
}

// 2 held-out batches a figure, and a first one that is asked before it: stop in each part.
TEST(Linearize, StopKeepsWhatWasTrained) {
  const ModelFile teacher = UntrainedModel(TinyTextConfig({"softmax"}));
  LinearizeOptions options = TinyLinearize(10);
  options.stop = After(0);
  LinearizeResult r = Linearize(teacher, options);
  EXPECT_TRUE(r.stopped);
  EXPECT_EQ(r.transfer_steps + r.steps, 0);
  EXPECT_TRUE(std::isnan(r.before));

  const int measured = 2 * 2;  // batches, of two figures
  options.stop = After(measured + 4);
  r = Linearize(teacher, options);
  EXPECT_TRUE(r.stopped);
  EXPECT_EQ(r.transfer_steps, 4);
  EXPECT_EQ(r.steps, 0);
  EXPECT_TRUE(std::isfinite(r.swapped) && std::isnan(r.transferred) && std::isnan(r.recovered));
  const ModelFile swapped = WithConfig(teacher, r.model.config);
  EXPECT_EQ(Changed(swapped, r.model).size(), 4u);

  options.stop = After(measured + 10 + 2 + 3);
  r = Linearize(teacher, options);
  EXPECT_TRUE(r.stopped);
  EXPECT_EQ(r.steps, 3);
  EXPECT_TRUE(std::isfinite(r.transferred) && std::isnan(r.recovered));
  EXPECT_GT(Changed(swapped, r.model).size(), 4u);
}

TEST(Linearize, DivergenceLeavesTheFinishedTransfer) {
  const ModelFile teacher = UntrainedModel(TinyTextConfig({"softmax"}));
  LinearizeOptions options = TinyLinearize(120);
  options.lr = 1e38;
  const LinearizeResult r = Linearize(teacher, options);
  EXPECT_FALSE(r.stopped);
  EXPECT_EQ(r.skipped, kMostSkips);
  EXPECT_EQ(r.recovered, r.transferred);
  for (const auto& [name, values] : r.model.tensors)
    for (const float value : values) ASSERT_TRUE(std::isfinite(value)) << name;
}

// Padding changes nothing.
TEST(Linearize, DistanceIsOfTheRowsThatAreThere) {
  ModelConfig config = TinyTextConfig({"softmax", "softmax"});
  config.causal = false;
  const auto model = [](const ModelConfig& c) {
    const ModelFile file = UntrainedModel(c);
    Transformer made(c);
    Transformer::Weights weights;
    for (const auto& [name, values] : made.Export()) weights.emplace_back(name, file.Get(name));
    made.Import(weights);
    made.SetTraining(false);
    return made;
  };
  const Transformer teacher = model(config);
  const Transformer student = model(LinearizedConfig(config, {}));
  const at::Tensor tokens = at::randint(0, 256, {1, 7}, at::kLong);
  const at::Tensor padded = at::cat({tokens, at::full({1, 5}, 3, at::kLong)}, 1);
  const at::Tensor mask = at::arange(12).lt(7).unsqueeze(0);
  const at::Tensor wanted = student.AttentionDistance(teacher, tokens);
  EXPECT_TRUE(at::allclose(student.AttentionDistance(teacher, padded, &mask), wanted, 1e-4, 1e-6));
  EXPECT_FALSE(at::allclose(student.AttentionDistance(teacher, padded), wanted, 1e-4, 1e-6));
}

int asked = 0;
int InterruptedInTransfer() { return ++asked > 8 ? 2 : 0; }
int Never() { return 0; }

TEST(Linearize, VerbChecksOutFirstAndWritesWhatAnInterruptLeaves) {
  const TemporaryDirectory directory;
  LinearizeFlags flags;
  flags.options = TinyLinearize(10);
  flags.quiet = true;
  flags.model = directory / "teacher", flags.out = directory / "none/out";
  EXPECT_THAT(MessageOf([&] { RunLinearize(flags, Never); }), HasSubstr("--out"));
  const ModelFile teacher = UntrainedModel(TinyTextConfig({"softmax"}));
  SaveModel(flags.model, teacher.config, teacher.tensors);
  flags.out = directory / "out";
  testing::internal::CaptureStderr();
  testing::internal::CaptureStdout();
  EXPECT_EQ(RunLinearize(flags, InterruptedInTransfer), 130);
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              HasSubstr("stopped after 4 steps of attention transfer and 0 of all weights; "));
  const std::string out = testing::internal::GetCapturedStdout();
  EXPECT_THAT(out, HasSubstr("after the bare swap"));
  EXPECT_EQ(out.find("at the end"), out.npos);
  EXPECT_EQ(LoadModel(flags.out).config.mixers.front(), "linear");
}

}  // namespace
}  // namespace linattn
