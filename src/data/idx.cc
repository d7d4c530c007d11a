#include "data/idx.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "data/gzip.h"

namespace linattn {
namespace {

struct Idx {
  std::vector<int64_t> sizes;
  Bytes values;
};

int64_t BigEndian32(const uint8_t* p) {
  return int64_t{p[0]} << 24 | int64_t{p[1]} << 16 | int64_t{p[2]} << 8 | p[3];
}

std::string StoredAs(const Contents& contents) {
  if (!contents.gzip) return "";
  return fmt::format(" (unpacked from {} bytes of gzip{})", contents.file_bytes,
                     contents.cut ? ", which end early" : "");
}

std::string_view KindOf(int64_t magic) {
  if (magic == 0x801) return "an idx file of labels";
  if (magic == 0x803) return "an idx file of images";
  return "not an idx file of MNIST's kind";
}

// Sizes from the header, whose length is 4 bytes and 4 a dimension.
std::vector<int64_t> ParseHeader(const Contents& contents, int dimensions,
                                 const std::string& name) {
  const int64_t magic = 0x800 + dimensions;
  const size_t header_bytes = 4 + 4 * static_cast<size_t>(dimensions);
  const Bytes& bytes = contents.bytes;
  if (bytes.size() >= 4)
    Check(BigEndian32(bytes.data()) == magic, "data",
          "{}: must begin with 0x{:08X} ({}), but begins with 0x{:08X} ({})", name, magic,
          KindOf(magic), BigEndian32(bytes.data()), KindOf(BigEndian32(bytes.data())));
  Check(bytes.size() >= header_bytes, "data",
        "{}: is cut short: the idx header needs {} bytes, found {}{}", name, header_bytes,
        bytes.size(), StoredAs(contents));
  std::vector<int64_t> sizes;
  for (int i = 0; i < dimensions; ++i) sizes.push_back(BigEndian32(&bytes[4 + 4 * i]));
  return sizes;
}

Idx ParseIdx(std::span<const uint8_t> stored, int dimensions, const std::string& name) {
  const size_t header_bytes = 4 + 4 * static_cast<size_t>(dimensions);
  Idx idx;
  idx.sizes = ParseHeader(Unpack(stored, header_bytes, name), dimensions, name);
  constexpr int64_t kMost = int64_t{1} << 40;
  int64_t expected = static_cast<int64_t>(header_bytes), values = 1;
  for (const int64_t n : idx.sizes) {
    Check(n >= 1 && n <= kMost / values, "data", "{}: sizes must be from 1 up, but are {}", name,
          fmt::join(idx.sizes, " x "));
    values *= n;
  }
  expected += values;
  Contents contents = Unpack(stored, static_cast<size_t>(expected), name);
  const auto found = static_cast<int64_t>(contents.bytes.size());
  Check(found >= expected, "data", "{}: is cut short: {} values need {} bytes, found {}{}", name,
        fmt::join(idx.sizes, " x "), expected, found, StoredAs(contents));
  Check(!contents.cut, "data",
        "{}: is cut short: all {} bytes unpacked, but the file of {} bytes ends before the gzip "
        "checksum",
        name, expected, contents.file_bytes);
  Check(!contents.more, "data", "{}: {} values need {} bytes, but there are more", name,
        fmt::join(idx.sizes, " x "), expected);
  contents.bytes.erase(contents.bytes.begin(),
                       contents.bytes.begin() + static_cast<int64_t>(header_bytes));
  idx.values = std::move(contents.bytes);
  return idx;
}

}  // namespace

ImageSet ParseIdxImages(std::span<const uint8_t> stored, const std::string& name) {
  Idx idx = ParseIdx(stored, 3, name);
  ImageSet set;
  set.count = idx.sizes[0];
  set.height = idx.sizes[1];
  set.width = idx.sizes[2];
  set.channels = 1;
  set.pixels = std::move(idx.values);
  return set;
}

std::vector<int32_t> ParseIdxLabels(std::span<const uint8_t> stored, int64_t classes,
                                    const std::string& name) {
  const Idx idx = ParseIdx(stored, 1, name);
  for (size_t i = 0; i < idx.values.size(); ++i)
    Check(idx.values[i] < classes, "data", "{}: labels must be from 0 to {}, but label {} is {}",
          name, classes - 1, i, idx.values[i]);
  return {idx.values.begin(), idx.values.end()};
}

}  // namespace linattn
