#include "data/gzip.h"

#include <zlib.h>

#include <algorithm>
#include <limits>

#include "base/error.h"

namespace linattn {
namespace {

class Inflater {
 public:
  explicit Inflater(std::span<const uint8_t> stored) {
    constexpr int kGzipOnly = 16 + MAX_WBITS;
    if (inflateInit2(&stream_, kGzipOnly) != Z_OK)
      throw Error("data", "zlib cannot start", Fault::kInternal);
    stream_.next_in = const_cast<Bytef*>(stored.data());
    end_ = stored.data() + stored.size();
  }
  ~Inflater() { inflateEnd(&stream_); }
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;

  size_t stored_left() const { return static_cast<size_t>(end_ - stream_.next_in); }
  const char* message() const { return stream_.msg ? stream_.msg : "bad data"; }
  bool AtMember() const { return stored_left() >= 2 && IsGzip({stream_.next_in, 2}); }
  static bool IsGzip(std::span<const uint8_t> bytes) {
    return bytes.size() >= 2 && bytes[0] == 0x1F && bytes[1] == 0x8B;
  }
  void NextMember() { inflateReset(&stream_); }

  // Unpacks into out; returns zlib's status and the bytes written.
  std::pair<int, size_t> Run(std::span<uint8_t> out) {
    constexpr size_t kMost = std::numeric_limits<uInt>::max();
    stream_.next_out = out.data();
    stream_.avail_out = static_cast<uInt>(std::min(out.size(), kMost));
    stream_.avail_in = static_cast<uInt>(std::min(stored_left(), kMost));
    const uInt room = stream_.avail_out;
    const int status = inflate(&stream_, Z_NO_FLUSH);
    return {status, room - stream_.avail_out};
  }

 private:
  z_stream stream_{};
  const uint8_t* end_;
};

Contents UnpackGzip(std::span<const uint8_t> stored, size_t limit, const std::string& name) {
  Contents contents;
  contents.gzip = true;
  contents.file_bytes = stored.size();
  Inflater inflater(stored);
  // One byte of room beyond the limit: zlib needs it to reach the end mark, and it shows that there
  // is more.
  constexpr size_t kBlock = size_t{1} << 20;
  size_t size = 0;
  while (true) {
    contents.bytes.resize(size + std::min(kBlock, limit + 1 - size));
    const auto [status, n] = inflater.Run(std::span(contents.bytes).subspan(size));
    size += n;
    contents.more = size > limit;
    const bool ended = status == Z_STREAM_END;
    Check(status == Z_OK || ended || status == Z_BUF_ERROR, "data",
          "{}: damaged gzip file: {} ({} of its {} bytes read, {} unpacked)", name,
          inflater.message(), stored.size() - inflater.stored_left(), stored.size(), size);
    if (contents.more) break;
    if (ended && inflater.stored_left() == 0) break;
    if (ended) {
      Check(inflater.AtMember(), "data", "{}: {} bytes follow the end of the gzip data", name,
            inflater.stored_left());
      inflater.NextMember();
    } else if (n == 0 && inflater.stored_left() == 0) {
      contents.cut = true;
      break;
    }
  }
  contents.bytes.resize(std::min(size, limit));
  return contents;
}

}  // namespace

Contents Unpack(std::span<const uint8_t> stored, size_t limit, const std::string& name) {
  if (Inflater::IsGzip(stored)) return UnpackGzip(stored, limit, name);
  const auto kept = stored.first(std::min(limit, stored.size()));
  return {Bytes(kept.begin(), kept.end()), false, false, stored.size() > limit, stored.size()};
}

}  // namespace linattn
