#include "tasks/task.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <map>
#include <numbers>
#include <set>

#include "base/error.h"
#include "base/file.h"
#include "base/png.h"
#include "base/temporary_directory.h"
#include "nn/loss.h"

namespace linattn {
namespace {

using testing::HasSubstr;

// 2 x 3 grey pictures, ten of each of two classes: every fifth pixel value tells which one it is.
class Pictures : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    pictures_ = std::make_unique<TemporaryDirectory>();
    for (const char* split : {"train", "validation", "test"}) {
      for (int label = 0; label < 2; ++label) {
        const std::string folder = *pictures_ / (std::string(split) + "/" + "ab"[label]);
        std::filesystem::create_directories(folder);
        for (int i = 0; i < 10; ++i) {
          Image image{2, 3, 1, {}};
          for (int p = 0; p < 6; ++p) {
            image.pixels.push_back(static_cast<uint8_t>(100 * label + 10 * i + p));
          }
          WritePng(fmt::format("{}/{}.png", folder, i), image);
        }
      }
    }
  }
  static void TearDownTestSuite() { pictures_.reset(); }

  Pictures() {
    options_.model.height = 2, options_.model.width = 3, options_.model.channels = 1;
    options_.model.max_len = 6, options_.model.classes = 2;
    options_.model.mixers = {"linear"};
    options_.data.source = "png:" + pictures_->path();
    options_.batch = 3, options_.seed = 5;
  }

  static inline std::unique_ptr<TemporaryDirectory> pictures_;
  TemporaryDirectory directory_;
  TaskOptions options_;
};

std::vector<int64_t> Row(const at::Tensor& tensor, int64_t row) {
  const at::Tensor line = tensor[row].contiguous();
  return {line.data_ptr<int64_t>(), line.data_ptr<int64_t>() + line.numel()};
}

TEST_F(Pictures, RowsAreTheStartTokenThenThePictureShiftedByOne) {
  const auto task = MakeTask(options_);
  for (int64_t index = 0; index < 8; ++index) {
    const Batch batch = task->TrainBatch(index);
    EXPECT_EQ(batch.tokens, 18);
    for (int64_t row = 0; row < 3; ++row) {
      const auto inputs = Row(batch.inputs, row), targets = Row(batch.targets, row);
      EXPECT_EQ(inputs[0], 256 + (targets[0] >= 100));  // the class's start token
      for (int t = 1; t < 6; ++t) {
        EXPECT_EQ(inputs[t], targets[t - 1]);
        EXPECT_EQ(targets[t], targets[0] + t);
      }
    }
  }
}

TEST_F(Pictures, EveryEpochShowsEachPictureOnceInAnOrderOfItsOwn) {
  options_.batch = 1;
  const auto task = MakeTask(options_);
  std::vector<std::vector<int64_t>> epochs;
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    std::vector<int64_t> order;
    for (int64_t i = 0; i < 20; ++i) {
      order.push_back(Row(task->TrainBatch(20 * epoch + i).targets, 0)[0]);
    }
    EXPECT_EQ(std::set<int64_t>(order.begin(), order.end()).size(), 20u);
    epochs.push_back(order);
  }
  EXPECT_NE(epochs[0], epochs[1]);
  EXPECT_NE(epochs[1], epochs[2]);
}

TEST_F(Pictures, BatchesDependOnSeedAndIndexOnly) {
  options_.data.flip = true;
  const auto task = MakeTask(options_), fresh = MakeTask(options_);
  std::vector<Batch> batches;
  for (int64_t i = 0; i < 15; ++i) batches.push_back(task->TrainBatch(i));
  for (const int64_t i : {14, 0, 7, 6}) {  // in any order, across epochs: a resumed run
    EXPECT_TRUE(at::equal(fresh->TrainBatch(i).targets, batches[i].targets)) << i;
  }
  options_.seed = 6;
  EXPECT_FALSE(at::equal(MakeTask(options_)->TrainBatch(0).targets, batches[0].targets));
}

TEST_F(Pictures, FlipMirrorsAboutHalf) {
  options_.data.flip = true, options_.batch = 1;
  const auto task = MakeTask(options_);
  int mirrored = 0;
  for (int64_t i = 0; i < 200; ++i) {
    const auto pixels = Row(task->TrainBatch(i).targets, 0);
    if (pixels[0] % 10 == 2) {
      ++mirrored;
      EXPECT_THAT(pixels, testing::ElementsAre(pixels[0], pixels[0] - 1, pixels[0] - 2,
                                               pixels[0] + 3, pixels[0] + 2, pixels[0] + 1));
    } else {
      EXPECT_EQ(pixels[0] % 10, 0);
    }
  }
  EXPECT_GT(mirrored, 70);  // 100 expected, standard deviation 7
  EXPECT_LT(mirrored, 130);
}

