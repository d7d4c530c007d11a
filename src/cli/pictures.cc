#include "cli/pictures.h"

#include <algorithm>
#include <cmath>

#include "cli/console.h"

namespace linattn::cli {
namespace {

Image Magnified(const Image& image, int64_t scale) {
  Image large{image.height * scale, image.width * scale, image.channels, {}};
  large.pixels.resize(large.height * large.width * large.channels);
  for (int64_t y = 0; y < large.height; ++y) {
    for (int64_t x = 0; x < large.width; ++x) {
      for (int64_t c = 0; c < large.channels; ++c) {
        large.At(y, x, c) = image.At(y / scale, x / scale, c);
      }
    }
  }
  return large;
}

}  // namespace

Image PictureOf(const ModelConfig& config, std::span<const int32_t> symbols) {
  constexpr uint8_t kGrey = 127;
  Image image{config.height, config.width, config.channels, {}};
  for (const int32_t symbol : symbols) {
    image.pixels.push_back(symbol < 0 ? kGrey : static_cast<uint8_t>(symbol));
  }
  return image;
}

void WriteGrid(std::span<const Image> pictures, const GridOptions& options) {
  std::vector<Image> large;
  for (const Image& picture : pictures) large.push_back(Magnified(picture, options.scale));
  int64_t columns = options.columns;
  if (columns == 0) {
    columns = static_cast<int64_t>(std::ceil(std::sqrt(static_cast<double>(pictures.size()))));
  }
  const Image grid = Grid(large, columns);
  if (options.out == "-") return Write(EncodePng(grid));
  WritePng(options.out, grid);
}

}  // namespace linattn::cli
