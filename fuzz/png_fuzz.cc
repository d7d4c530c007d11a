// Any bytes are a PNG image, which survives being written and read again, or an Error.

#include <zlib.h>

#include <algorithm>
#include <cstdlib>

#include "base/error.h"
#include "base/png.h"

namespace {

using linattn::Bytes;

// Gives every chunk the checksum that it should have, so that mutations get past it.
Bytes WithChecksums(Bytes bytes) {
  size_t at = 8;
  while (at + 12 <= bytes.size()) {
    uint32_t length = 0;
    for (int i = 0; i < 4; ++i) length = length << 8 | bytes[at + i];
    if (length > bytes.size() - at - 12) break;
    const auto crc = static_cast<uint32_t>(crc32(0, &bytes[at + 4], length + 4));
    for (int i = 0; i < 4; ++i)
      bytes[at + 8 + length + i] = static_cast<uint8_t>(crc >> (24 - 8 * i));
    at += 12 + size_t{length};
  }
  return bytes;
}

void Decode(const Bytes& bytes) {
  try {
    const auto image = linattn::DecodePng(bytes, "fuzz");
    if (image.pixels.size() > 1 << 16) return;  // writing is slow
    if (linattn::DecodePng(linattn::EncodePng(image), "again").pixels != image.pixels) std::abort();
  } catch (const linattn::Error&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Bytes bytes(data, data + size);
  Decode(bytes);
  Decode(WithChecksums(std::move(bytes)));
  return 0;
}