TEST_F(Pictures, EvaluationIsSpreadOverTheHeldOutSet) {
  options_.eval_examples = 5;
  const auto task = MakeTask(options_);
  ASSERT_EQ(task->eval_batches(), 2);  // 3 and 2 rows
  std::set<int64_t> labels;
  int64_t rows = 0;
  for (int64_t i = 0; i < 2; ++i) {
    const Batch batch = task->EvalBatch(i);
    rows += batch.targets.size(0);
    for (int64_t row = 0; row < batch.targets.size(0); ++row) {
      labels.insert(Row(batch.inputs, row)[0]);
    }
  }
  EXPECT_EQ(rows, 5);
  EXPECT_EQ(labels.size(), 2u);
  options_.eval_examples = 0;
  EXPECT_EQ(MakeTask(options_)->eval_batches(), 7);
}

TEST_F(Pictures, LossIsTheHeadsSumAndItsBitsAToken) {
  const auto task = MakeTask(options_);
  const Batch batch = task->TrainBatch(0);
  const at::Tensor outputs = at::zeros({3, 6, options_.model.outputs()});
  const at::Tensor each = TokenLoss(options_.model, outputs, batch.targets);
  const double nats = task->Loss(outputs, batch).item<double>();
  EXPECT_NEAR(nats, each.to(at::kDouble).sum().item<double>(), 1e-9);
  const auto tallies = task->Measure(outputs, batch, nats);
  ASSERT_EQ(tallies.size(), 1u);
  EXPECT_EQ(task->metrics()[0].name, "bits_per_dim");
  EXPECT_FALSE(task->metrics()[0].higher_is_better);
  EXPECT_NEAR(tallies[0].sum / tallies[0].count, nats / 18 / std::log(2), 1e-12);
}

TEST(Accuracy, CountsScoredTokensOnly) {
  Batch batch = EmptyBatch(1, 4);
  batch.targets = at::tensor({2, -1, 0, 1}, at::kLong).view({1, 4});
  at::Tensor outputs = at::zeros({1, 4, 3});
  outputs[0][0][2] = outputs[0][1][1] = outputs[0][2][1] = outputs[0][3][1] = 1;
  const Tally tally = Accuracy(outputs, batch);
  EXPECT_EQ(tally.sum, 2);
  EXPECT_EQ(tally.count, 3);
}

TEST_F(Pictures, RefusesAModelOfAnotherSize) {
  options_.model.width = 4, options_.model.max_len = 8;
  try {
    MakeTask(options_);
    FAIL();
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), HasSubstr("2 x 4 x 1, but has 2 x 3 x 1"));
  }
}

TEST_F(Pictures, SamplesAreAGridOfPng) {
  const auto task = MakeTask(options_);
  const auto prompts = task->Prompts(3);
  ASSERT_EQ(prompts.size(), 3u);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(prompts[i].label, i % 2);
    EXPECT_EQ(prompts[i].symbols, std::vector<int32_t>(6, -1));
  }
  const std::string path =
      task->WriteSamples({{1, 2, 3, 4, 5, 6}, {9, 9, 9, 9, 9, 255}}, directory_ / "grid");
  const Image grid = ReadPng(path);
  EXPECT_EQ(grid.height, 2 + 2 * 2);
  EXPECT_EQ(grid.width, 2 * 3 + 3 * 2);
  EXPECT_EQ(grid.At(2, 2), 1);
  EXPECT_EQ(grid.At(3, 4), 6);
  EXPECT_EQ(grid.At(3, 9), 255);
}

class Text : public testing::Test {
 protected:
  Text() {
    std::string text;
    for (int i = 0; i < 1000; ++i) text += static_cast<char>(i / 10);  // a byte tells where it is
    WriteFileAtomic(directory_ / "text", text);
    options_.model.task = "text", options_.model.head = "categorical";
    options_.model.position = "learned", options_.model.max_len = 16;
    options_.model.mixers = {"linear"};
    options_.data.source = directory_ / "text";
    options_.batch = 2, options_.seed = 5;
  }
  TemporaryDirectory directory_;
  TaskOptions options_;
};

