#pragma once

#include <string.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace linattn {

// A 64-bit digest of `h` and `bytes` bytes. It tells models and states apart and notices damage; it
// does not withstand malice.
inline uint64_t Digest(uint64_t h, const void* data, size_t bytes) {
  const auto* p = static_cast<const unsigned char*>(data);
  h ^= bytes + 1;
  while (bytes > 0) {
    uint64_t word = 0;
    const size_t n = std::min<size_t>(8, bytes);
    memcpy(&word, p, n);
    h = (h ^ word) * 0xD6E8FEB86659FD93;
    h ^= h >> 32;
    p += n;
    bytes -= n;
  }
  return h;
}

}  // namespace linattn
