#include "train/event_file.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <map>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/temporary_directory.h"

namespace linattn {
namespace {

TEST(Crc32c, KnownValues) {  // RFC 3720, appendix B.4
  EXPECT_EQ(Crc32c(std::string(32, '\0')), 0x8A9136AAu);
  EXPECT_EQ(Crc32c(std::string(32, '\xFF')), 0x62A8AB43u);
  EXPECT_EQ(Crc32c("123456789"), 0xE3069283u);
}

uint64_t Little(std::string_view bytes) {
  uint64_t value = 0;
  for (size_t i = bytes.size(); i-- > 0;) value = value << 8 | static_cast<uint8_t>(bytes[i]);
  return value;
}

// The payloads of TFRecord frames; every length and checksum must hold.
std::vector<std::string> ReadRecords(std::string_view file) {
  std::vector<std::string> records;
  while (!file.empty()) {
    if (file.size() < 16) ADD_FAILURE() << "cut frame";
    const uint64_t length = Little(file.substr(0, 8));
    EXPECT_EQ(Little(file.substr(8, 4)), MaskedCrc32c(file.substr(0, 8)));
    const std::string_view data = file.substr(12, length);
    EXPECT_EQ(Little(file.substr(12 + length, 4)), MaskedCrc32c(data));
    records.emplace_back(data);
    file.remove_prefix(16 + length);
  }
  return records;
}

uint64_t ReadVarint(std::string_view& bytes) {
  uint64_t value = 0;
  for (int shift = 0;; shift += 7) {
    const auto byte = static_cast<uint8_t>(bytes.at(0));
    bytes.remove_prefix(1);
    value |= uint64_t{byte & 0x7Fu} << shift;
    if (byte < 0x80) return value;
  }
}

// The fields of a protocol buffer by number; each once in these messages.
struct Field {
  uint64_t number = 0;
  std::string_view bytes;
};
std::map<uint64_t, Field> Parse(std::string_view bytes) {
  std::map<uint64_t, Field> fields;
  while (!bytes.empty()) {
    const uint64_t tag = ReadVarint(bytes);
    Field& field = fields[tag >> 3];
    size_t size = 0;
    switch (tag & 7) {
      case 0:
        field.number = ReadVarint(bytes);
        continue;
      case 1:
        size = 8;
        break;
      case 2:
        size = ReadVarint(bytes);
        break;
      case 5:
        size = 4;
        break;
      default:
        ADD_FAILURE() << "wire kind " << (tag & 7);
        return fields;
    }
    field.bytes = bytes.substr(0, size);
    field.number = Little(field.bytes.substr(0, std::min<size_t>(size, 8)));
    bytes.remove_prefix(size);
  }
  return fields;
}

TEST(EventFile, ReadsBack) {
  const TemporaryDirectory directory;
  EventFile file(directory.path(), 41);
  file.AddScalar(300, "train/loss", 2.5);
  file.AddPng(301, "samples", 28, 56, std::string("\x89PNG\0data", 9));
  const Bytes bytes = ReadFile(file.path());
  const auto records = ReadRecords(AsText(bytes));
  ASSERT_EQ(records.size(), 4u);

  EXPECT_EQ(Parse(records[0])[3].bytes, "brain.Event:2");
  EXPECT_GT(std::bit_cast<double>(Parse(records[0])[1].number), 1.5e9);  // seconds since 1970

  auto start = Parse(records[1]);
  EXPECT_EQ(start[2].number, 41u);
  EXPECT_EQ(Parse(start[7].bytes)[1].number, 1u);  // SessionLog.START

  auto scalar = Parse(records[2]);
  EXPECT_EQ(scalar[2].number, 300u);
  auto value = Parse(Parse(scalar[5].bytes)[1].bytes);
  EXPECT_EQ(value[1].bytes, "train/loss");
  EXPECT_EQ(std::bit_cast<float>(static_cast<uint32_t>(value[2].number)), 2.5f);

  auto image = Parse(Parse(Parse(Parse(records[3])[5].bytes)[1].bytes)[4].bytes);
  EXPECT_EQ(image[1].number, 28u);
  EXPECT_EQ(image[2].number, 56u);
  EXPECT_EQ(image[4].bytes, std::string_view("\x89PNG\0data", 9));
}

TEST(EventFile, SaysWhatCannotBeWritten) { EXPECT_THROW(EventFile("/nonexistent", 0), Error); }

}  // namespace
}  // namespace linattn