TEST_F(Text, TrainsOnTheFirstNinetyPercentOnly) {
  const auto task = MakeTask(options_);
  int64_t highest = 0;
  std::set<int64_t> firsts;
  for (int64_t i = 0; i < 500; ++i) {
    const Batch batch = task->TrainBatch(i);
    EXPECT_EQ(batch.tokens, 32);
    const auto inputs = Row(batch.inputs, 1), targets = Row(batch.targets, 1);
    EXPECT_EQ(inputs[0], 256);
    for (int t = 1; t < 16; ++t) EXPECT_EQ(inputs[t], targets[t - 1]);
    firsts.insert(targets[0]);
    highest = std::max(highest, targets[15]);
  }
  EXPECT_EQ(highest, 89);
  EXPECT_GT(firsts.size(), 80u);  // of 88 or 89 places
}

TEST_F(Text, EvaluatesEveryHeldOutByteOnce) {
  // Bytes 900..949 in windows of 16: three whole ones in two batches, and one of two bytes.
  const auto task = MakeTask(options_);
  ASSERT_EQ(task->eval_batches(), 3);
  std::map<int64_t, int64_t> seen;
  int64_t tokens = 0;
  for (int64_t i = 0; i < 3; ++i) {
    const Batch batch = task->EvalBatch(i);
    tokens += batch.tokens;
    for (int64_t row = 0; row < batch.targets.size(0); ++row) {
      for (const int64_t byte : Row(batch.targets, row)) ++seen[byte];
    }
  }
  EXPECT_EQ(tokens, 50);
  EXPECT_EQ(seen, (std::map<int64_t, int64_t>{{90, 10}, {91, 10}, {92, 10}, {93, 10}, {94, 10}}));
  options_.eval_examples = 2;
  EXPECT_EQ(MakeTask(options_)->eval_batches(), 1);
}

TEST_F(Text, BatchesDependOnSeedAndIndexOnly) {
  const auto task = MakeTask(options_);
  const at::Tensor third = task->TrainBatch(3).targets;
  task->TrainBatch(0);
  EXPECT_TRUE(at::equal(MakeTask(options_)->TrainBatch(3).targets, third));
  EXPECT_FALSE(at::equal(task->TrainBatch(4).targets, third));
}

TEST_F(Text, PiecesOfAVocabularyAreScoredByTheByte) {
#ifdef LINATTN_SANITIZED
  GTEST_SKIP() << "AddressSanitizer cannot keep SentencePiece's protobuf from LibTorch's";
#endif
  const Bytes play = ReadFile(LINATTN_TESTDATA "/text/shakespeare-head.txt");
  options_.data.source = LINATTN_TESTDATA "/text/shakespeare-head.txt";
  options_.data.vocabulary = LINATTN_TESTDATA "/text/pieces.model";
  const auto task = MakeTask(options_);
  ModelConfig model = options_.model;
  task->FitModel(model);
  EXPECT_EQ(model.vocab, 512);
  EXPECT_EQ(task->vocabulary().size(), std::filesystem::file_size(options_.data.vocabulary));
  const Batch batch = task->TrainBatch(0);
  EXPECT_EQ(Row(batch.inputs, 0)[0], 512);  // the start token
  EXPECT_EQ(Row(batch.inputs, 0)[1], Row(batch.targets, 0)[0]);
  double bytes = 0, tokens = 0;
  for (int64_t i = 0; i < task->eval_batches(); ++i) {
    const Batch held_out = task->EvalBatch(i);
    const Tally tally = task->Measure({}, held_out, std::numbers::ln2)[0];
    EXPECT_NEAR(tally.sum, 1, 1e-12);
    bytes += tally.count;
    tokens += static_cast<double>(held_out.tokens);
  }
  const auto size = static_cast<int64_t>(play.size());
  EXPECT_EQ(bytes, size * 19 / 20 - size * 9 / 10);
  EXPECT_LT(tokens, bytes / 1.5);
  options_.model.vocab = 300;
  try {
    MakeTask(options_);
    FAIL();
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), HasSubstr("512 pieces, or be left out, but is 300"));
  }
}

TEST_F(Text, RefusesFilesThatAreTooShortOrMissing) {
  WriteFileAtomic(directory_ / "text", std::string_view("short"));
  try {
    MakeTask(options_);
    FAIL();
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), HasSubstr("but has 5"));
  }
  options_.data.source = directory_ / "none";
  EXPECT_THROW(MakeTask(options_), Error);
}

}  // namespace
}  // namespace linattn
