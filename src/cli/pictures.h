#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/png.h"
#include "model/config.h"

namespace linattn::cli {

// A sequence of sub-pixels as a picture; those that are negative (not known) are grey.
Image PictureOf(const ModelConfig& config, std::span<const int32_t> symbols);

struct GridOptions {
  int64_t columns = 0;  // 0: as square as may be
  int64_t scale = 3;    // of each pixel
  std::string out;      // "-": standard output
};

// Writes pictures of one size as one PNG.
void WriteGrid(std::span<const Image> pictures, const GridOptions& options);

}  // namespace linattn::cli
