#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "base/file.h"

namespace linattn {

// A file's contents, unpacked if it is gzip.
struct Contents {
  Bytes bytes;  // at most `limit`
  bool gzip = false;
  bool cut = false;       // the gzip stream ends before its end mark and checksum
  bool more = false;      // there is more than `limit`
  size_t file_bytes = 0;  // as stored
};

// Unpacks at most `limit` bytes (which bounds the memory, whatever the file claims). Throws Error
// naming the file if the stream is damaged: bad codes, wrong checksum or length, bytes after its
// end.
Contents Unpack(std::span<const uint8_t> stored, size_t limit, const std::string& name);

}  // namespace linattn
