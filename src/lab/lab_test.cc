#include "lab/lab.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/temporary_directory.h"

namespace linattn {
namespace {

LabOptions Quick() {
  LabOptions options;
  options.quick = true;
  return options;
}

double Found(const nlohmann::json& figures, const std::string& mixer, double similarity, double D) {
  for (const auto& row : figures) {
    if (row.at("mixer") != mixer || row.at("similarity") != similarity) continue;
    for (const auto& point : row.at("accuracy"))
      if (point[0] == D) return point[1];
  }
  ADD_FAILURE() << mixer << " has no point at " << D;
  return 0;
}

// Softmax keeps every item; a fixed state overflows.
TEST(Lab, RetrievalTellsTheMemoriesApart) {
  const auto figures = nlohmann::json::parse(RunRetrieval(Quick()).figures);
  for (const double D : {4, 32, 128}) EXPECT_EQ(Found(figures, "softmax", 0.0, D), 100) << D;
  EXPECT_GT(Found(figures, "delta", 0.0, 16), 95);
  EXPECT_EQ(Found(figures, "softmax", 0.7, 64), 100);
  EXPECT_GE(Found(figures, "delta", 0.7, 16), Found(figures, "linear", 0.7, 16));
  EXPECT_LT(Found(figures, "linear", 0.0, 128), 90);
  EXPECT_EQ(Found(figures, "gated_delta", 0.0, 32), Found(figures, "delta", 0.0, 32));
}

TEST(Lab, ResultsSurviveAndMakeAPage) {
  const TemporaryDirectory directory;
  const LabResult result{
      "A <paragraph>.", {{"p", "<svg>x</svg>", "what it shows"}}, "{\n \"a\": 1\n}"};
  const Experiment& experiment = ExperimentByName("features");
  LabResult loaded;
  EXPECT_FALSE(LoadResult(experiment, directory.path(), loaded));
  SaveResult(experiment, result, directory.path());
  ASSERT_TRUE(LoadResult(experiment, directory.path(), loaded));
  EXPECT_EQ(loaded.paragraph, result.paragraph);
  EXPECT_EQ(loaded.pictures[0].svg, result.pictures[0].svg);
  EXPECT_EQ(loaded.figures, result.figures);
  const std::pair<Experiment, LabResult> pair{experiment, loaded};
  const std::string page = LabPage({&pair, 1});
  EXPECT_NE(page.find("A &lt;paragraph&gt;."), std::string::npos);
  EXPECT_NE(page.find("<svg>x</svg>"), std::string::npos);
  EXPECT_EQ(page.find("http"), std::string::npos) << "needs a network";
  EXPECT_THROW(ExperimentByName("nothing"), Error);
}

// eps 1e-6 pulls outputs to zero where the features hardly overlap; without eps float32 is exact.
TEST(Lab, DenominatorShowsWhatEpsDoes) {
  const auto figures = nlohmann::json::parse(RunDenominator(Quick()).figures);
  const auto error = [&](size_t i, size_t point) {
    return figures[i].at("output_error")[point][1].get<double>();
  };
  EXPECT_LT(error(0, 0), 1e-5);
  EXPECT_GT(error(0, 6), 0.5);   // a gap of 48
  EXPECT_LT(error(2, 6), 1e-3);  // eps 0
}

}  // namespace
}  // namespace linattn
