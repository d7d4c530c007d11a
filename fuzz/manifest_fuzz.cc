// Any bytes are a list of recordings, each with a path, or an Error; the same bytes as a transcript
// and a dictionary.

#include <cstdlib>

#include "base/error.h"
#include "base/file.h"
#include "data/audio.h"
#include "data/manifest.h"
#include "data/transcript.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace linattn;
  const std::string_view text = AsText({data, size});
  try {
    for (const ManifestEntry& entry : ParseManifest(text, "fuzz"))
      if (entry.audio.empty()) std::abort();
  } catch (const Error&) {
  }
  NormaliseTranscript(text);
  try {
    Pronunciations::Parse(text, "fuzz").Phonemes("a b");
  } catch (const Error&) {
  }
  size_t bytes = 0;
  for (const std::string& c : Characters(text)) bytes += c.size();
  if (bytes != size) std::abort();
  return 0;
}
