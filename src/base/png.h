#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"

namespace linattn {

// 8-bit image, interleaved [height,width,channels]; channels 1 (grey) or 3 (RGB).
struct Image {
  int64_t height = 0, width = 0, channels = 1;
  std::vector<uint8_t> pixels;

  uint8_t& At(int64_t y, int64_t x, int64_t c = 0) {
    return pixels[static_cast<size_t>((y * width + x) * channels + c)];
  }
  uint8_t At(int64_t y, int64_t x, int64_t c = 0) const {
    return pixels[static_cast<size_t>((y * width + x) * channels + c)];
  }
};

// x in [0,1] to 0..255, rounded; values outside are clamped (1.01 -> 255), NaN is 0.
uint8_t ToPixel(float x);

Bytes EncodePng(const Image& image);
void WritePng(const std::string& path, const Image& image);  // atomically

// Grey files give 1 channel, all others 3; 16 bits are scaled to 8, transparency is put on white.
// Throws Error
// "[where] name: ..." if the file is cut or damaged, or larger than 64 million pixels.
Image DecodePng(std::span<const uint8_t> bytes, const std::string& name,
                std::string_view where = "png");
Image ReadPng(const std::string& path, std::string_view where = "png");

// Images of one size, row by row, `columns` a row, `padding` grey pixels between them and around.
Image Grid(std::span<const Image> images, int64_t columns, int64_t padding = 2);

}  // namespace linattn
