// A model of speech learns five words, and the lean runtime reads what it has learned.
#include <gmock/gmock.h>

#include <cmath>
#include <filesystem>
#include <numbers>

#include "base/error.h"
#include "base/file.h"
#include "base/random.h"
#include "base/temporary_directory.h"
#include "data/frame_stream.h"
#include "kernels/ctc_decode.h"
#include "model/model_file.h"
#include "runtime/full_pass.h"
#include "tasks/task.h"
#include "train/loop.h"

namespace linattn {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

const char* const kWords[] = {"ab", "ba", "aab", "c", "cab"};

// Each letter is a tone of its own for 120 ms, a little louder or longer each time.
Audio Spoken(const std::string& word, Random& random) {
  Audio audio{8000, {}};
  for (const char letter : " " + word + " ") {
    const double hertz = letter == ' ' ? 0 : 400.0 * (letter - 'a' + 1);
    const auto n = static_cast<int64_t>(900 + random.Below(120));
    for (int64_t i = 0; i < n; ++i) {
      const double fade =
          std::sin(std::numbers::pi * static_cast<double>(i) / static_cast<double>(n));
      const double tone = std::sin(2 * std::numbers::pi * hertz * static_cast<double>(i) / 8000);
      audio.samples.push_back(
          static_cast<float>(0.4 * fade * tone + 0.003 * (random.Uniform() - 0.5)));
    }
  }
  return audio;
}

RunConfig Config(const std::string& manifest, int64_t blank) {
  RunConfig c;
  ModelConfig& m = c.model;
  m.task = "speech", m.causal = false, m.sample_rate = 8000, m.input_features = 20;
  m.subsample = 4, m.position = "sinusoidal", m.head = "categorical", m.max_len = 100;
  m.dim = 32, m.heads = m.value_heads = 2, m.head_dim = m.value_dim = 16, m.mlp_dim = 64;
  m.mixers = {"linear", "linear"}, m.blank = blank;
  c.data.source = manifest, c.data.time_masks = 1, c.data.time_mask = 4, c.data.mel_mask = 3;
  c.train.steps = 50, c.train.batch = 8, c.train.lr = 1e-2, c.train.warmup = 5;
  c.train.optimiser = "adam", c.train.dtype = "f32", c.train.eval_every = 0;
  c.train.sample_every = 0;
  return c;
}

class FiveWords : public ::testing::Test {
 protected:
  void SetUp() override {
    Random random(1);
    std::string text;
    for (int i = 0; i < 60; ++i) {
      const std::string name = fmt::format("{}.wav", i), word = kWords[i % 5];
      WriteWav(directory_ / name, Spoken(word, random));
      text += fmt::format("{}\t{}\t{}\n", name, word,
                          i < 40   ? "train"
                          : i < 50 ? "validation"
                                   : "test");
    }
    // CTC needs 3 rows for "aa"; this has 2.
    WriteWav(directory_ / "short.wav", {8000, std::vector<float>(200 + 4 * 80)});
    WriteFileAtomic(directory_ / "words.tsv", text + "short.wav\taa\ttrain\n");
  }
  std::string manifest() const { return directory_ / "words.tsv"; }

  // Share of characters that are wrong in the held-out words, read with this blank.
  double ErrorRate(const PackedModel& model, int64_t blank) {
    const ModelConfig& c = model.config();
    FullPass pass(model);
    double wrong = 0, all = 0;
    for (int i = 50; i < 60; ++i) {
      const Audio audio = ReadAudio(directory_ / fmt::format("{}.wav", i));
      const auto rows = RowsOf(
          {c.sample_rate, c.input_features, c.subsample, c.input_mean, c.input_deviation}, audio);
      std::vector<int32_t> wanted;
      for (const char letter : std::string(kWords[i % 5]))
        wanted.push_back(static_cast<int32_t>(
            std::find(c.units.begin(), c.units.end(), std::string(1, letter)) - c.units.begin()));
      const auto said = CtcGreedyLabels(pass.RunFrames(rows, 1), c.vocab, blank);
      wrong += static_cast<double>(EditDistance(wanted, said));
      all += static_cast<double>(wanted.size());
    }
    return wrong / all;
  }

