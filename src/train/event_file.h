#pragma once

#include <cstdint>
#include <fstream>
#include <string>
#include <string_view>

namespace linattn {

// The checksum of TFRecord files: CRC-32C (Castagnoli, polynomial 0x1EDC6F41), reflected.
uint32_t Crc32c(std::string_view bytes);
// The same, rotated and offset, as TFRecord stores it.
uint32_t MaskedCrc32c(std::string_view bytes);

// Writes scalars and pictures for TensorBoard: TFRecord frames that hold `Event` protocol buffers
// (tensorflow/core/util/event.proto). Each call is flushed. Throws Error when the file cannot be
// written.
class EventFile {
 public:
  // Creates `directory`/events.out.tfevents.<seconds>.linattn.<pid>. TensorBoard drops what earlier
  // files say about steps >= first_step, so that a resumed run shows no step twice.
  EventFile(const std::string& directory, int64_t first_step);

  void AddScalar(int64_t step, std::string_view tag, double value);
  void AddPng(int64_t step, std::string_view tag, int64_t height, int64_t width,
              std::string_view png);
  const std::string& path() const { return path_; }

 private:
  void Write(int64_t step, std::string_view fields);

  std::string path_;
  std::ofstream file_;
};

}  // namespace linattn
