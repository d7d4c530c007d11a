#include "train/event_file.h"

#include <unistd.h>

#include <array>
#include <bit>
#include <chrono>

#include "base/error.h"

namespace linattn {
namespace {

constexpr std::array<uint32_t, 256> MakeTable() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ (crc & 1 ? 0x82F63B78u : 0u);
    table[i] = crc;
  }
  return table;
}
constexpr std::array<uint32_t, 256> kTable = MakeTable();

template <class Int>
std::string LittleEndian(Int value) {
  std::string bytes(sizeof(Int), '\0');
  for (size_t i = 0; i < sizeof(Int); ++i) bytes[i] = static_cast<char>(value >> (8 * i));
  return bytes;
}

// The wire format of protocol buffers: a field is its number and kind, then its value.
enum WireKind : uint64_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

std::string Varint(uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes += static_cast<char>(value | 0x80);
  return bytes + static_cast<char>(value);
}
std::string Tag(uint64_t field, WireKind kind) { return Varint(field << 3 | kind); }
std::string IntField(uint64_t field, int64_t value) {
  return Tag(field, kVarint) + Varint(static_cast<uint64_t>(value));
}
std::string DoubleField(uint64_t field, double value) {
  return Tag(field, kFixed64) + LittleEndian(std::bit_cast<uint64_t>(value));
}
std::string FloatField(uint64_t field, float value) {
  return Tag(field, kFixed32) + LittleEndian(std::bit_cast<uint32_t>(value));
}
std::string BytesField(uint64_t field, std::string_view value) {
  return Tag(field, kBytes) + Varint(value.size()) + std::string(value);
}

double SecondsSinceEpoch() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// Field numbers of the messages in tensorflow/core/util/event.proto and framework/summary.proto.
constexpr uint64_t kEventWallTime = 1, kEventStep = 2, kEventVersion = 3, kEventSummary = 5,
                   kEventSessionLog = 7;
constexpr uint64_t kSessionStatus = 1;
constexpr int64_t kSessionStart = 1;
constexpr uint64_t kSummaryValue = 1, kValueTag = 1, kValueSimple = 2, kValueImage = 4;
constexpr uint64_t kImageHeight = 1, kImageWidth = 2, kImageColorspace = 3, kImageBytes = 4;
constexpr int64_t kRgb = 3;

}  // namespace

uint32_t Crc32c(std::string_view bytes) {
  uint32_t crc = ~0u;
  for (const char c : bytes) crc = (crc >> 8) ^ kTable[(crc ^ static_cast<uint8_t>(c)) & 0xFF];
  return ~crc;
}

uint32_t MaskedCrc32c(std::string_view bytes) {
  const uint32_t crc = Crc32c(bytes);
  return std::rotr(crc, 15) + 0xA282EAD8u;
}

EventFile::EventFile(const std::string& directory, int64_t first_step)
    : path_(fmt::format("{}/events.out.tfevents.{}.linattn.{}", directory,
                        static_cast<int64_t>(SecondsSinceEpoch()), getpid())),
      file_(path_, std::ios::binary) {
  Check(file_.good(), "train", "{} must be writable, but cannot be opened", path_);
  Write(0, BytesField(kEventVersion, "brain.Event:2"));
  Write(first_step, BytesField(kEventSessionLog, IntField(kSessionStatus, kSessionStart)));
}

void EventFile::AddScalar(int64_t step, std::string_view tag, double value) {
  const std::string entry =
      BytesField(kValueTag, tag) + FloatField(kValueSimple, static_cast<float>(value));
  Write(step, BytesField(kEventSummary, BytesField(kSummaryValue, entry)));
}

void EventFile::AddPng(int64_t step, std::string_view tag, int64_t height, int64_t width,
                       std::string_view png) {
  const std::string image = IntField(kImageHeight, height) + IntField(kImageWidth, width) +
                            IntField(kImageColorspace, kRgb) + BytesField(kImageBytes, png);
  const std::string entry = BytesField(kValueTag, tag) + BytesField(kValueImage, image);
  Write(step, BytesField(kEventSummary, BytesField(kSummaryValue, entry)));
}

void EventFile::Write(int64_t step, std::string_view fields) {
  const std::string event = DoubleField(kEventWallTime, SecondsSinceEpoch()) +
                            IntField(kEventStep, step) + std::string(fields);
  const std::string length = LittleEndian(static_cast<uint64_t>(event.size()));
  file_ << length << LittleEndian(MaskedCrc32c(length)) << event
        << LittleEndian(MaskedCrc32c(event)) << std::flush;
  Check(file_.good(), "train", "{} must be writable, but a write failed", path_);
}

}  // namespace linattn
