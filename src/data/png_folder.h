#pragma once

#include <string>

#include "data/image_set.h"

namespace linattn {

// The split of a folder of PNG files, as LoadImages documents it.
ImageSet LoadPngFolder(const std::string& directory, Split split, bool full_train);

}  // namespace linattn
