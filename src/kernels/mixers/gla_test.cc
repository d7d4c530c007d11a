#include "kernels/mixers/gla.h"

#include <gtest/gtest.h>

#include "kernels/mixer_testing.h"

// What is special to gla; the rest is in kernels/mixer_suite_test.cc and state_mixer_test.cc.
namespace linattn {
namespace {

using namespace mixer_testing;

// A10: T is no multiple of a chunk; the gradient of g against finite differences of the definition
// at both sides of a boundary and at the end.
TEST(GlaTest, A10GateGradientAtTheEndOfARaggedSequence) {
  const Problem p =
      MakeProblem(k_gla, {.B = 1, .T = 70, .heads = 2, .K = 8, .V = 6, .states = true});
  const auto loss = [](const Problem& at) {
    const Results results = Reference(k_gla, at);
    double sum = 0;
    for (const auto& [name, cotangent] : at.cotangents)
      for (size_t i = 0; i < cotangent.values.size(); ++i)
        sum += cotangent.values[i] * results.at(name.substr(2)).values[i];
    return sum;
  };
  const Tensor d_g = Fast(k_gla, p, true).at("d_g");
  double size = 0;
  for (const double x : d_g.values) size = std::max(size, std::abs(x));
  for (const int64_t t : {15, 16, 63, 64, 69}) {
    for (int64_t i = t * 16; i < (t + 1) * 16; ++i) {
      Problem up = p, down = p;
      up.inputs["g"].values[i] += 1e-5, down.inputs["g"].values[i] -= 1e-5;
      EXPECT_NEAR(d_g.values[i], (loss(up) - loss(down)) / 2e-5, 2e-5 * size) << "t=" << t;
    }
  }
}

}  // namespace
}  // namespace linattn
