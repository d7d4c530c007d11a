#include "lab/swap.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/temporary_directory.h"
#include "train/linearize_testing.h"

namespace linattn {
namespace {

using ::testing::HasSubstr;

class SwapExperiment : public ::testing::Test {
 protected:
  void SetUp() override {
    const ModelFile teacher = UntrainedModel(TinyTextConfig({"softmax", "gated_delta", "softmax"}));
    lab_.model = directory_ / "teacher";
    lab_.quiet = true;
    SaveModel(lab_.model, teacher.config, teacher.tensors);
  }
  TemporaryDirectory directory_;
  LabOptions lab_;
};

// The layer between is no softmax: it has no figure, and no other figure comes from it.
TEST_F(SwapExperiment, MeasuresSoftmaxLayersOfAHybrid) {
  const LabResult result = Swap(lab_, TinyLinearize(3));
  EXPECT_THAT(result.paragraph, HasSubstr("all 2 softmax layers (the other 1 are no softmax)"));
  EXPECT_THAT(result.paragraph, HasSubstr("bits/byte on 6 examples of the text's validation"));
  for (const std::string& text : {result.paragraph, result.pictures[0].svg, result.pictures[1].svg})
    EXPECT_EQ(text.find("nan"), text.npos) << text;
  const auto figures = nlohmann::json::parse(result.figures);
  EXPECT_TRUE(figures.at("layers_alone")[0].is_number());
  EXPECT_TRUE(figures.at("layers_alone")[1].is_null());
  EXPECT_TRUE(figures.at("distance_swapped")[1].is_null());
  for (const char* name : {"softmax", "swapped_elu1", "swapped_hedgehog", "recovered"})
    EXPECT_TRUE(figures.at(name).is_number()) << name;
}

struct Stopped {};

TEST_F(SwapExperiment, EndsWhereItIsToldTo) {
  for (const int calls : {0, 5, 20}) {  // of about 40 batches in all
    int n = 0;
    lab_.check = [&] {
      if (++n > calls) throw Stopped();
    };
    EXPECT_THROW(Swap(lab_, TinyLinearize(8)), Stopped) << calls;
    EXPECT_EQ(n, calls + 1);
  }
}

}  // namespace
}  // namespace linattn
