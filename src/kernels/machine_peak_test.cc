#include "kernels/machine_peak.h"

#include <gtest/gtest.h>

namespace linattn {
namespace {

// No more can be said of a machine that others use as well.
TEST(MachinePeakTest, FillsEveryField) {
  const MachinePeak peak = MeasureMachinePeak(1, 0.05);
  EXPECT_EQ(peak.threads, 1);
  for (const double value : {peak.float32_gflops, peak.bfloat16_gflops, peak.int8_gops,
                             peak.l2_gbps, peak.l3_gbps, peak.memory_gbps}) {
    EXPECT_GT(value, 0.1);
    EXPECT_LT(value, 1e5);
  }
}

}  // namespace
}  // namespace linattn
