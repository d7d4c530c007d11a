#include "data/idx.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "base/error.h"
#include "data/gzip.h"

namespace linattn {
namespace {

using testing::AllOf;
using testing::HasSubstr;

const std::string kDirectory = LINATTN_TESTDATA "/mnist/";
constexpr size_t kImageBytes = 16 + 20 * 784;

Bytes Packed(const std::string& name) { return ReadFile(kDirectory + name); }
Bytes Unpacked(const std::string& name) { return Unpack(Packed(name), 1 << 20, name).bytes; }

std::string ImagesMessage(std::span<const uint8_t> stored) {
  try {
    ParseIdxImages(stored, "t10k-images");
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

std::string LabelsMessage(std::span<const uint8_t> stored) {
  try {
    ParseIdxLabels(stored, 10, "t10k-labels");
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

TEST(Idx, ReadsImagesAndLabelsPackedOrNot) {
  for (const bool packed : {true, false}) {
    const auto read = packed ? Packed : Unpacked;
    const ImageSet set = ParseIdxImages(read("t10k-images-idx3-ubyte.gz"), "images");
    EXPECT_EQ(set.count, 20);
    EXPECT_EQ(set.height, 28);
    EXPECT_EQ(set.width, 28);
    EXPECT_EQ(set.channels, 1);
    EXPECT_EQ(std::accumulate(set.At(0), set.At(1), 0), 18454);
    EXPECT_EQ(ParseIdxLabels(read("t10k-labels-idx1-ubyte.gz"), 10, "labels"),
              (std::vector<int32_t>{7, 2, 1, 0, 4, 1, 4, 9, 5, 9, 0, 6, 9, 0, 1, 5, 9, 7, 3, 4}));
  }
}

// F1, F2: unpacked files of 0, 1, 7, 15, 16, 1000 and all bytes but one.
TEST(Idx, CutFilesNameBytesExpectedAndFound) {
  const Bytes good = Unpacked("t10k-images-idx3-ubyte.gz");
  ASSERT_EQ(good.size(), kImageBytes);
  for (const size_t size : {0, 1, 7, 15})
    EXPECT_EQ(
        ImagesMessage(std::span(good).first(size)),
        fmt::format("[data] t10k-images: is cut short: the idx header needs 16 bytes, found {}",
                    size));
  for (const size_t size : {size_t{16}, size_t{1000}, kImageBytes - 1})
    EXPECT_EQ(ImagesMessage(std::span(good).first(size)),
              fmt::format("[data] t10k-images: is cut short: 20 x 28 x 28 values need 15696 bytes, "
                          "found {}",
                          size));
  const Bytes labels = Unpacked("t10k-labels-idx1-ubyte.gz");
  EXPECT_EQ(LabelsMessage(std::span(labels).first(labels.size() - 1)),
            "[data] t10k-labels: is cut short: 20 values need 28 bytes, found 27");
}

// F1: gzip files cut at 1, 15, 16, 1000 bytes, and minus 1 byte.
TEST(Idx, CutGzipFilesNameBytesExpectedAndFound) {
  const Bytes good = Packed("t10k-images-idx3-ubyte.gz");
  const auto cut = [&](size_t size) { return ImagesMessage(std::span(good).first(size)); };
  EXPECT_EQ(cut(1), "[data] t10k-images: is cut short: the idx header needs 16 bytes, found 1");
  for (const size_t size : {15, 16})
    EXPECT_THAT(
        cut(size),
        AllOf(HasSubstr("cut short: the idx header needs 16 bytes, found"),
              HasSubstr(fmt::format("(unpacked from {} bytes of gzip, which end early)", size))));
  EXPECT_THAT(cut(1000), AllOf(HasSubstr("20 x 28 x 28 values need 15696 bytes, found "),
                               HasSubstr("(unpacked from 1000 bytes of gzip, which end early)")));
  EXPECT_EQ(
      cut(good.size() - 1),
      fmt::format("[data] t10k-images: is cut short: all 15696 bytes unpacked, but the file of "
                  "{} bytes ends before the gzip checksum",
                  good.size() - 1));
  for (size_t size = 0; size < good.size(); ++size)
    ASSERT_THAT(cut(size), HasSubstr("cut short")) << size;
}

// F3: one bit flipped in the middle, and each bit of the trailer (checksum and length).
TEST(Idx, DamagedGzipIsRefused) {
  Bytes damaged = Packed("t10k-images-idx3-ubyte.gz");
  damaged[damaged.size() / 2] ^= 0x04;
  EXPECT_NE(ImagesMessage(damaged), "no error");
  const Bytes good = Packed("t10k-images-idx3-ubyte.gz");
  for (size_t bit = 0; bit < 64; ++bit) {
    damaged = good;
    damaged[good.size() - 8 + bit / 8] ^= static_cast<uint8_t>(1 << bit % 8);
    EXPECT_THAT(ImagesMessage(damaged),
                HasSubstr(bit < 32 ? "damaged gzip file: incorrect data check"
                                   : "damaged gzip file: incorrect length check"));
  }
}

TEST(Idx, BytesLeftOverAreRefused) {
  Bytes longer = Unpacked("t10k-images-idx3-ubyte.gz");
  longer.push_back(0);
  EXPECT_THAT(ImagesMessage(longer), HasSubstr("need 15696 bytes, but there are more"));
  Bytes packed = Packed("t10k-images-idx3-ubyte.gz");
  packed.push_back('x');
  EXPECT_THAT(ImagesMessage(packed), HasSubstr("1 bytes follow the end of the gzip data"));
}

TEST(Idx, WrongMagicIsNamed) {
  EXPECT_EQ(
      ImagesMessage(Packed("t10k-labels-idx1-ubyte.gz")),
      "[data] t10k-images: must begin with 0x00000803 (an idx file of images), but begins with "
      "0x00000801 (an idx file of labels)");
  EXPECT_THAT(LabelsMessage(Packed("t10k-images-idx3-ubyte.gz")),
              HasSubstr("must begin with 0x00000801 (an idx file of labels)"));
  EXPECT_THAT(LabelsMessage(AsBytes("<!DOCTYPE html>")), HasSubstr("not an idx file"));
}

TEST(Idx, LabelsOutOfRangeAreNamed) {
  Bytes labels = Unpacked("t10k-labels-idx1-ubyte.gz");
  labels[8 + 3] = 10;
  EXPECT_EQ(LabelsMessage(labels),
            "[data] t10k-labels: labels must be from 0 to 9, but label 3 is 10");
}

// Sizes that would need 2^72 bytes, or none, are refused before anything is allocated.
TEST(Idx, AbsurdSizesAreRefused) {
  Bytes header = {0, 0, 8, 3, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255};
  EXPECT_THAT(ImagesMessage(header), HasSubstr("4294967295 x 4294967295 x 4294967295"));
  header = {0, 0, 8, 3, 0, 0, 0, 0, 0, 0, 0, 28, 0, 0, 0, 28};
  EXPECT_THAT(ImagesMessage(header), HasSubstr("sizes must be from 1 up, but are 0 x 28 x 28"));
}

// Two gzip members one after the other are one file (RFC 1952), as `cat a.gz b.gz` makes.
TEST(Idx, GzipMembersAreJoined) {
  Bytes two = Packed("t10k-labels-idx1-ubyte.gz");
  const Bytes one = two;
  two.insert(two.end(), one.begin(), one.end());
  const Contents contents = Unpack(two, 1000, "two");
  EXPECT_EQ(contents.bytes.size(), 56u);
  EXPECT_FALSE(contents.cut);
  EXPECT_FALSE(contents.more);
  EXPECT_TRUE(Unpack(two, 55, "two").more);
  EXPECT_FALSE(Unpack(two, 56, "two").more);
}

}  // namespace
}  // namespace linattn
