#include "kernels/mixers/retention.h"

#include <gtest/gtest.h>

#include "kernels/decay_schedule.h"
#include "kernels/mixer_testing.h"

// What is special to retention; the rest is in kernels/mixer_suite_test.cc and state_mixer_test.cc.
namespace linattn {
namespace {

using namespace mixer_testing;

// gamma_h = 1 - 2^(-5-h), and lightning attention's slopes.
TEST(RetentionTest, Schedules) {
  const auto retention = FixedLogDecay(k_retention, DecaySchedule::kOwn, 3, 0, 1);
  const double gamma[] = {1 - 1 / 32.0, 1 - 1 / 64.0, 1 - 1 / 128.0};
  for (int h = 0; h < 3; ++h) EXPECT_NEAR(std::exp(retention[h]), gamma[h], 1e-7);
  const auto lightning = FixedLogDecay(k_retention, DecaySchedule::kLightning, 4, 1, 2);
  for (int h = 0; h < 4; ++h) EXPECT_FLOAT_EQ(lightning[h], -8.0f / 4 * 0.5f * h);
}

// The layer's g: one number a head for all tokens, as a view without memory of its own.
TEST(RetentionTest, ReadsOneDecayAHeadThroughAView) {
  const auto decays = FixedLogDecay(k_retention, DecaySchedule::kOwn, 4, 0, 1);
  Problem p = MakeProblem(k_retention, {.T = 37, .heads = 2, .group = 2, .states = true});
  for (size_t i = 0; i < p.inputs["g"].values.size(); ++i) p.inputs["g"].values[i] = decays[i % 4];
  const Results expected = Fast(k_retention, p, true);
  Call call(k_retention, p, DType::kF32, DType::kF32);
  call.in.g.data = const_cast<float*>(decays.data());
  call.in.g.stride = {0, 0, 1, 0};
  call.grad.d_g = {};  // not learned
  k_retention.forward(call.in, call.out, Scratch(k_retention, call.in).get());
  k_retention.backward(call.in, call.out, call.grad, Scratch(k_retention, call.in).get());
  const Results found = call.Read(true);
  for (const char* name : {"o", "ST", "d_q", "d_k", "d_v", "d_S0"})
    EXPECT_EQ(found.at(name).values, expected.at(name).values) << name;
}

}  // namespace
}  // namespace linattn
