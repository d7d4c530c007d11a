#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace linattn {

// A WAV file's data chunk of size 0, or of so much or more than there is, was written to a pipe by
// somebody who did not know its size: 0xFFFFFFFF, 0x7FFFFFFF less a header, and the like.
inline constexpr uint32_t kOpenSize = 0x7F000000;

struct Audio {
  int64_t rate = 0;            // Hz
  std::vector<float> samples;  // one channel, in [-1,1]; several channels of a file are averaged
  bool cut = false;            // the file ends before its header or its format says it does
};

// A WAV, FLAC or Ogg file (what libsndfile reads). Of WAV files, chunks are walked in any order,
// and a data chunk whose size is not filled in (kOpenSize) or goes beyond the end of the file ends
// there. Throws Error "[audio] file: ..." if it is none of these, or a sample is no number or above
// 1e6.
Audio ReadAudio(const std::string& path);
Audio DecodeAudio(std::vector<uint8_t> bytes, const std::string& name);

// Writes 16-bit PCM as WAV.
void WriteWav(const std::string& path, const Audio& audio);

// 16-bit little-endian PCM, whole samples only: bytes.size() is even.
void AppendPcm16(std::span<const uint8_t> bytes, std::vector<float>& samples);

}  // namespace linattn
