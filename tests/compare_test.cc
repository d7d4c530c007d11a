// linattn compare as its users run it: on a tiny text model, for a few steps.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <cmath>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "base/file.h"
#include "base/json.h"
#include "base/temporary_directory.h"
#include "program_testing.h"

namespace linattn {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::Not;
using Words = std::vector<std::string>;

constexpr const char* kProgram = LINATTN_BIN "/linattn";

class CompareTest : public testing::Test {
 protected:
  Words Command(const std::string& mixers, const Words& length) const {
    Words words = {"compare",   "--mixers", mixers,
                   "--threads", "1",        "--out",
                   out_,        "--data",   LINATTN_TESTDATA "/text/shakespeare-head.txt"};
    words.insert(words.end(), length.begin(), length.end());
    for (const char* set :
         {"model.base=none", "model.layers=2", "model.task=text", "model.max_len=32",
          "model.dim=32", "model.heads=2", "model.head_dim=16", "model.value_dim=16",
          "model.mlp_dim=128", "model.position=learned", "model.head=categorical", "train.batch=2",
          "train.dtype=f32", "train.warmup=2", "train.eval_examples=4", "train.log_every=1"})
      words.insert(words.end(), {"--set", set});
    return words;
  }

  pid_t Start(const Words& words) const {
    return program_testing::Start(kProgram, words, log_, "w");
  }
  int Run(const Words& words) const { return program_testing::Wait(Start(words)); }

  std::string Text(const std::string& name) const {
    return std::string(AsText(ReadFile(out_ + "/" + name)));
  }
  nlohmann::json Report() const { return ParseJson(Text("compare.json"), "test", "compare.json"); }
  std::string Log() const { return std::string(AsText(ReadFile(log_))); }

  TemporaryDirectory directory_;
  std::string log_ = directory_ / "log", out_ = directory_ / "out";
};

void ExpectSensible(const nlohmann::json& row, int64_t parameters) {
  EXPECT_NEAR(row["parameters"].get<double>(), static_cast<double>(parameters),
              0.02 * static_cast<double>(parameters));
  EXPECT_GT(row["value"].get<double>(), 0.5);
  EXPECT_LT(row["value"].get<double>(), 9);
  EXPECT_GT(row["step_s"].get<double>(), 0);
  EXPECT_GT(row["peak_bytes"].get<double>(), 2e7);  // LibTorch alone takes more
  EXPECT_GT(row["tokens_per_s"].get<double>(), 0);
  EXPECT_GT(row["state_bytes"].get<int64_t>(), 0);
}

TEST_F(CompareTest, TrainsReportsAndTrainsNothingTwice) {
  ASSERT_EQ(Run(Command("linear,softmax", {"--steps", "12"})), 0) << Log();
  const auto report = Report();
  ASSERT_EQ(report["mixers"].size(), 2u);
  EXPECT_EQ(report["steps"], 12);
  EXPECT_EQ(report["metric"], "bits_per_byte");
  for (const auto& row : report["mixers"]) ExpectSensible(row, report["parameters"]);
  EXPECT_THAT(Text("compare.md"), HasSubstr("| softmax | "));
  EXPECT_THAT(Text("compare.md"), HasSubstr("linattn compare --mixers linear,softmax"));
  EXPECT_THAT(Text("curves.svg"), HasSubstr(">linear ("));
  EXPECT_THAT(Log(), HasSubstr("[2/2] softmax"));

  const auto trained = fs::last_write_time(out_ + "/linear/model.safetensors");
  ASSERT_EQ(Run(Command("linear,softmax,performer", {"--steps", "12"})), 0) << Log();
  EXPECT_EQ(fs::last_write_time(out_ + "/linear/model.safetensors"), trained);
  const auto more = Report();
  ASSERT_EQ(more["mixers"].size(), 3u);
  EXPECT_EQ(more["mixers"][0], report["mixers"][0]);
  EXPECT_EQ(more["mixers"][2]["mixer"], "performer");

  EXPECT_EQ(Run(Command("linear,softmax", {"--steps", "13"})), 2);
  EXPECT_THAT(Log(), HasSubstr("is planned with 12 steps"));
  Words other = Command("linear", {"--steps", "12"});
  other.insert(other.end(), {"--set", "train.lr=0.5"});
  EXPECT_EQ(Run(other), 2);
  EXPECT_THAT(Log(), HasSubstr("train.lr"));
}

TEST_F(CompareTest, MinutesBecomeOneNumberOfStepsForAll) {
  ASSERT_EQ(Run(Command("linear,softmax", {"--minutes", "0.01"})), 0) << Log();
  EXPECT_THAT(Log(), HasSubstr("pilot: softmax: "));
  const auto report = Report();
  EXPECT_EQ(report["mixers"][0]["steps"], report["mixers"][1]["steps"]);
  EXPECT_FALSE(fs::exists(out_ + "/pilot"));
}

TEST_F(CompareTest, InterruptKeepsWhatIsDoneAndTheRestGoesOn) {
  ASSERT_EQ(Run(Command("linear", {"--steps", "300"})), 0) << Log();
  const Words both = Command("linear,softmax", {"--steps", "300"});
  const pid_t child = Start(both);
  const std::string metrics = out_ + "/softmax/metrics.jsonl";
  for (int i = 0; i < 3000 && (!fs::exists(metrics) || fs::file_size(metrics) < 500); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  kill(child, SIGINT);
  EXPECT_EQ(program_testing::Wait(child), 130) << Log();
  EXPECT_THAT(Log(), HasSubstr("go on with the same command"));
  EXPECT_EQ(Report()["mixers"].size(), 1u);
  EXPECT_FALSE(fs::exists(out_ + "/softmax/result.json"));
  ASSERT_EQ(Run(both), 0) << Log();
  EXPECT_THAT(Log(), HasSubstr("resuming after step"));
  EXPECT_EQ(Report()["mixers"].size(), 2u);
}

TEST_F(CompareTest, MixersThatDivergeAreNamedAndAllAreTried) {
  Words words = Command("linear,softmax", {"--steps", "20"});
  words.insert(words.end(), {"--set", "train.lr=1e30", "--set", "train.clip=0", "--quiet"});
  EXPECT_EQ(Run(words), 1);
  EXPECT_THAT(Log(), HasSubstr("but these do not (see above): linear, softmax"));
  EXPECT_TRUE(Report()["mixers"].empty());
}

// What is wrong is said before anything is made or trained.
TEST_F(CompareTest, RefusesBeforeAnyWork) {
  const std::vector<std::pair<Words, std::string>> wrong = {
      {Command("linear,nonsense", {"--steps", "5"}), "nonsense"},
      {Command("linear,lsh:colour=2", {"--steps", "5"}), "lsh_colour"},
      {Command("linear,linear", {"--steps", "5"}), "'linear' is there twice"},
      {Command("linear", {}), "--steps"},
      {Command("linear", {"--steps", "5", "--minutes", "5"}), "--minutes"},
      {Command("linear", {"--steps", "5", "--set", "model.dims=5"}), "model.dim"},
      {Command("linear", {"--steps", "5", "--set", "data.source=/no/such/text"}), "/no/such/text"}};
  for (const auto& [words, message] : wrong) {
    EXPECT_EQ(Run(words), 2) << message;
    EXPECT_THAT(Log(), HasSubstr(message));
    EXPECT_FALSE(fs::exists(out_)) << message;
  }
  EXPECT_EQ(Run({"compare", "--help"}), 0);
  EXPECT_THAT(Log(), HasSubstr("Examples:"));
}

}  // namespace
}  // namespace linattn
