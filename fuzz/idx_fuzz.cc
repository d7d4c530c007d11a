// Any bytes, packed or not, are idx images or labels or an Error; memory stays within what the
// input holds.

#include <cstdlib>

#include "base/error.h"
#include "data/idx.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace linattn;
  try {
    const ImageSet set = ParseIdxImages({data, size}, "fuzz");
    if (set.pixels.size() != static_cast<size_t>(set.count * set.image_size())) std::abort();
  } catch (const Error&) {
  }
  try {
    for (const int32_t label : ParseIdxLabels({data, size}, 10, "fuzz"))
      if (label < 0 || label > 9) std::abort();
  } catch (const Error&) {
  }
  return 0;
}