  TemporaryDirectory directory_;
};

TEST_F(FiveWords, AreLearnedInFiftyStepsWithTheBlankWhereItIsSet) {  // E6
  for (const int64_t blank : {0, 3}) {
    RunOptions options;
    options.directory = directory_ / fmt::format("run{}", blank);
    const RunResult result = Train(Config(manifest(), blank), options);
    EXPECT_LT(result.metric, 0.1);  // of the validation set
    EXPECT_THAT(std::string(AsText(ReadFile(options.directory + "/left-out.txt"))),
                StartsWith("short.wav: too short for what is said: CTC needs 3 rows"));
    const ModelFile file = LoadModel(options.directory + "/model.safetensors");
    const std::vector<std::string> units = blank == 0 ? std::vector<std::string>{"", "a", "b", "c"}
                                                      : std::vector<std::string>{"a", "b", "c", ""};
    EXPECT_EQ(file.config.units, units);
    EXPECT_EQ(file.config.blank, blank);
    EXPECT_EQ(file.config.input_mean.size(), 20u);
    const PackedModel model(file.config, file.tensors);
    EXPECT_LT(ErrorRate(model, blank), 0.1);
    EXPECT_GT(ErrorRate(model, 3 - blank), 0.5);  // another blank than the model's
  }
}

TEST_F(FiveWords, WhatCannotBeAlignedIsNamed) {  // E1
  RunConfig c = Config(manifest(), 0);
  const auto task = [&] {
    return MakeTask({c.model, c.data, c.train.batch, c.train.eval_examples, 1});
  };
  EXPECT_THAT(task()->Summary(), HasSubstr("; 1 left out (1 too short for what is said)"));
  EXPECT_THAT(
      task()->left_out(),
      ElementsAre("short.wav: too short for what is said: CTC needs 3 rows for its 2 labels, "
                  "but 5 frames make 2"));
  c.data.unalignable = "refuse";
  try {
    task();
    FAIL();
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), HasSubstr("short.wav: CTC needs 3 rows"));
  }
}

TEST_F(FiveWords, WhatIsEmptyOrCutDoesNotEndTheTraining) {
  const std::string list(AsText(ReadFile(manifest())));
  Bytes wav = ReadFile(directory_ / "1.wav");
  wav.resize(wav.size() / 2);
  WriteFileAtomic(directory_ / "cut.wav", wav);
  WriteWav(directory_ / "empty.wav", {8000, {}});
  WriteWav(directory_ / "tiny.wav", {8000, std::vector<float>(150)});
  WriteFileAtomic(manifest(), list + "empty.wav\tab\ntiny.wav\tab\ttrain\ncut.wav\tba\ttrain\n");
  const RunConfig c = Config(manifest(), 0);
  const auto task = MakeTask({c.model, c.data, 8, 0, 1});
  EXPECT_THAT(task->Summary(), HasSubstr("40 utterances"));
  EXPECT_THAT(task->left_out(), Contains("tiny.wav: too short for what is said: CTC needs 2 rows "
                                         "for its 2 labels, but 0 frames make 0"));
  EXPECT_THAT(task->left_out(), Contains(StartsWith("cut.wav: cut: ")));
}

TEST_F(FiveWords, BatchesArePaddedMaskedAndTheSameEachTime) {
  const RunConfig c = Config(manifest(), 0);
  const auto task = MakeTask({c.model, c.data, 8, 0, 1});
  int64_t padded = 0, utterances = 0;
  for (int64_t i = 0; i < 5; ++i) {  // an epoch of 40
    const Batch batch = task->TrainBatch(i), again = task->TrainBatch(i);
    EXPECT_TRUE(batch.inputs.equal(again.inputs));
    EXPECT_EQ(batch.labels, again.labels);
    const int64_t T = batch.inputs.size(1);
    EXPECT_EQ(batch.inputs.size(2), 80);
    EXPECT_EQ(*std::max_element(batch.lengths.begin(), batch.lengths.end()), T);
    utterances += batch.inputs.size(0);
    if (!batch.mask.defined()) continue;
    for (size_t b = 0; b < batch.lengths.size(); ++b)
      EXPECT_EQ(batch.mask[static_cast<int64_t>(b)].sum().item<int64_t>(), batch.lengths[b]);
    padded += batch.inputs.size(0) * T - batch.tokens;
  }
  EXPECT_EQ(utterances, 40);
  EXPECT_GT(padded, 0);
}

}  // namespace
}  // namespace linattn
