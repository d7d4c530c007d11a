#include "lab/lab_verb.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/temporary_directory.h"

namespace linattn {
namespace {

class LabVerb : public testing::Test {
 protected:
  LabVerb() {
    flags_.report = directory_.path();
    flags_.quiet = flags_.options.quick = true;
  }

  // What it prints.
  std::string Run(std::vector<std::string> names, int status = 0) {
    flags_.names = std::move(names);
    testing::internal::CaptureStdout();
    EXPECT_EQ(RunLab(flags_, [] { return 0; }), status);
    return testing::internal::GetCapturedStdout();
  }
  std::string Text(const std::string& name) {
    return std::string(AsText(ReadFile(directory_.path() + "/" + name, "test")));
  }

  TemporaryDirectory directory_;
  LabFlags flags_;
};

TEST_F(LabVerb, ThePageShowsEveryResultThatIsThere) {
  Run({"denominator"});
  Run({"retrieval"});
  const std::string page = Text("index.html");
  for (const char* part : {"<section id=\"retrieval\">", "<section id=\"denominator\">", "viewport",
                           "aria-label", "quick sizes, seed 0"})
    EXPECT_NE(page.find(part), std::string::npos) << part;
  for (const char* fetch : {"src=", "url(", "<link", "@import", "href=\"http"})
    EXPECT_EQ(page.find(fetch), std::string::npos) << fetch << " would need a network";
}

TEST_F(LabVerb, OtherSettingsAreRunAgainAndTheSameAreNot) {
  const std::string first = Run({"denominator"});
  const std::string written = Text("denominator.json");
  EXPECT_EQ(Run({"denominator"}), first);
  EXPECT_EQ(Text("denominator.json"), written);
  flags_.options.seed = 1;
  Run({"denominator"});
  EXPECT_NE(Text("denominator.json"), written);
}

TEST_F(LabVerb, OneFailureLeavesTheOthers) {
  flags_.options.model = directory_.path() + "/none.safetensors";
  testing::internal::CaptureStderr();
  Run({"swap", "denominator"}, 1);
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("--model FILE"), std::string::npos) << said;
  EXPECT_NE(said.find("without a result: swap"), std::string::npos) << said;
  EXPECT_NE(Text("index.html").find("<section id=\"denominator\">"), std::string::npos);
}

TEST_F(LabVerb, JsonIsOneObjectOfFigures) {
  flags_.json = true;
  const auto json = nlohmann::json::parse(Run({"denominator", "retrieval"}));
  EXPECT_TRUE(json.at("denominator").is_array());
  EXPECT_TRUE(json.at("retrieval").is_array());
}

TEST_F(LabVerb, AStopIsHeard) {
  testing::internal::CaptureStderr();
  flags_.names = {"denominator"};
  EXPECT_EQ(RunLab(flags_, [] { return 2; }), 130);
  EXPECT_NE(testing::internal::GetCapturedStderr().find("stopped"), std::string::npos);
}

}  // namespace
}  // namespace linattn
