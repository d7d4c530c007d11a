#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace linattn {

using Bytes = std::vector<uint8_t>;

// The whole file. Throws Error "[where] cannot read 'path': <reason>" (the caller's fault if it is
// missing, not permitted, or a directory).
Bytes ReadFile(const std::string& path, std::string_view where = "file");

// Replaces `path` by `parts`, one after the other, such that a crash at any moment leaves either
// the old file or the new one: writes path + ".tmp", fsync, rename, fsync of the directory. One
// writer a path at a time.
void WriteFileAtomic(const std::string& path, std::span<const std::span<const uint8_t>> parts);
void WriteFileAtomic(const std::string& path, std::span<const uint8_t> bytes);
void WriteFileAtomic(const std::string& path, std::string_view text);

inline std::span<const uint8_t> AsBytes(std::string_view text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}
inline std::string_view AsText(std::span<const uint8_t> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Text from a file, fit for a message: control characters as \xNN, the middle of long texts left
// out.
std::string Printable(std::string_view text);

}  // namespace linattn
