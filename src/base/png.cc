#include "base/png.h"

#include <png.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.h"

namespace linattn {
namespace {

constexpr int64_t kMostPixels = int64_t{1} << 26;
constexpr uint8_t kPaddingGrey = 128;

// libpng's simplified interface: it catches its own longjmps and leaves a message in the struct.
class Codec {
 public:
  Codec() { image_.version = PNG_IMAGE_VERSION; }
  ~Codec() { png_image_free(&image_); }
  Codec(const Codec&) = delete;
  Codec& operator=(const Codec&) = delete;
  png_image* operator->() { return &image_; }
  png_image* get() { return &image_; }

 private:
  png_image image_{};
};

void CheckImage(const Image& image) {
  Check(image.height >= 1 && image.width >= 1 && (image.channels == 1 || image.channels == 3),
        "png", "an image must be at least 1x1 with 1 or 3 channels, but is {}x{}x{}", image.height,
        image.width, image.channels);
  Check(image.height <= kMostPixels / image.width, "png",
        "an image must have at most {} pixels, but is {}x{}", kMostPixels, image.height,
        image.width);
  Check(std::cmp_equal(image.pixels.size(), image.height * image.width * image.channels), "png",
        "an image of {}x{}x{} must have {} values, but has {}", image.height, image.width,
        image.channels, image.height * image.width * image.channels, image.pixels.size());
}

}  // namespace

uint8_t ToPixel(float x) {
  if (!(x > 0)) return 0;  // NaN too
  return static_cast<uint8_t>(std::lround(std::min(x, 1.0f) * 255));
}

Bytes EncodePng(const Image& image) {
  CheckImage(image);
  Codec codec;
  codec->width = static_cast<png_uint_32>(image.width);
  codec->height = static_cast<png_uint_32>(image.height);
  codec->format = image.channels == 1 ? PNG_FORMAT_GRAY : PNG_FORMAT_RGB;
  // A bound on the compressed size, so that one pass suffices.
  png_alloc_size_t size = PNG_IMAGE_PNG_SIZE_MAX(*codec.get());
  Bytes bytes(size);
  if (!png_image_write_to_memory(codec.get(), bytes.data(), &size, 0, image.pixels.data(), 0,
                                 nullptr))
    throw Error("png", fmt::format("cannot encode: {}", codec->message), Fault::kInternal);
  bytes.resize(size);
  return bytes;
}

void WritePng(const std::string& path, const Image& image) {
  WriteFileAtomic(path, EncodePng(image));
}

Image DecodePng(std::span<const uint8_t> bytes, const std::string& name, std::string_view where) {
  Check(bytes.size() >= 8 && png_sig_cmp(bytes.data(), 0, 8) == 0, where,
        "{}: must be a PNG file, but its {} bytes do not begin like one", name, bytes.size());
  Codec codec;
  Check(png_image_begin_read_from_memory(codec.get(), bytes.data(), bytes.size()), where,
        "{}: cut or damaged PNG file of {} bytes: {}", name, bytes.size(), codec->message);
  const int64_t height = codec->height, width = codec->width;
  Check(width >= 1 && height <= kMostPixels / width, where,
        "{}: must have at most {} pixels, but is {}x{}", name, kMostPixels, height, width);
  // Deflate shrinks at most 1032-fold, and a pixel has at least one bit.
  Check(std::cmp_less_equal(height * width / 8 / 1032, bytes.size()), where,
        "{}: {}x{} pixels cannot come from {} bytes: cut or damaged PNG file", name, height, width,
        bytes.size());
  codec->flags |= PNG_IMAGE_FLAG_16BIT_sRGB;
  const bool colour = codec->format & PNG_FORMAT_FLAG_COLOR;
  codec->format = colour ? PNG_FORMAT_RGB : PNG_FORMAT_GRAY;
  Image image{height, width, colour ? 3 : 1, {}};
  image.pixels.resize(static_cast<size_t>(height * width * image.channels));
  const png_color white{255, 255, 255};
  Check(png_image_finish_read(codec.get(), &white, image.pixels.data(), 0, nullptr), where,
        "{}: cut or damaged PNG file of {} bytes: {}", name, bytes.size(), codec->message);
  return image;
}

Image ReadPng(const std::string& path, std::string_view where) {
  return DecodePng(ReadFile(path, where), path, where);
}

Image Grid(std::span<const Image> images, int64_t columns, int64_t padding) {
  Check(!images.empty() && columns >= 1 && padding >= 0, "png",
        "a grid needs an image and a column, but got {} and {}", images.size(), columns);
  const Image& first = images[0];
  const auto n = static_cast<int64_t>(images.size());
  columns = std::min(columns, n);
  const int64_t rows = (n + columns - 1) / columns;
  Image grid{rows * (first.height + padding) + padding,
             columns * (first.width + padding) + padding,
             first.channels,
             {}};
  grid.pixels.assign(static_cast<size_t>(grid.height * grid.width * grid.channels), kPaddingGrey);
  for (int64_t i = 0; i < n; ++i) {
    const Image& image = images[static_cast<size_t>(i)];
    CheckImage(image);
    Check(image.height == first.height && image.width == first.width &&
              image.channels == first.channels,
          "png", "a grid's images must be {}x{}x{}, but image {} is {}x{}x{}", first.height,
          first.width, first.channels, i, image.height, image.width, image.channels);
    const int64_t top = padding + i / columns * (first.height + padding);
    const int64_t left = padding + i % columns * (first.width + padding);
    for (int64_t y = 0; y < image.height; ++y)
      std::copy_n(&image.pixels[static_cast<size_t>(y * image.width * image.channels)],
                  image.width * image.channels, &grid.At(top + y, left));
  }
  return grid;
}

}  // namespace linattn
