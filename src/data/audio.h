#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace linattn {

struct Audio {
  int64_t rate = 0;            // Hz
  std::vector<float> samples;  // one channel, in [-1,1]; several channels of a file are averaged
};

// A WAV, FLAC or Ogg file (what libsndfile reads). Of WAV files, chunks are walked in any order,
// and a data chunk whose size is not filled in (0 or 0xFFFFFFFF, as writers to a pipe leave it) or
// goes beyond the end of the file ends there. Throws Error "[audio] file: ..." if it is none of
// these.
Audio ReadAudio(const std::string& path);
Audio DecodeAudio(std::vector<uint8_t> bytes, const std::string& name);

// Writes 16-bit PCM as WAV.
void WriteWav(const std::string& path, const Audio& audio);

// 16-bit little-endian PCM, whole samples only: bytes.size() is even.
void AppendPcm16(std::span<const uint8_t> bytes, std::vector<float>& samples);

}  // namespace linattn
