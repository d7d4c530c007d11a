// Any bytes, packed or not, are CIFAR-10 records or an Error.

#include <cstdlib>

#include "base/error.h"
#include "data/cifar.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace linattn;
  try {
    const ImageSet set = ParseCifar10({data, size}, "fuzz");
    if (set.labels.size() != static_cast<size_t>(set.count)) std::abort();
    for (const int32_t label : set.labels)
      if (label < 0 || label > 9) std::abort();
  } catch (const Error&) {
  }
  return 0;
}
