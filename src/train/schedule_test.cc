#include "train/schedule.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace linattn {
namespace {

Schedule UsersCase() {  // D3: base 1e-3, warm-up 100, cosine to 1000
  Schedule s;
  s.kind = "cosine", s.base = 1e-3, s.warmup = 100, s.total = 1000;
  return s;
}

TEST(Schedule, CosineWithWarmUp) {  // D3
  const Schedule s = UsersCase();
  EXPECT_NEAR(LearningRate(s, 1), 1e-5, 1e-18);
  EXPECT_NEAR(LearningRate(s, 50), 5e-4, 1e-18);
  EXPECT_NEAR(LearningRate(s, 100), 1e-3, 1e-18);
  EXPECT_NEAR(LearningRate(s, 550), 5e-4, 1e-18);
  EXPECT_NEAR(LearningRate(s, 1000), 0, 1e-18);
}

TEST(Schedule, StaysAtTheFinalRatePastTheEnd) {  // D5
  Schedule s = UsersCase();
  s.final_rate = 1e-4;
  for (int64_t step : {1000, 1001, 1500, 1'000'000}) {
    EXPECT_NEAR(LearningRate(s, step), 1e-4, 1e-18) << step;
  }
  s.kind = "linear";
  EXPECT_NEAR(LearningRate(s, 1500), 1e-4, 1e-18);
}

TEST(Schedule, LinearConstantAndStep) {
  Schedule s = UsersCase();
  s.kind = "linear";
  EXPECT_NEAR(LearningRate(s, 550), 5e-4, 1e-18);
  EXPECT_NEAR(LearningRate(s, 325), 7.5e-4, 1e-18);
  s.kind = "constant";
  EXPECT_NEAR(LearningRate(s, 99), 0.99e-3, 1e-18);
  EXPECT_NEAR(LearningRate(s, 5000), 1e-3, 1e-18);
  s.kind = "step", s.step_size = 200, s.step_factor = 0.1;
  EXPECT_NEAR(LearningRate(s, 299), 1e-3, 1e-18);
  EXPECT_NEAR(LearningRate(s, 300), 1e-4, 1e-18);
  EXPECT_NEAR(LearningRate(s, 500), 1e-5, 1e-18);
}

TEST(Schedule, UnknownTotalStaysAtTheBaseRate) {
  Schedule s = UsersCase();
  s.total = 0;
  EXPECT_NEAR(LearningRate(s, 10), 1e-4, 1e-18);
  EXPECT_NEAR(LearningRate(s, 900), 1e-3, 1e-18);
}

TEST(Schedule, WarmUpLongerThanTheRun) {
  Schedule s = UsersCase();
  s.total = 50;
  EXPECT_NEAR(LearningRate(s, 50), 5e-4, 1e-18);
  EXPECT_NEAR(LearningRate(s, 100), 1e-3, 1e-18);
  EXPECT_NEAR(LearningRate(s, 101), 0, 1e-18);
}

TEST(Schedule, RefusesNonsense) {
  Schedule s = UsersCase();
  s.kind = "cosin";
  EXPECT_THROW(CheckSchedule(s), Error);
  s = UsersCase(), s.base = 0;
  EXPECT_THROW(CheckSchedule(s), Error);
  s = UsersCase(), s.warmup = -1;
  EXPECT_THROW(CheckSchedule(s), Error);
}

}  // namespace
}  // namespace linattn
