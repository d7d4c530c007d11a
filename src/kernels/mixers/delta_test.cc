#include "kernels/mixers/delta.h"

#include <gtest/gtest.h>

#include "kernels/mixer_testing.h"

// What is special to delta; the rest is in kernels/mixer_suite_test.cc and state_mixer_test.cc.
namespace linattn {
namespace {

using namespace mixer_testing;

bool Finite(const Results& results) {
  for (const auto& [name, x] : results)
    for (const double value : x.values)
      if (!std::isfinite(value)) return false;
  return true;
}

// Keys of N(0,1), 64 channels: |k|^2 is about 64, and beta about 1/2.
Problem LongKeys() {
  Problem p = MakeProblem(k_delta, {.B = 1, .T = 64, .heads = 1, .K = 64, .V = 64});
  std::mt19937 random(19);
  p.inputs["k"] = Normal({1, 64, 1, 64}, random);
  for (double& beta : p.inputs["beta"].values) beta = 0.5;
  return p;
}

// A19: the same keys l2-normalised, in float32, bfloat16 and float16.
TEST(DeltaTest, A19NormalisedKeysStayFinite) {
  Problem p = LongKeys();
  EXPECT_GT(std::abs(Reference(k_delta, p).at("o").values.back()), 1e20);  // why they are needed
  p.options.feature_map = &FeatureMapByName("l2");
  const Results ref = Reference(k_delta, p, true);
  OnEveryTarget([&] {
    ExpectClose(k_delta, Fast(k_delta, p, true), ref);
    for (const DType dtype : {DType::kBF16, DType::kF16})
      EXPECT_TRUE(Finite(Fast(k_delta, p, true, dtype, dtype))) << NameOf(dtype);
  });
}

// A19: a key of zeros is normalised to zeros, writes nothing and has finite gradients.
TEST(DeltaTest, A19ZeroKeysWriteNothing) {
  Problem p = MakeProblem(k_delta, {.B = 1, .T = 20, .heads = 1, .states = true});
  p.options.feature_map = &FeatureMapByName("l2");
  std::fill(p.inputs["k"].values.begin(), p.inputs["k"].values.end(), 0.0);
  OnEveryTarget([&] {
    const Results results = Fast(k_delta, p, true);
    EXPECT_TRUE(Finite(results));
    EXPECT_EQ(results.at("ST").values, p.inputs.at("S0").values);
  });
}

// The rule itself: with beta = 1 and a key of norm 1, what was written last under a key is read.
TEST(DeltaTest, ReplacesWhatAKeyHeld) {
  Problem p = MakeProblem(k_delta, {.B = 1, .T = 6, .heads = 1, .K = 2, .V = 1});
  p.options.scale = 1;
  p.inputs["k"].values = {1, 0, 0, 1, 1, 0, 0, 1, 1, 0, 0, 1};
  p.inputs["q"].values = {1, 0, 0, 1, 0, 1, 1, 0, 1, 0, 1, 1};
  p.inputs["v"].values = {5, 7, 9, 11, 13, 15};
  std::fill(p.inputs["beta"].values.begin(), p.inputs["beta"].values.end(), 1.0);
  OnEveryTarget([&] {
    EXPECT_EQ(Fast(k_delta, p).at("o").values, (std::vector<double>{5, 7, 7, 9, 13, 28}));
  });
}

}  // namespace
}  // namespace linattn
