#include "base/array.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace linattn {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

float Half(uint32_t bits) { return ToFloat(F16{static_cast<uint16_t>(bits)}); }

TEST(F16, KnownValues) {
  EXPECT_EQ(Half(0x3C00), 1);
  EXPECT_EQ(Half(0x0001), 0x1p-24f);
  EXPECT_EQ(Half(0x0400), 0x1p-14f);
  EXPECT_EQ(Half(0x7BFF), 65504);
  EXPECT_EQ(Half(0xFC00), -kInfinity);
  EXPECT_TRUE(std::signbit(Half(0x8000)));
  EXPECT_TRUE(std::isnan(Half(0x7E01)));
  EXPECT_EQ(ToF16(65519.996f).bits, 0x7BFF);
  EXPECT_EQ(ToF16(65520).bits, 0x7C00);
  EXPECT_EQ(ToF16(-1e30f).bits, 0xFC00);
  EXPECT_EQ(ToF16(std::numeric_limits<float>::denorm_min()).bits, 0);
  EXPECT_TRUE(std::isnan(ToFloat(ToF16(std::nanf("")))));
}

// Every half survives; between neighbours the nearer one is taken, the even one from the middle.
TEST(F16, RoundsToNearestEvenEverywhere) {
  for (uint32_t sign : {0u, 0x8000u})
    for (uint32_t low = 0; low < 0x7BFF; ++low) {
      const uint32_t a = sign | low, b = sign | (low + 1);
      ASSERT_EQ(ToF16(Half(a)).bits, a);
      const float middle = Half(a) + (Half(b) - Half(a)) / 2;  // exact in float
      ASSERT_EQ(ToF16(middle).bits, low % 2 == 0 ? a : b) << a;
      ASSERT_EQ(ToF16(std::nextafter(middle, Half(a))).bits, a) << a;
      ASSERT_EQ(ToF16(std::nextafter(middle, Half(b))).bits, b) << a;
    }
}

TEST(BF16, RoundsToNearestEven) {
  const auto round = [](uint32_t bits) { return ToBF16(std::bit_cast<float>(bits)).bits; };
  EXPECT_EQ(round(0x3F800000), 0x3F80);
  EXPECT_EQ(round(0x3F808000), 0x3F80);  // middle: even
  EXPECT_EQ(round(0x3F808001), 0x3F81);
  EXPECT_EQ(round(0x3F818000), 0x3F82);  // middle: even
  EXPECT_EQ(round(0x7F7FFFFF), 0x7F80);  // beyond the largest: infinity
  EXPECT_EQ(round(0xFF800000), 0xFF80);
  EXPECT_TRUE(std::isnan(ToFloat(ToBF16(std::bit_cast<float>(0x7F800001)))));
}

TEST(Array, ViewsKnowTheirShape) {
  float data[24];
  Array a = MakeArray(data, {2, 3, 4});
  EXPECT_TRUE(a.contiguous());
  EXPECT_EQ(a.size(), 24);
  EXPECT_EQ(a.ShapeString(), "[2,3,4]");
  EXPECT_EQ(a.At<float>(1, 2, 3), data + 23);
  a.shape[2] = 2;
  EXPECT_FALSE(a.contiguous());
  EXPECT_EQ(Array{}.size(), 0);
}

}  // namespace
}  // namespace linattn
