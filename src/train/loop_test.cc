#include "train/loop.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <omp.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/png.h"
#include "base/safetensors.h"
#include "base/temporary_directory.h"
#include "model/model_file.h"
#include "nn/transformer.h"
#include "runtime/full_pass.h"
#include "train/optimiser.h"

namespace linattn {
namespace {

using testing::HasSubstr;

// A byte model of a page of Shakespeare with dropout, accumulation and running means: everything
// that a checkpoint must carry.
RunConfig TinyText(const std::vector<std::string>& more = {}) {
  std::vector<std::string> sets = {"model.base=none",
                                   "model.mixer=linear,softmax",
                                   "model.layers=2",
                                   "model.task=text",
                                   "model.max_len=32",
                                   "model.dim=32",
                                   "model.heads=2",
                                   "model.head_dim=16",
                                   "model.value_dim=16",
                                   "model.mlp_dim=64",
                                   "model.position=learned",
                                   "model.head=categorical",
                                   "model.dropout=0.1",
                                   "data.source=" LINATTN_TESTDATA "/text/shakespeare-head.txt",
                                   "train.batch=3",
                                   "train.accumulate=2",
                                   "train.ema=0.9",
                                   "train.warmup=5",
                                   "train.dtype=f32",
                                   "train.eval_every=10",
                                   "train.eval_examples=7",
                                   "train.sample_every=0",
                                   "train.log_every=1",
                                   "train.checkpoint_every=10",
                                   "train.checkpoint_minutes=0",
                                   "train.schedule_steps=40"};
  sets.insert(sets.end(), more.begin(), more.end());
  return ResolveConfig("", sets);
}

void WritePictures(const std::string& directory) {
  std::filesystem::create_directories(directory + "/a");
  for (int i = 0; i < 20; ++i) {
    Image image{4, 4, 3, std::vector<uint8_t>(48, static_cast<uint8_t>(10 * i))};
    WritePng(fmt::format("{}/a/{}.png", directory, i), image);
  }
}

RunConfig TinyPictures(const std::string& directory) {
  return ResolveConfig(
      "",
      {"model.base=none", "model.layers=1", "model.mixer=linear", "model.height=4", "model.width=4",
       "model.channels=3", "model.classes=1", "model.dim=16", "model.heads=2", "model.head_dim=8",
       "model.value_dim=8", "model.mlp_dim=32", "data.source=png:" + directory, "train.steps=6",
       "train.batch=2", "train.sample_every=0", "train.warmup=0"});
}

// All that was written to `log`, which is closed.
std::string TextOf(std::FILE* log) {
  std::string text(static_cast<size_t>(std::ftell(log)), '\0');
  std::rewind(log);
  text.resize(std::fread(text.data(), 1, text.size(), log));
  std::fclose(log);
  return text;
}

RunOptions In(const std::string& directory) {
  RunOptions options;
  options.directory = directory;
  return options;
}

Bytes WeightsOf(const std::string& directory, int64_t step) {
  const auto file = SafetensorsFile::Open(CheckpointFiles(directory + "/checkpoints").Path(step));
  Bytes bytes;
  for (const auto& [name, tensor] : file.tensors()) {
    bytes.insert(bytes.end(), tensor.bytes.begin(), tensor.bytes.end());
  }
  return bytes;
}

std::vector<nlohmann::json> MetricsOf(const std::string& directory) {
  std::vector<nlohmann::json> lines;
  std::ifstream file(directory + "/metrics.jsonl");
  for (std::string line; std::getline(file, line);) lines.push_back(nlohmann::json::parse(line));
  return lines;
}

std::string MessageOf(const std::function<void()>& act, Fault fault) {
  try {
    act();
  } catch (const Error& e) {
    EXPECT_EQ(e.fault(), fault);
    return e.what();
  }
  return "no error";
}

struct Killed {};

// As a crash would: leaves the loop in the middle, after `step`'s files have been written.
RunOptions KilledAfter(const std::string& directory, int64_t step) {
  RunOptions options = In(directory);
  options.on_step = [step](int64_t done) {
    if (done == step) throw Killed();
  };
  return options;
}

class Loop : public testing::Test {
 protected:
  // Models this small lose more to barriers than a second thread gains.
  void SetUp() override {
    at::set_num_threads(1);
    omp_set_num_threads(1);
  }
  TemporaryDirectory directory_;
};

TEST_F(Loop, ResumedRunEqualsTheUnbrokenOneBitForBit) {  // D3
  const RunConfig config = TinyText({"train.steps=40"});
  Train(config, In(directory_ / "whole"));
  const Bytes whole = WeightsOf(directory_ / "whole", 40);
  const auto metrics = MetricsOf(directory_ / "whole");
  for (const int64_t step : {3, 10, 27}) {  // before the first checkpoint, at it, between two
    const std::string broken = directory_ / ("broken" + std::to_string(step));
    EXPECT_THROW(Train(config, KilledAfter(broken, step)), Killed);
    Resume(config, In(broken));
    EXPECT_TRUE(WeightsOf(broken, 40) == whole) << "killed after step " << step;
    // No step twice, none left out, and the same numbers.
    const auto resumed = MetricsOf(broken);
    ASSERT_EQ(resumed.size(), metrics.size());
    for (size_t i = 0; i < metrics.size(); ++i) {
      for (const char* key : {"step", "kind", "loss", "bits_per_byte"}) {
        EXPECT_EQ(resumed[i][key], metrics[i][key]);
      }
      EXPECT_EQ(resumed[i].value("lr", 0.0), metrics[i].value("lr", 0.0));
    }
  }
  EXPECT_EQ(ReadFile(directory_ / "broken27/model.safetensors"),
            ReadFile(directory_ / "whole/model.safetensors"));
}

TEST_F(Loop, RedrawnFeaturesResumeToo) {
  const auto features = [](const std::string& run) {
    return LoadModel(run + "/model.safetensors").Get("layers.0.attn.features");
  };
  const auto config = [](int64_t steps, int64_t every) {
    return TinyText({"model.mixer=performer", "train.export_weights=last",
                     fmt::format("train.steps={}", steps),
                     fmt::format("train.redraw_features_every={}", every)});
  };
  Train(config(20, 8), In(directory_ / "one"));
  EXPECT_THROW(Train(config(20, 8), KilledAfter(directory_ / "two", 13)), Killed);
  Resume(config(20, 8), In(directory_ / "two"));  // from step 10
  EXPECT_EQ(WeightsOf(directory_ / "two", 20), WeightsOf(directory_ / "one", 20));
  EXPECT_EQ(features(directory_ / "two"), features(directory_ / "one"));
  Train(config(20, 0), In(directory_ / "fixed"));
  EXPECT_NE(features(directory_ / "fixed"), features(directory_ / "one"));
}

TEST_F(Loop, EveryOptimiserAndBfloat16Resume) {
  for (const char* optimiser : {"adam", "adamw"}) {
    const RunConfig config = TinyText(
        {"train.steps=14", "train.dtype=bf16", std::string("train.optimiser=") + optimiser});
    const std::string whole = directory_ / (std::string(optimiser) + "-whole");
    const std::string broken = directory_ / (std::string(optimiser) + "-broken");
    Train(config, In(whole));
    EXPECT_THROW(Train(config, KilledAfter(broken, 12)), Killed);
    Resume(config, In(broken));
    EXPECT_TRUE(WeightsOf(broken, 14) == WeightsOf(whole, 14)) << optimiser;
  }
}

TEST_F(Loop, DamagedNewestCheckpointFallsBackOnTheOneBefore) {
  const RunConfig config = TinyText({"train.steps=30"});
  const std::string run = directory_ / "run";
  EXPECT_THROW(Train(config, KilledAfter(run, 25)), Killed);
  const CheckpointFiles files(run + "/checkpoints");
  ASSERT_EQ(files.Steps(), (std::vector<int64_t>{20, 10}));
  Bytes bytes = ReadFile(files.Path(20));
  const Bytes good = bytes;
  for (const bool cut : {true, false}) {
    bytes = good;
    if (cut) {
      bytes.resize(bytes.size() - 1);
    } else {
      bytes[bytes.size() / 2] ^= 1;  // one bit of one weight
    }
    std::ofstream(files.Path(20), std::ios::binary) << AsText(bytes);
    std::FILE* log = std::tmpfile();
    RunOptions options = In(run);
    options.log = log;
    options.on_step = [](int64_t step) {
      EXPECT_EQ(step, 11);
      throw Killed();
    };
    EXPECT_THROW(Resume(config, options), Killed);
    const std::string text = TextOf(log);
    EXPECT_THAT(text, HasSubstr(files.Path(20)));
    EXPECT_THAT(text, HasSubstr("damaged"));
    EXPECT_THAT(text, HasSubstr("resuming after step 10"));
  }
}

TEST_F(Loop, AllCheckpointsDamagedIsAnError) {
  const RunConfig config = TinyText({"train.steps=10"});
  Train(config, In(directory_ / "run"));
  const CheckpointFiles files(directory_ / "run/checkpoints");
  for (const int64_t step : files.Steps()) std::ofstream(files.Path(step)) << "not a checkpoint";
  for (int i = 0; i < 2; ++i) {  // the second try must not begin anew over the run
    EXPECT_THAT(MessageOf([&] { Resume(config, In(directory_ / "run")); }, Fault::kCaller),
                HasSubstr("whole checkpoint"));
  }
}

TEST_F(Loop, KeepsTheLastCheckpointsAndTheBest) {
  const CheckpointFiles files(directory_.path());
  for (const int64_t step : {10, 20, 30, 40, 1'000'000'000}) {
    WriteFileAtomic(files.Path(step), std::string_view("x"));
  }
  WriteFileAtomic(directory_ / "step-000000050.safetensors.tmp",
                  std::string_view("x"));  // a crash's
  files.Prune(2, 20);
  EXPECT_EQ(files.Steps(), (std::vector<int64_t>{1'000'000'000, 40, 20}));

  const std::string run = directory_ / "run";
  const RunResult result = Train(TinyText({"train.steps=60", "train.keep=2"}), In(run));
  const auto steps = CheckpointFiles(run + "/checkpoints").Steps();
  ASSERT_GE(steps.size(), 2u);
  EXPECT_EQ(steps[0], 60);
  EXPECT_EQ(steps[1], 50);
  const auto file = SafetensorsFile::Open(run + "/model.safetensors");
  EXPECT_EQ(file.metadata().at("linattn.step"), std::to_string(result.state.best_step));
}

TEST_F(Loop, StopsWhenAskedAndGoesOn) {
  const RunConfig config = TinyText({"train.steps=20"});
  RunOptions options = In(directory_ / "run");
  int64_t done = 0;
  options.on_step = [&](int64_t step) { done = step; };
  options.stop = [&] { return done == 7; };
  const RunResult result = Train(config, options);
  EXPECT_EQ(result.end, RunResult::End::kStopped);
  EXPECT_EQ(result.state.step, 7);
  EXPECT_EQ(CheckpointFiles(directory_ / "run/checkpoints").Steps().front(), 7);
  EXPECT_EQ(Resume(config, In(directory_ / "run")).state.step, 20);
}

TEST_F(Loop, RefusesToMixRuns) {
  const RunConfig config = TinyText({"train.steps=5"});
  const std::string run = directory_ / "run";
  Train(config, In(run));
  EXPECT_THAT(MessageOf([&] { Train(config, In(run)); }, Fault::kCaller), HasSubstr("--resume"));
  EXPECT_THAT(MessageOf([&] { Resume(TinyText({"train.lr=0.5"}), In(run)); }, Fault::kCaller),
              HasSubstr("train.lr (0.001, not 0.5)"));
}

TEST_F(Loop, StepsPastTheScheduleStayAtTheFinalRate) {  // D5
  const RunConfig config =
      TinyText({"train.steps=10", "train.schedule_steps=0", "train.final_lr=1e-5"});
  Train(config, In(directory_ / "run"));
  RunConfig longer = config;
  longer.train.steps = 15;
  Resume(longer, In(directory_ / "run"));
  std::map<int64_t, double> rates;
  for (const auto& line : MetricsOf(directory_ / "run")) {
    if (line["kind"] == "train") rates[line["step"]] = line["lr"];
  }
  ASSERT_EQ(rates.size(), 15u);
  EXPECT_GT(rates[9], 1e-5);
  for (int64_t step = 10; step <= 15; ++step) EXPECT_DOUBLE_EQ(rates[step], 1e-5) << step;
  // Extending the schedule is explicit.
  longer.train.steps = 16, longer.train.schedule_steps = 30;
  Resume(longer, In(directory_ / "run"));
  EXPECT_GT(MetricsOf(directory_ / "run").back().value("lr", 1.0), 1e-5);
}

TEST_F(Loop, ByteModelStartsAtUniformAndLearns) {  // D10
  const RunConfig config = TinyText(
      {"train.steps=250", "train.batch=16", "train.accumulate=1", "model.dim=64", "model.dropout=0",
       "model.head_dim=32", "model.value_dim=32", "model.mlp_dim=128", "train.lr=4e-3",
       "train.schedule_steps=250", "train.warmup=20", "train.eval_every=0", "train.eval_examples=0",
       "train.checkpoint_every=0", "train.ema=0"});
  const RunResult result = Train(config, In(directory_ / "run"));
  const auto metrics = MetricsOf(directory_ / "run");
  EXPECT_NEAR(metrics.front()["loss"].get<double>(), std::log(256.0), 0.1);  // held out, step 0
  EXPECT_NEAR(metrics[1]["loss"].get<double>(), std::log(256.0), 0.1);       // the first batch
  constexpr double kUnigramEntropy = 3.313;  // nats, of tinyshakespeare's bytes
  EXPECT_LT(result.metric * std::log(2.0), kUnigramEntropy);
}

TEST_F(Loop, NonFiniteLossNamesStepAndLayerAndKeepsCheckpoints) {  // D7
  const std::string run = directory_ / "run";
  const RunConfig config = TinyText({"train.steps=20"});
  EXPECT_THROW(Train(config, KilledAfter(run, 10)), Killed);
  // A NaN in one weight of the newest checkpoint stands for any way of getting one.
  const CheckpointFiles files(run + "/checkpoints");
  Transformer model(config.model);
  const NamedTensors parameters = model.NamedParameters();
  Optimiser optimiser(config.train, parameters);
  NamedTensors all;
  for (const auto& [name, tensor] : parameters) all.emplace_back(name, tensor.detach());
  for (const auto& [name, tensor] : optimiser.Moments())
    all.emplace_back("optimiser." + name, tensor);
  for (const auto& [name, tensor] : parameters)
    all.emplace_back("ema." + name, tensor.detach().clone());
  all.emplace_back("random.torch", at::globalContext().defaultGenerator(at::kCPU).get_state());
  const RunState state = LoadCheckpoint(files.Path(10), all);
  for (auto& [name, tensor] : all) {
    if (name == "layers.1.mlp.up_proj.weight") tensor.view(-1)[5] = std::nan("");
  }
  SaveCheckpoint(files.Path(10), state, config, all);

  const Bytes before = ReadFile(files.Path(10));
  const std::string message = MessageOf([&] { Resume(config, In(run)); }, Fault::kInternal);
  EXPECT_THAT(message, HasSubstr("step 11"));
  EXPECT_THAT(message, HasSubstr("layers.1.mlp"));
  EXPECT_THAT(message, HasSubstr(files.Path(10)));
  EXPECT_EQ(files.Steps(), (std::vector<int64_t>{10}));
  EXPECT_EQ(ReadFile(files.Path(10)), before);
}

TEST_F(Loop, RateOfTenKeepsTheLastGoodCheckpoint) {  // D7
  const RunConfig config =
      TinyText({"train.steps=300", "train.lr=1e30", "train.warmup=200", "train.schedule=constant",
                "train.clip=0", "train.keep=50", "train.checkpoint_every=1", "train.eval_every=0"});
  const std::string message =
      MessageOf([&] { Train(config, In(directory_ / "run")); }, Fault::kInternal);
  EXPECT_THAT(message, HasSubstr("step "));
  EXPECT_THAT(message, testing::AnyOf(HasSubstr("layers."), HasSubstr("norm"), HasSubstr("head"),
                                      HasSubstr("embed"), HasSubstr("position")));
  const CheckpointFiles files(directory_ / "run/checkpoints");
  for (const int64_t step : files.Steps()) {
    const auto file = SafetensorsFile::Open(files.Path(step));
    for (const auto& [name, tensor] : file.tensors()) {
      if (name == "random.torch") continue;
      for (const float x : file.Floats(name)) ASSERT_TRUE(std::isfinite(x)) << step << " " << name;
    }
  }
}

TEST_F(Loop, SkipsNonFiniteStepsIfToldTo) {
  // A rate that ruins the weights for good: skipping must say so each time, and end some day.
  const RunConfig config =
      TinyText({"train.steps=300", "train.lr=1e30", "train.warmup=200", "train.schedule=constant",
                "train.clip=0", "train.eval_every=0", "train.checkpoint_every=0",
                "train.skip_nonfinite=true"});
  std::FILE* log = std::tmpfile();
  RunOptions options = In(directory_ / "run");
  options.log = log;
  const std::string message = MessageOf([&] { Train(config, options); }, Fault::kInternal);
  EXPECT_THAT(message, HasSubstr("must be finite"));
  const std::string text = TextOf(log);
  int skipped = 0;
  for (size_t at = text.find("skipped step"); at != std::string::npos;
       at = text.find("skipped step", at + 1)) {
    ++skipped;
  }
  EXPECT_EQ(skipped, 99);
}

TEST_F(Loop, AccumulatedBatchesAreTheLargeOne) {
  WritePictures(directory_ / "data");
  const auto losses = [&](const std::string& batch, const std::string& accumulate) {
    const std::string run = directory_ / ("run" + batch);
    RunConfig config = TinyPictures(directory_ / "data");
    config.train.batch = std::stoi(batch), config.train.accumulate = std::stoi(accumulate);
    config.train.dtype = "f32", config.train.log_every = 1;
    Train(config, In(run));
    std::vector<double> list;
    for (const auto& line : MetricsOf(run)) {
      if (line["kind"] == "train") list.push_back(line["loss"]);
    }
    return list;
  };
  const auto large = losses("6", "1"), small = losses("2", "3");
  ASSERT_EQ(large.size(), 6u);
  ASSERT_EQ(small.size(), 6u);
  // Sums in float32 of another order, amplified by six updates.
  for (size_t i = 0; i < 6; ++i) EXPECT_NEAR(small[i], large[i], 1e-3 * large[i]) << i;
  EXPECT_GT(std::abs(large[0] - large[1]), 1e-3 * large[0]);
}

TEST_F(Loop, LeanRuntimeGivesTrainingsLogits) {
  const RunConfig config = TinyText({"train.steps=60", "train.ema=0"});
  Train(config, In(directory_ / "run"));
  const std::string path = directory_ / "model.safetensors";
  const std::string from = ExportRun(directory_ / "run", path, "f32", /*best=*/false);
  EXPECT_EQ(from, CheckpointFiles(directory_ / "run/checkpoints").Path(60));

  const ModelFile file = LoadModel(path);
  Transformer model(config.model);
  Transformer::Weights weights;
  for (const auto& spec : Parameters(config.model)) {
    weights.emplace_back(spec.name, file.Get(spec.name));
  }
  model.Import(weights);
  model.SetTraining(false);
  const at::Tensor tokens = at::randint(0, 256, {2, 32}, at::kLong);
  tokens.select(1, 0).fill_(config.model.start_token(0));
  at::NoGradGuard no_gradient;
  const at::Tensor wanted = model.Forward(tokens).contiguous();

  const PackedModel packed(file.config, file.tensors);
  FullPass pass(packed);
  const at::Tensor ids = tokens.to(at::kInt).contiguous();
  const auto got = pass.Run({ids.data_ptr<int32_t>(), 64}, 2);
  ASSERT_EQ(static_cast<int64_t>(got.size()), wanted.numel());
  double worst = 0, largest = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const double value = wanted.data_ptr<float>()[i];
    worst = std::max(worst, std::abs(got[i] - value));
    largest = std::max(largest, std::abs(value));
  }
  EXPECT_GT(largest, 0.3);
  // Both sum a few thousand float32 products an output in orders of their own.
  EXPECT_LT(worst, 2e-5 * largest);
}

TEST_F(Loop, PicturesAreSampledOnTheWay) {
  WritePictures(directory_ / "data");
  RunConfig config = TinyPictures(directory_ / "data");
  config.train.sample_every = 3, config.train.samples = 4;
  Train(config, In(directory_ / "run"));
  for (const char* name : {"step-000000003.png", "step-000000006.png"}) {
    const Image grid = ReadPng(directory_ / (std::string("run/samples/") + name));
    EXPECT_EQ(grid.channels, 3);
    EXPECT_EQ(grid.height, 4 * 4 + 5 * 2);  // one class: one column
    EXPECT_EQ(grid.width, 4 + 2 * 2);
  }
  EXPECT_FALSE(std::filesystem::exists(directory_ / "run/samples/.model.safetensors"));
}

// A task's own figures of merit are reported, in training and evaluation; the best is the highest
// where that is better.
TEST_F(Loop, AccuracyIsBestWhereItIsHighest) {
  RunConfig config = TinyText({"model.task=recall", "model.vocab=41", "model.max_len=64",
                               "data.pairs=8", "train.steps=40", "train.lr=1e-2"});
  config.train.samples = 2, config.train.sample_every = 20;  // this task has none
  const RunResult result = Train(config, In(directory_ / "run"));
  double best = -1;
  int64_t best_step = -1;
  for (const auto& line : MetricsOf(directory_ / "run")) {
    const double accuracy = line["accuracy"];
    EXPECT_TRUE(accuracy >= 0 && accuracy <= 1);
    EXPECT_TRUE(line.contains("accuracy_4") || line.contains("accuracy_8"));
    if (line["kind"] != "eval") continue;
    EXPECT_NEAR((line.value("accuracy_4", -1.0) + line.value("accuracy_8", -1.0)) / 2, accuracy,
                0.08);  // seven rows in three batches: not as many of each
    if (accuracy > best) best = accuracy, best_step = line["step"];
  }
  EXPECT_GT(best, 0);
  EXPECT_EQ(result.state.best_step, best_step);
  EXPECT_EQ(result.state.best_metric, best);
  EXPECT_TRUE(std::filesystem::is_empty(directory_ / "run/samples"));
}

TEST_F(Loop, CopiesAreSampledAsText) {
  RunConfig config = TinyText({"model.task=copy", "model.vocab=5", "model.max_len=10",
                               "train.steps=2", "train.sample_every=2", "train.samples=3"});
  Train(config, In(directory_ / "run"));
  const std::string text(AsText(ReadFile(directory_ / "run/samples/step-000000002.txt")));
  EXPECT_THAT(text, HasSubstr(" wrong\n"));
  EXPECT_TRUE(MetricsOf(directory_ / "run").back().contains("bits_per_symbol"));
}

TEST_F(Loop, MinutesEndTheRun) {
  const RunConfig config = TinyText({"train.minutes=0.05", "train.schedule_steps=0"});
  const RunResult result = Train(config, In(directory_ / "run"));
  EXPECT_EQ(result.end, RunResult::End::kFinished);
  EXPECT_GT(result.state.step, 0);
  // The schedule's length has been settled, and is in the checkpoint.
  EXPECT_GE(result.state.total, result.state.step);
  EXPECT_TRUE(std::filesystem::exists(directory_ / "run/model.safetensors"));
}

}  // namespace
}  // namespace linattn
