#include "base/random.h"

#include <gtest/gtest.h>

#include <cmath>

namespace linattn {
namespace {

// The known answers of the Random123 distribution (kat_vectors, philox4x32 10).
TEST(Random, PhiloxGivesThePublishedAnswers) {
  using Block = std::array<uint32_t, 4>;
  EXPECT_EQ(Philox({0, 0, 0, 0}, {0, 0}), (Block{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(Philox({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
            (Block{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(Philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Block{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Random, SeekContinuesExactly) {
  for (const int drawn : {0, 1, 2, 3, 4, 5, 7, 8, 1001}) {
    Random random(42, 7);
    for (int i = 0; i < drawn; ++i) random.NextU32();
    Random restored(42, 7);
    restored.Seek(random.position());
    for (int i = 0; i < 20; ++i) ASSERT_EQ(random.NextU32(), restored.NextU32()) << drawn;
  }
}

TEST(Random, StreamsAndSeedsDiffer) {
  Random a(1, 0), b(1, 1), c(2, 0);
  const uint64_t x = a.NextU64();
  EXPECT_NE(x, b.NextU64());
  EXPECT_NE(x, c.NextU64());
}

// 200,000 draws: the mean's standard error is 0.0006 (uniform) and 0.0022 (normal).
TEST(Random, MomentsAreRight) {
  Random random(123);
  constexpr int kDraws = 200000;
  double sum = 0, normal_sum = 0, squares = 0;
  for (int i = 0; i < kDraws; ++i) {
    const double u = random.Uniform();
    ASSERT_GE(u, 0);
    ASSERT_LT(u, 1);
    sum += u;
    const double n = random.Normal();
    normal_sum += n;
    squares += n * n;
  }
  EXPECT_NEAR(sum / kDraws, 0.5, 0.003);
  EXPECT_NEAR(normal_sum / kDraws, 0, 0.01);
  EXPECT_NEAR(squares / kDraws, 1, 0.015);
}

TEST(Random, BelowCoversItsRangeEvenly) {
  Random random(5);
  int counts[7] = {};
  for (int i = 0; i < 70000; ++i) ++counts[random.Below(7)];
  for (const int count : counts) EXPECT_NEAR(count, 10000, 500);
  EXPECT_EQ(random.Below(1), 0u);
}

}  // namespace
}  // namespace linattn
