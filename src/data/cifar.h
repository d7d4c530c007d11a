#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "data/image_set.h"

namespace linattn {

// The binary format of CIFAR-10 (https://www.cs.toronto.edu/~kriz/cifar.html): records of 3073
// bytes, a label and then three planes (red, green, blue) of 32 x 32, which are transposed to
// interleaved pixels. `stored` may be gzip. Messages name `name`.
ImageSet ParseCifar10(std::span<const uint8_t> stored, const std::string& name);

}  // namespace linattn
