// Any bytes are either a safetensors file, whose every tensor can be read, or an Error; the same
// for a model.

#include "base/error.h"
#include "base/safetensors.h"
#include "model/model_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace linattn;
  try {
    const auto file = SafetensorsFile::Parse(Bytes(data, data + size), "fuzz");
    for (const auto& [name, tensor] : file.tensors()) {
      const bool integer = tensor.dtype >= DType::kI64;
      try {
        if (integer)
          file.Integers(name);
        else
          file.Floats(name), file.Doubles(name);
      } catch (const Error&) {  // F64 values beyond F32
      }
    }
    ModelFromSafetensors(file);
  } catch (const Error&) {
  }
  return 0;
}
