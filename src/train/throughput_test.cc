#include "train/throughput.h"

#include <gtest/gtest.h>

namespace linattn {
namespace {

TEST(Throughput, CountsTheMatricesOfTheCifarModel) {
  // A layer: 4 x 256 x 256 of attention, 2 x 256 x 1024 of the MLP; the head 256 x 30.
  const double weights = 16 * (4 * 256.0 * 256 + 2 * 256.0 * 1024) + 256 * 30;
  const ModelConfig linear = NamedConfig("cifar10", "linear");
  const double flops = TrainingFlopsPerToken(linear, 3072);
  // The mixer: state update and read of 8 heads of 32 x 32.
  EXPECT_NEAR(flops, 6 * weights + 3.5 * 16 * 4 * 8 * 32 * 32, 1e-9 * flops);
  EXPECT_EQ(flops, TrainingFlopsPerToken(linear, 1000));  // does not grow with the length
  const ModelConfig softmax = NamedConfig("cifar10", "softmax");
  EXPECT_GT(TrainingFlopsPerToken(softmax, 3072), 1.5 * TrainingFlopsPerToken(softmax, 100));
}

}  // namespace
}  // namespace linattn
