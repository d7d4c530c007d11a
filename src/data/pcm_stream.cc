#include "data/pcm_stream.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "base/error.h"
#include "data/audio.h"

namespace linattn {
namespace {

constexpr const char* kWhere = "audio";
constexpr const char* kAdvice =
    "give its name instead of -, or pipe it through ffmpeg -i FILE -f s16le -ac 1 -ar RATE -";

uint32_t Number(const std::vector<uint8_t>& b, size_t at, int bytes) {
  uint32_t value = 0;
  for (int i = bytes - 1; i >= 0; --i) value = value << 8 | b[at + i];
  return value;
}

bool Named(const std::vector<uint8_t>& b, const char* name, size_t at = 0) {
  return b.size() >= at + 4 && std::memcmp(b.data() + at, name, 4) == 0;
}

// Of a chunk "fmt ": its rate.
int64_t RateOf(const std::vector<uint8_t>& b) {
  constexpr uint32_t kPcm = 1, kExtensible = 0xFFFE;
  Check(b.size() >= 16, kWhere, "standard input: the WAV format must have 16 bytes, but has {}",
        b.size());
  uint32_t format = Number(b, 0, 2);
  const uint32_t channels = Number(b, 2, 2), bits = Number(b, 14, 2);
  if (format == kExtensible && b.size() >= 26) format = Number(b, 24, 2);
  Check(format == kPcm && channels == 1 && bits == 16, kWhere,
        "standard input: a WAV stream must be 16-bit PCM of one channel, but is format {} of {} "
        "bits and {} channels: {}",
        format, bits, channels, kAdvice);
  return Number(b, 4, 4);
}

}  // namespace

PcmStream::PcmStream(Source source, int64_t rate)
    : source_(std::move(source)), rate_(rate), left_(std::numeric_limits<int64_t>::max()) {
  ReadHead();
  block_.resize(static_cast<size_t>(2 * std::max<int64_t>(1, rate_ / 10)));
}

bool PcmStream::Fetch(size_t size) {
  head_.resize(size);
  size_t done = 0;
  while (done < size) {
    const size_t n = source_(std::span(head_).subspan(done));
    if (n == 0) break;
    done += n;
  }
  head_.resize(done);
  return done == size;
}

void PcmStream::ReadHead() {
  constexpr std::pair<const char*, const char*> kOthers[] = {
      {"fLaC", "FLAC"}, {"OggS", "Ogg"},    {"RF64", "RF64"},
      {"FORM", "AIFF"}, {"ID3\x03", "MP3"}, {"ID3\x04", "MP3"}};
  Fetch(4);
  for (const auto& [magic, name] : kOthers)
    Check(!Named(head_, magic), kWhere,
          "standard input: must be PCM, but begins as a file of {}: {}", name, kAdvice);
  bare_ = !Named(head_, "RIFF");
  const int64_t rate = bare_ ? rate_ : ReadChunks();
  Check(rate > 0, kWhere, "a stream's sample rate must be given (--rate), but is not");
  Check(rate_ == 0 || rate_ == rate, kWhere,
        "--rate must be the stream's, {} Hz by its WAV head, but is {}", rate, rate_);
  rate_ = rate;
}

int64_t PcmStream::ReadChunks() {
  constexpr uint32_t kLongestFormat = 1 << 10;
  Check(Fetch(8) && Named(head_, "WAVE", 4), kWhere,
        "standard input: must be PCM, but begins as a RIFF file that is no WAV");
  int64_t rate = 0;
  while (Fetch(8)) {
    const uint32_t size = Number(head_, 4, 4);
    if (Named(head_, "data")) {
      if (size > 0 && size < kOpenSize) left_ = size;
      Check(rate > 0, kWhere, "standard input: the WAV format must come before its samples");
      return rate;
    }
    const bool format = Named(head_, "fmt ");
    if (!format) {
      Skip(int64_t{size} + size % 2);
      continue;
    }
    Check(size <= kLongestFormat && Fetch(size + size % 2), kWhere,
          "standard input: the WAV format must have at most {} bytes, but has {} or is cut",
          kLongestFormat, size);
    rate = RateOf(head_);
  }
  Fail(kWhere, "standard input: a WAV stream must have samples, but ends before them");
}

void PcmStream::Skip(int64_t bytes) {
  constexpr int64_t kBlock = 1 << 12;
  for (; bytes > 0; bytes -= kBlock)
    if (!Fetch(static_cast<size_t>(std::min(bytes, kBlock)))) return;
}

std::span<const uint8_t> PcmStream::Read() {
  if (std::exchange(bare_, false) && !head_.empty()) return head_;
  const auto most = std::min(left_, std::ssize(block_));
  const size_t n = most == 0 ? 0 : source_(std::span(block_).first(static_cast<size_t>(most)));
  left_ -= static_cast<int64_t>(n);
  return std::span(block_).first(n);
}

}  // namespace linattn
