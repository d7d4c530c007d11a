#include "data/cifar.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/temporary_directory.h"
#include "data/gzip.h"

namespace linattn {
namespace {

using testing::HasSubstr;

Bytes Stored() { return ReadFile(LINATTN_TESTDATA "/cifar10/train_10.bin.gz"); }
Bytes Unpacked() { return Unpack(Stored(), 1 << 20, "train").bytes; }

std::string MessageOf(std::span<const uint8_t> stored) {
  try {
    ParseCifar10(stored, "data_batch_1.bin");
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

// F5: the frog.
TEST(Cifar10, PlanesAreTransposedToPixels) {
  const TemporaryDirectory directory;
  const ImageSet set = ParseCifar10(Stored(), "train_10.bin.gz");
  EXPECT_EQ(set.count, 10);
  EXPECT_EQ(set.labels, (std::vector<int32_t>{6, 9, 9, 4, 1, 1, 2, 7, 8, 3}));
  EXPECT_EQ(set.class_names[6], "frog");
  const Image frog = set.ImageAt(0);
  EXPECT_EQ(frog.At(0, 0, 0), 59);
  EXPECT_EQ(frog.At(0, 0, 1), 62);
  EXPECT_EQ(frog.At(0, 0, 2), 63);
  EXPECT_EQ(frog.At(0, 1, 0), 43);
  WritePng(directory / "frog.png", frog);
  const Image read = ReadPng(directory / "frog.png");
  EXPECT_EQ(read.channels, 3);
  EXPECT_EQ(read.pixels, frog.pixels);
}

TEST(Cifar10, CutAndMislabelledFilesAreRefused) {
  const Bytes good = Unpacked();
  ASSERT_EQ(MessageOf(good), "no error");
  EXPECT_EQ(MessageOf({}),
            "[data] data_batch_1.bin: needs records of 3073 bytes, but found 0 bytes");
  EXPECT_EQ(MessageOf(std::span(good).first(7000)),
            "[data] data_batch_1.bin: is cut short: record 2 needs 3073 bytes, found 854 of them, "
            "7000 in all");
  EXPECT_THAT(MessageOf(std::span(good).first(good.size() - 1)), HasSubstr("record 9"));
  Bytes wrong = good;
  wrong[3 * 3073] = 10;
  EXPECT_EQ(MessageOf(wrong),
            "[data] data_batch_1.bin: labels must be from 0 to 9, but record 3 has 10");
}

TEST(Cifar10, CutAndDamagedGzipIsRefused) {
  const Bytes good = Stored();
  for (const size_t size : {size_t{20}, good.size() / 2, good.size() - 9, good.size() - 1})
    EXPECT_NE(MessageOf(std::span(good).first(size)), "no error") << size;
  EXPECT_THAT(MessageOf(std::span(good).first(good.size() - 1)),
              HasSubstr("ends before the gzip checksum"));
  Bytes damaged = good;
  damaged[good.size() - 6] ^= 1;
  EXPECT_THAT(MessageOf(damaged), HasSubstr("damaged gzip file"));
}

}  // namespace
}  // namespace linattn
