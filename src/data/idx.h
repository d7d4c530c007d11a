#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "data/image_set.h"

// The idx format of MNIST (http://yann.lecun.com/exdb/mnist): big-endian magic 0x00000801 (labels)
// or 0x00000803 (images), the sizes as 32-bit numbers, then bytes. `stored` may be gzip. Messages
// name `name`.
namespace linattn {

// Fills count, height, width, channels = 1 and pixels.
ImageSet ParseIdxImages(std::span<const uint8_t> stored, const std::string& name);

// Every label must be less than `classes`.
std::vector<int32_t> ParseIdxLabels(std::span<const uint8_t> stored, int64_t classes,
                                    const std::string& name);

}  // namespace linattn
