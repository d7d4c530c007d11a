#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace linattn {

// Sound as it comes through a pipe: 16-bit little-endian PCM of one channel, bare or behind the
// head of a WAV file (arecord, sox and ffmpeg write one unless they are told not to). Other audio
// files are known by their first bytes and refused, for they would be heard as noise.
class PcmStream {
 public:
  // Fills a beginning of `to`, waiting only for the first byte, and returns its length; 0: the end.
  using Source = std::function<size_t(std::span<uint8_t> to)>;

  // Reads up to the first sample. `rate` (Hz) must be 0 or the file's where there is a head, and
  // given where there is none. Throws Error.
  PcmStream(Source source, int64_t rate);

  int64_t rate() const { return rate_; }
  // What has come, at most a tenth of a second, without waiting for more: whole samples or not.
  // Empty at the end.
  std::span<const uint8_t> Read();

 private:
  bool Fetch(size_t size);  // the next bytes into head_; false if there are not so many
  void ReadHead();
  int64_t ReadChunks();  // up to the samples; the file's rate
  void Skip(int64_t bytes);

  Source source_;
  int64_t rate_, left_;  // left_: bytes of samples, at most
  std::vector<uint8_t> head_, block_;
  bool bare_ = false;  // head_ holds samples, the first
};

}  // namespace linattn
