// linattn-train as its users run it: signals, logs, exit statuses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <filesystem>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "base/file.h"
#include "base/json.h"
#include "base/random.h"
#include "base/temporary_directory.h"
#include "program_testing.h"

namespace linattn {
namespace {

using program_testing::Wait;
using testing::HasSubstr;
using testing::Not;
constexpr const char* kProgram = LINATTN_BIN "/linattn-train";

// A byte model that takes a few milliseconds a step and saves after every one.
std::vector<std::string> TinyRun(const std::string& out, int64_t steps) {
  std::vector<std::string> words = {"train",
                                    "--threads",
                                    "1",
                                    "--dtype",
                                    "f32",
                                    "--mixer",
                                    "linear",
                                    "--batch",
                                    "2",
                                    "--out",
                                    out,
                                    "--steps",
                                    std::to_string(steps),
                                    "--data",
                                    LINATTN_TESTDATA "/text/shakespeare-head.txt"};
  for (const char* set :
       {"model.base=none", "model.layers=1", "model.task=text", "model.max_len=16", "model.dim=16",
        "model.heads=2", "model.head_dim=8", "model.value_dim=8", "model.mlp_dim=32",
        "model.position=learned", "model.head=categorical", "model.dropout=0.1",
        "train.schedule=constant", "train.eval_every=0", "train.eval_examples=2",
        "train.sample_every=0", "train.checkpoint_every=1", "train.keep=1000", "train.log_every=1"}) {
    words.insert(words.end(), {"--set", set});
  }
  return words;
}

pid_t Start(const std::vector<std::string>& words, const std::string& log) {
  return program_testing::Start(kProgram, words, log, "a");
}

void WaitForFile(const std::string& path) {
  for (int i = 0; i < 6000 && !std::filesystem::exists(path); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  ASSERT_TRUE(std::filesystem::exists(path)) << path;
}

std::string TextOf(const std::string& path) { return std::string(AsText(ReadFile(path))); }

std::string Checkpoint(const std::string& run, int64_t step) {
  return fmt::format("{}/checkpoints/step-{:09d}.safetensors", run, step);
}

class TrainProgram : public testing::Test {
 protected:
  int Run(const std::vector<std::string>& words) { return Wait(Start(words, log_)); }
  TemporaryDirectory directory_;
  std::string log_ = directory_ / "log";
};

TEST_F(TrainProgram, KilledAtAnyMomentResumesBitForBit) {
  constexpr int64_t kSteps = 200;
  const std::string whole = directory_ / "whole", killed = directory_ / "killed";
  ASSERT_EQ(Run(TinyRun(whole, kSteps)), 0) << TextOf(log_);

  Random random(7);
  int kills = 0;
  pid_t child = Start(TinyRun(killed, kSteps), log_);
  WaitForFile(killed + "/config.toml");
  for (; kills < 6; ++kills) {
    std::this_thread::sleep_for(std::chrono::milliseconds(random.Below(600)));
    kill(child, SIGKILL);
    if (Wait(child) == 0) break;  // it had finished
    child = Start({"train", "--resume", killed, "--threads", "1"}, log_);
    std::this_thread::sleep_for(std::chrono::milliseconds(300));  // let it load LibTorch
  }
  if (kills == 6) {
    ASSERT_EQ(Wait(child), 0) << TextOf(log_);
  }

  EXPECT_EQ(ReadFile(killed + "/model.safetensors"), ReadFile(whole + "/model.safetensors"));
  std::istringstream lines(TextOf(killed + "/metrics.jsonl"));
  std::set<int64_t> steps;
  for (std::string line; std::getline(lines, line);) {
    const auto json = ParseJson(line, "test", "metrics.jsonl");
    if (json["kind"] != "train") continue;
    EXPECT_TRUE(steps.insert(json["step"].get<int64_t>()).second) << line;
  }
  EXPECT_EQ(static_cast<int64_t>(steps.size()), kSteps);
}

TEST_F(TrainProgram, InterruptSavesAndSaysHowToResume) {
  const std::string run = directory_ / "run";
  const pid_t child = Start(TinyRun(run, 1'000'000), log_);
  WaitForFile(Checkpoint(run, 1));
  kill(child, SIGINT);
  EXPECT_EQ(Wait(child), 130) << TextOf(log_);
  EXPECT_THAT(TextOf(log_), HasSubstr("linattn train --resume " + run));
  EXPECT_THAT(TextOf(log_), HasSubstr("stopping at the next safe point"));
  EXPECT_EQ(Run({"train", "--resume", run, "--steps", "1", "--threads", "1"}), 0) << TextOf(log_);
}

TEST_F(TrainProgram, ResumingAFinishedRunChangesNothing) {
  const std::string run = directory_ / "run";
  ASSERT_EQ(Run(TinyRun(run, 20)), 0) << TextOf(log_);
  const std::string metrics = TextOf(run + "/metrics.jsonl");
  const auto model = ReadFile(run + "/model.safetensors");
  ASSERT_EQ(Run({"train", "--resume", run, "--threads", "1"}), 0) << TextOf(log_);
  EXPECT_EQ(TextOf(run + "/metrics.jsonl"), metrics);
  EXPECT_EQ(ReadFile(run + "/model.safetensors"), model);
}

TEST_F(TrainProgram, LogIsPlainLinesAtASaneRate) {  // D6
  const auto begin = std::chrono::steady_clock::now();
  ASSERT_EQ(Run(TinyRun(directory_ / "run", 300)), 0) << TextOf(log_);
  const auto seconds = std::chrono::steady_clock::now() - begin;
  const std::string log = TextOf(log_);
  EXPECT_THAT(log, Not(HasSubstr("\r")));
  EXPECT_THAT(log, Not(HasSubstr("\x1b")));
  EXPECT_THAT(log, HasSubstr("step 300/300"));
  EXPECT_THAT(log, HasSubstr("bits_per_byte"));
  EXPECT_EQ(log.back(), '\n');
  // Besides progress: what is learned from, two evaluations, where the model is, the last step.
  const auto lines = std::count(log.begin(), log.end(), '\n');
  EXPECT_LE(lines - 6, std::chrono::duration<double>(seconds).count());
}

TEST_F(TrainProgram, EndsCleanlyWhenItsReaderLeaves) {  // D6: | head -1
  std::string command = fmt::format("({}", kProgram);
  for (const std::string& word : TinyRun(directory_ / "run", 1'000'000))
    command += " '" + word + "'";
  command +=
      fmt::format("; echo $? > {0}/status) 2> {0}/errors | head -1 > {0}/line", directory_.path());
  ASSERT_EQ(std::system(command.c_str()), 0);
  EXPECT_THAT(TextOf(directory_ / "line"), HasSubstr("shakespeare-head.txt"));
  EXPECT_EQ(TextOf(directory_ / "status"), "0\n");
  EXPECT_EQ(TextOf(directory_ / "errors"), "");
}

TEST_F(TrainProgram, MistakesOfTheCallerHaveStatusTwo) {
  EXPECT_EQ(Run({"train", "--set", "train.lrr=1"}), 2);
  EXPECT_THAT(TextOf(log_), HasSubstr("did you mean train.lr"));
  EXPECT_EQ(Run({"train", "--no-such-flag"}), 2);
  EXPECT_EQ(Run({"train", "--data", directory_ / "nothing"}), 2);
  EXPECT_EQ(Run({"train", "--mixer", "lienar", "--out", directory_ / "x"}), 2);
  EXPECT_THAT(TextOf(log_), HasSubstr("lienar"));
  EXPECT_FALSE(std::filesystem::exists(directory_ / "x"));
  EXPECT_EQ(Run({"train", LINATTN_SOURCE "/configs/text.toml"}), 2);
  EXPECT_THAT(TextOf(log_), HasSubstr("the data must be given (--data)"));
  for (const std::vector<std::string>& wrong :
       {std::vector<std::string>{"train", "--resume", directory_ / "."}, {"export", directory_ / "."}}) {
    EXPECT_EQ(Run(wrong), 2);
    EXPECT_THAT(TextOf(log_), HasSubstr("must be a run's directory"));
  }
  EXPECT_EQ(Run({}), 2);
  EXPECT_THAT(TextOf(log_), HasSubstr("linattn: A subcommand is required (see: linattn --help)"));
  EXPECT_EQ(Run({"--version"}), 0);
  EXPECT_EQ(Run({"train", "--help"}), 0);
  EXPECT_THAT(TextOf(log_), HasSubstr("Examples:"));
}

TEST_F(TrainProgram, QuietPrintsNothing) {
  auto words = TinyRun(directory_ / "run", 3);
  words.push_back("--quiet");
  EXPECT_EQ(Run(words), 0);
  EXPECT_EQ(TextOf(log_), "");
}

TEST_F(TrainProgram, ExportsInEveryStorage) {
  const std::string run = directory_ / "run";
  ASSERT_EQ(Run(TinyRun(run, 5)), 0) << TextOf(log_);
  for (const char* dtype : {"f32", "f16", "bf16"}) {
    const std::string out = directory_ / dtype;
    EXPECT_EQ(Run({"export", run, "--dtype", dtype, "--out", out}), 0) << TextOf(log_);
    EXPECT_TRUE(std::filesystem::exists(out));
  }
  EXPECT_LT(std::filesystem::file_size(directory_ / "f16"),
            0.7 * std::filesystem::file_size(directory_ / "f32"));
  EXPECT_EQ(Run({"export", run, "--dtype", "f8"}), 2);
  EXPECT_EQ(Run({"export", directory_ / "none"}), 2);
}

}  // namespace
}  // namespace linattn
