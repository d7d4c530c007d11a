// Any bytes are a list of recordings, each with a path, or an Error; the same bytes as a
// transcript, a dictionary, and sound from a pipe.

#include <algorithm>
#include <cstdlib>

#include "base/error.h"
#include "base/file.h"
#include "data/manifest.h"
#include "data/pcm_stream.h"
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
  try {
    PcmStream sound(
        [&](std::span<uint8_t> to) {
          const size_t n = std::min(to.size(), size);
          std::copy_n(data, n, to.begin());
          data += n, size -= n;
          return n;
        },
        8000);
    while (!sound.Read().empty()) continue;
  } catch (const Error&) {
  }
  size_t bytes = 0;
  for (const std::string& c : Characters(text)) bytes += c.size();
  if (bytes != text.size()) std::abort();
  return 0;
}
