#include "data/cifar.h"

#include "base/error.h"
#include "data/gzip.h"

namespace linattn {

ImageSet ParseCifar10(std::span<const uint8_t> stored, const std::string& name) {
  constexpr int64_t kSide = 32, kPlane = kSide * kSide, kRecord = 1 + 3 * kPlane;
  constexpr size_t kMostBytes = size_t{kRecord} * 1'000'000;
  const Contents contents = Unpack(stored, kMostBytes, name);
  const auto found = static_cast<int64_t>(contents.bytes.size());
  const int64_t records = found / kRecord;
  const std::string as =
      contents.gzip ? fmt::format(" (unpacked from {} bytes of gzip{})", contents.file_bytes,
                                  contents.cut ? ", which end early" : "")
                    : "";
  Check(!contents.more, "data", "{}: must have at most a million records, but has more", name);
  Check(found > 0, "data", "{}: needs records of {} bytes, but found 0 bytes{}", name, kRecord, as);
  Check(found % kRecord == 0, "data",
        "{}: is cut short: record {} needs {} bytes, found {} of them, {} in all{}", name, records,
        kRecord, found % kRecord, found, as);
  Check(!contents.cut, "data",
        "{}: is cut short: {} records unpacked, but the file of {} bytes ends before the gzip "
        "checksum",
        name, records, contents.file_bytes);
  ImageSet set;
  set.count = records;
  set.height = set.width = kSide;
  set.channels = 3;
  set.classes = 10;
  set.class_names = {"airplane", "automobile", "bird",  "cat",  "deer",
                     "dog",      "frog",       "horse", "ship", "truck"};
  set.pixels.resize(static_cast<size_t>(records * 3 * kPlane));
  uint8_t* pixel = set.pixels.data();
  for (int64_t i = 0; i < records; ++i) {
    const uint8_t* record = contents.bytes.data() + i * kRecord;
    Check(record[0] < set.classes, "data", "{}: labels must be from 0 to 9, but record {} has {}",
          name, i, record[0]);
    set.labels.push_back(record[0]);
    const uint8_t* planes = record + 1;  // [3,32,32]
    for (int64_t at = 0; at < kPlane; ++at)
      for (int64_t c = 0; c < 3; ++c) *pixel++ = planes[c * kPlane + at];
  }
  return set;
}

}  // namespace linattn
