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

// A file that replaces `path` only when it is whole, such that a crash at any moment leaves either
// the old file or the new one: path + ".tmp" is written, synced, renamed, and its directory synced.
// A pipe or device is written to directly. One writer a path at a time. All throw Error.
class AtomicFile {
 public:
  explicit AtomicFile(const std::string& path);
  ~AtomicFile();  // without Commit the old file stays
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void Append(std::span<const uint8_t> bytes);
  void Commit();

 private:
  std::string path_, written_;  // written_: path_ itself if it is a pipe or device
  int fd_ = -1;
};

// Replaces `path` by `parts`, one after the other, as an AtomicFile.
void WriteFileAtomic(const std::string& path, std::span<const std::span<const uint8_t>> parts);
void WriteFileAtomic(const std::string& path, std::span<const uint8_t> bytes);
void WriteFileAtomic(const std::string& path, std::string_view text);

// Throws Error "[where] flag must be ..., but ..." if no file can be written at `path` ("" and "-"
// are fine): before the work whose result it is, not after. `flag` is what the user has typed.
void CheckOut(const std::string& path, std::string_view where, std::string_view flag = "--out");

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
