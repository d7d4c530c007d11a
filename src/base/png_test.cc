#include "base/png.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include <limits>

#include "base/error.h"
#include "base/random.h"
#include "base/temporary_directory.h"

namespace linattn {
namespace {

Image Noise(int64_t height, int64_t width, int64_t channels) {
  Image image{height, width, channels, {}};
  Random random(1);
  for (int64_t i = 0; i < height * width * channels; ++i)
    image.pixels.push_back(static_cast<uint8_t>(random.Below(256)));
  return image;
}

// F6
TEST(Png, PixelsAreClamped) {
  EXPECT_EQ(ToPixel(1.01f), 255);
  EXPECT_EQ(ToPixel(1), 255);
  EXPECT_EQ(ToPixel(1e30f), 255);
  EXPECT_EQ(ToPixel(0.5f), 128);
  EXPECT_EQ(ToPixel(-0.1f), 0);
  EXPECT_EQ(ToPixel(std::numeric_limits<float>::quiet_NaN()), 0);
  for (int i = 0; i < 256; ++i) EXPECT_EQ(ToPixel(static_cast<float>(i) / 255), i);
}

TEST(Png, RoundTripsGreyAndColour) {
  const TemporaryDirectory directory;
  for (const int64_t channels : {1, 3})
    for (const int64_t width : {1, 2, 7, 32}) {
      const Image image = Noise(5, width, channels);
      WritePng(directory / "a.png", image);
      const Image read = ReadPng(directory / "a.png");
      EXPECT_EQ(read.height, 5);
      EXPECT_EQ(read.width, width);
      EXPECT_EQ(read.channels, channels);
      EXPECT_EQ(read.pixels, image.pixels);
    }
}

TEST(Png, CutAndDamagedFilesAreRefused) {
  const Bytes good = EncodePng(Noise(16, 16, 3));
  // The last 12 bytes are the IEND chunk, which no pixel depends on.
  for (size_t size = 0; size + 12 < good.size(); ++size)
    ASSERT_THROW(DecodePng(std::span(good).first(size), "cut.png"), Error) << size;
  Bytes damaged = good;
  damaged[good.size() / 2] ^= 0x10;
  EXPECT_THROW(DecodePng(damaged, "damaged.png"), Error);
  try {
    DecodePng(std::span(good).first(100), "cut.png", "data");
    FAIL();
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), testing::StartsWith("[data] cut.png: cut or damaged PNG file of 100"));
  }
}

// A header may promise 2^31-1 x 2^31-1 pixels, or 8000 x 8000 in 100 bytes: refused before anything
// is allocated.
TEST(Png, AbsurdSizesAreRefused) {
  const auto with_size = [](uint32_t width, uint32_t height) {
    Bytes bytes = EncodePng(Noise(4, 4, 1));
    for (int i = 0; i < 4; ++i) {
      bytes[16 + i] = static_cast<uint8_t>(width >> (24 - 8 * i));
      bytes[20 + i] = static_cast<uint8_t>(height >> (24 - 8 * i));
    }
    const uint32_t crc =
        static_cast<uint32_t>(crc32(0, &bytes[12], 17));  // "IHDR" and its 13 bytes
    for (int i = 0; i < 4; ++i) bytes[29 + i] = static_cast<uint8_t>(crc >> (24 - 8 * i));
    return bytes;
  };
  EXPECT_NO_THROW(DecodePng(with_size(4, 4), "a.png"));
  EXPECT_THROW(DecodePng(with_size(0x7FFFFFFF, 0x7FFFFFFF), "a.png"), Error);
  try {
    DecodePng(with_size(8000, 8000), "a.png");
    FAIL();
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), testing::HasSubstr("8000x8000 pixels cannot come from"));
  }
}

TEST(Png, ImpossibleImagesAreNotWritten) {
  const Image bad[] = {{0, 1, 1, {}}, {1, 1, 2, {1, 2}}, {2, 2, 1, {1, 2, 3}}};
  for (const Image& image : bad) EXPECT_THROW(EncodePng(image), Error);
}

TEST(Png, GridPlacesImagesRowByRow) {
  const Image images[] = {{1, 2, 1, {1, 2}}, {1, 2, 1, {3, 4}}, {1, 2, 1, {5, 6}}};
  const Image grid = Grid(images, 2, 1);
  EXPECT_EQ(grid.height, 5);
  EXPECT_EQ(grid.width, 7);
  const uint8_t p = 128;
  EXPECT_EQ(grid.pixels, (std::vector<uint8_t>{p, p, p, p, p, p, p,  //
                                               p, 1, 2, p, 3, 4, p,  //
                                               p, p, p, p, p, p, p,  //
                                               p, 5, 6, p, p, p, p,  //
                                               p, p, p, p, p, p, p}));
  const Image mixed[] = {{1, 1, 1, {1}}, {1, 2, 1, {1, 2}}};
  EXPECT_THROW(Grid(mixed, 2), Error);
}

}  // namespace
}  // namespace linattn
