// Any bytes are either the config.json of a checkpoint, whose model config is sound, or an Error.

#include "base/error.h"
#include "base/file.h"
#include "model/fla_config.h"
#include "model/parameters.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace linattn;
  FlaConfig fla;
  try {
    fla = ParseFlaConfig(AsText({data, size}), "fuzz");
  } catch (const Error&) {
    return 0;
  }
  CheckConfig(fla.model);  // what it throws is a fault
  if (fla.model.layers() > 64) return 0;
  for (const ParameterSpec& spec : Parameters(fla.model)) ElementsOf(spec);
  return 0;
}
