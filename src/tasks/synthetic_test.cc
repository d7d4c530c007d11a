#include "tasks/synthetic.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>

#include "base/error.h"
#include "base/file.h"
#include "base/temporary_directory.h"

namespace linattn {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;
using Symbols = std::vector<int64_t>;

Symbols Row(const at::Tensor& tensor, int64_t row) {
  const at::Tensor line = tensor[row].contiguous();
  return {line.data_ptr<int64_t>(), line.data_ptr<int64_t>() + line.numel()};
}

TaskOptions Options(const std::string& task, int64_t vocab, int64_t max_len) {
  TaskOptions options;
  options.model.task = task, options.model.head = "categorical", options.model.position = "learned";
  options.model.vocab = vocab, options.model.max_len = max_len, options.model.mixers = {"linear"};
  options.batch = 4, options.seed = 5;
  return options;
}

TaskOptions CopyOptions() { return Options("copy", 4, 12); }
TaskOptions RecallOptions() {
  TaskOptions options = Options("recall", 41, 64);
  options.data.pairs = 16;
  return options;
}

// Outputs that rank `symbols` first.
at::Tensor Outputs(const at::Tensor& symbols, int64_t vocab) {
  return at::one_hot(symbols.clamp_min(0), vocab).to(at::kFloat);
}

TEST(Synthetic, BatchesDependOnSeedAndIndexOnly) {
  for (TaskOptions options : {CopyOptions(), RecallOptions()}) {
    const auto task = MakeTask(options);
    const Batch third = task->TrainBatch(3), held_out = task->EvalBatch(3);
    task->TrainBatch(0);
    const Batch again = MakeTask(options)->TrainBatch(3);
    EXPECT_TRUE(at::equal(again.inputs, third.inputs));
    EXPECT_TRUE(at::equal(again.targets, third.targets));
    EXPECT_TRUE(at::equal(MakeTask(options)->EvalBatch(3).targets, held_out.targets));
    EXPECT_FALSE(at::equal(held_out.targets, third.targets));
    options.seed = 6;
    EXPECT_FALSE(at::equal(MakeTask(options)->TrainBatch(3).targets, third.targets));
  }
}

TEST(Synthetic, EvaluatesAsManyExamplesAsAskedFor) {
  TaskOptions options = CopyOptions();
  EXPECT_EQ(MakeTask(options)->eval_batches(), 250);
  options.eval_examples = 6;
  const auto task = MakeTask(options);
  ASSERT_EQ(task->eval_batches(), 2);
  EXPECT_EQ(task->EvalBatch(1).inputs.size(0), 2);
}

TEST(Copy, SaysTheWordAgainAndScoresThat) {
  const auto task = MakeTask(CopyOptions());
  std::set<size_t> lengths;
  for (int64_t index = 0; index < 20; ++index) {
    const Batch batch = task->TrainBatch(index);
    int64_t scored = 0;
    for (int64_t row = 0; row < 4; ++row) {
      const Symbols inputs = Row(batch.inputs, row), targets = Row(batch.targets, row);
      EXPECT_EQ(inputs[0], 4);  // the start token
      EXPECT_EQ(inputs[1], 3);  // the separator
      Symbols word;
      for (size_t t = 2; inputs[t] != 3; ++t) word.push_back(inputs[t]);
      lengths.insert(word.size());
      Symbols expected(12, -1), stream = {3};
      for (int twice = 0; twice < 2; ++twice) {
        stream.insert(stream.end(), word.begin(), word.end());
        stream.push_back(3);
      }
      stream.resize(13, 3);
      for (size_t i = 0; i < word.size(); ++i) expected[2 + word.size() + i] = word[i];
      EXPECT_EQ(targets, expected);
      EXPECT_EQ(Symbols(inputs.begin() + 1, inputs.end()), Symbols(&stream[0], &stream[11]));
      scored += static_cast<int64_t>(word.size());
    }
    EXPECT_EQ(batch.tokens, scored);
  }
  EXPECT_EQ(lengths, (std::set<size_t>{1, 2, 3, 4, 5}));
}

TEST(Copy, MeasuresBitsAndAccuracy) {
  const auto task = MakeTask(CopyOptions());
  const Batch batch = task->TrainBatch(0);
  const at::Tensor outputs = Outputs(batch.targets, 4);
  const double nats = task->Loss(outputs, batch).item<double>();
  const auto tallies = task->Measure(outputs, batch, nats);
  const double each = std::log(3 + std::exp(1)) - 1;
  EXPECT_NEAR(tallies[0].sum / tallies[0].count, each / std::log(2), 1e-6);
  EXPECT_EQ(tallies[1].sum, batch.tokens);
  EXPECT_EQ(task->metrics()[1].name, "accuracy");
  EXPECT_TRUE(task->metrics()[1].higher_is_better);
}

TEST(Copy, SamplesAreWordsToSayAgain) {
  const TemporaryDirectory directory;
  const auto task = MakeTask(CopyOptions());
  const auto prompts = task->Prompts(5);
  ASSERT_EQ(prompts.size(), 5u);
  for (const Prompt& prompt : prompts) {
    const size_t n = prompt.symbols.size() / 2 - 1;
    EXPECT_EQ(prompt.symbols[0], 3);
    EXPECT_EQ(prompt.symbols[n + 1], 3);
    EXPECT_EQ(std::count(prompt.symbols.begin(), prompt.symbols.end(), -1), n);
  }
  const std::string path = task->WriteSamples({{3, 0, 1, 3, 0, 2}}, directory / "step-1");
  EXPECT_EQ(path, directory / "step-1.txt");
  EXPECT_EQ(AsText(ReadFile(path)), "01\n02\n1 of 2 wrong\n\n");
}

TEST(Recall, AsksForTheValueOfEveryKeyOnce) {
  const auto task = MakeTask(RecallOptions());
  for (int64_t index = 0; index < 30; ++index) {
    const int64_t pairs = std::vector{4, 8, 16}[index % 3];
    const Batch batch = task->TrainBatch(index);
    EXPECT_EQ(batch.tokens, 4 * pairs);
    ASSERT_EQ(batch.inputs.size(1), 64);
    for (int64_t row = 0; row < 4; ++row) {
      const Symbols inputs = Row(batch.inputs, row), targets = Row(batch.targets, row);
      EXPECT_EQ(inputs[0], 41);
      std::map<int64_t, int64_t> value_of;
      std::set<int64_t> values;
      for (int64_t i = 0; i < pairs; ++i) {
        value_of[inputs[1 + 2 * i]] = inputs[2 + 2 * i];
        values.insert(inputs[2 + 2 * i]);
      }
      EXPECT_EQ(std::ssize(value_of), pairs);
      EXPECT_EQ(std::ssize(values), pairs);
      EXPECT_TRUE(value_of.begin()->first >= 1 && value_of.rbegin()->first <= 20);
      EXPECT_TRUE(*values.begin() >= 21 && *values.rbegin() <= 40);
      int64_t asked = 0;
      for (int64_t t = 0; t < 64; ++t) {
        if (targets[t] < 0) {
          EXPECT_TRUE(t <= 2 * pairs || inputs[t] == 0) << t;
          continue;
        }
        ++asked;
        EXPECT_GT(t, 2 * pairs);
        EXPECT_EQ(targets[t], value_of.at(inputs[t])) << t;
        value_of.erase(inputs[t]);
      }
      EXPECT_EQ(asked, pairs);
    }
  }
}

TEST(Recall, AsksSoonByAPowerLaw) {
  TaskOptions options = RecallOptions();
  options.data.pairs = 4;
  const auto task = MakeTask(options);
  double first = 0, second = 0, rows = 0;
  for (int64_t index = 0; index < 100; ++index) {
    const at::Tensor asked = task->TrainBatch(index).targets.ge(0).to(at::kDouble).sum(0);
    first += asked[9].item<double>(), second += asked[39].item<double>(), rows += 4;
  }
  // Four of the 28 places are taken with weights 1, 1/2, ... 1/28: the first nearly always, the
  // sixteenth in about one of ten.
  EXPECT_GT(first / rows, 0.6);
  EXPECT_LT(second / rows, 0.2);
}

TEST(Recall, AccuracyIsTheMeanOverTheNumbersOfPairs) {
  const auto task = MakeTask(RecallOptions());
  const auto metrics = task->metrics();
  ASSERT_EQ(metrics.size(), 4u);
  EXPECT_EQ(metrics[0].name, "accuracy");
  EXPECT_EQ(metrics[3].name, "accuracy_16");
  EXPECT_EQ(metrics[3].at, 16);
  EXPECT_EQ(task->axis(), "pairs");
  Tally sum;
  for (int64_t index = 0; index < 3; ++index) {
    const Batch batch = task->EvalBatch(index);
    at::Tensor said = batch.targets.clone();
    if (index > 0) said.select(0, 0).fill_(0);  // one row of four is all wrong
    const auto tallies = task->Measure(Outputs(said, 41), batch, 0);
    sum.sum += tallies[0].sum, sum.count += tallies[0].count;
    for (int64_t i = 1; i < 4; ++i) {
      EXPECT_EQ(tallies[i].count, i == index + 1 ? batch.tokens : 0);
    }
    EXPECT_NEAR(tallies[index + 1].sum / tallies[index + 1].count, index > 0 ? 0.75 : 1, 1e-12);
  }
  EXPECT_NEAR(sum.sum / sum.count, 2.5 / 3, 1e-12);
  EXPECT_TRUE(task->Prompts(3).empty());
}

// Of all held-out examples: the targets that are scored, by their number a row.
std::map<int64_t, std::set<Symbols>> HeldOut(const TaskOptions& options) {
  const auto task = MakeTask(options);
  std::map<int64_t, std::set<Symbols>> examples;
  for (int64_t index = 0; index < task->eval_batches(); ++index) {
    const Batch batch = task->EvalBatch(index);
    for (int64_t row = 0; row < batch.inputs.size(0); ++row) {
      Symbols scored = Row(batch.targets, row);
      std::erase(scored, -1);
      examples[std::ssize(scored)].insert(scored);
    }
  }
  return examples;
}

TEST(Recall, TheHeldOutSetHasAllNumbersOfPairsWhateverTheBatch) {
  TaskOptions options = RecallOptions();
  for (const int64_t wanted : {1, 7, 30}) {
    options.eval_examples = wanted, options.batch = 4;
    const auto examples = HeldOut(options);
    ASSERT_EQ(examples.size(), 3u);
    for (const auto& [pairs, rows] : examples) EXPECT_EQ(std::ssize(rows), (wanted + 2) / 3);
    for (const int64_t batch : {1, 3, 64}) {
      options.batch = batch;
      EXPECT_EQ(HeldOut(options), examples) << batch;
    }
  }
}

TEST(Recall, SequencesAreAsLongAsTheirPairsNeed) {
  TaskOptions options = RecallOptions();
  options.model.vocab = 257, options.model.max_len = 256, options.data.pairs = 64;
  const auto task = MakeTask(options);
  Symbols lengths;
  for (int64_t index = 0; index < 5; ++index) {
    lengths.push_back(task->TrainBatch(index).inputs.size(1));
  }
  EXPECT_THAT(lengths, ElementsAre(64, 64, 64, 128, 256));
}

TEST(Recall, RefusesMorePairsThanThereIsRoomFor) {
  TaskOptions options = RecallOptions();
  options.data.pairs = 21;
  EXPECT_THAT([&] { MakeTask(options); }, ThrowsMessage<Error>(HasSubstr("the 20 keys")));
  options.data.pairs = 20;
  EXPECT_THAT([&] { MakeTask(options); }, ThrowsMessage<Error>(HasSubstr("at least 80")));
}

}  // namespace
}  // namespace linattn
