#include "data/audio.h"

#include <sndfile.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>

#include "base/error.h"
#include "base/file.h"

namespace linattn {
namespace {

constexpr const char* kWhere = "audio";
constexpr size_t kHead = 8;  // bytes of a chunk's name and size
constexpr float kLoudest = 1e6f;

uint32_t Size(const Bytes& b, size_t at) {
  return b[at] | b[at + 1] << 8 | b[at + 2] << 16 | static_cast<uint32_t>(b[at + 3]) << 24;
}
void SetSize(Bytes& b, size_t at, size_t size) {
  const auto value = static_cast<uint32_t>(std::min<size_t>(size, UINT32_MAX));
  for (int i = 0; i < 4; ++i) b[at + i] = static_cast<uint8_t>(value >> 8 * i);
}
bool Named(const Bytes& b, size_t at, const char* name) {
  return b.size() >= at + 4 && std::memcmp(b.data() + at, name, 4) == 0;
}

// Whether whole chunks fill b from `at` to its end, as behind a data chunk that is truly empty.
bool ChunksUntilEnd(const Bytes& b, size_t at) {
  while (at + kHead <= b.size()) {
    const size_t size = Size(b, at + 4);
    at += kHead + size + size % 2;
  }
  return at == b.size() || at == b.size() + 1;
}

// Fills in the sizes that a WAV file has left open. Whether it is cut.
bool RepairWav(Bytes& b) {
  if (!Named(b, 0, "RIFF") || !Named(b, 8, "WAVE")) return false;
  for (size_t at = 12; at + kHead <= b.size();) {
    const size_t size = Size(b, at + 4), left = b.size() - at - kHead;
    const bool open = Named(b, at, "data") &&
                      (size > left || (size == 0 && left > 0 && !ChunksUntilEnd(b, at + kHead)));
    if (open) {
      SetSize(b, at + 4, left);
      SetSize(b, 4, b.size() - kHead);
      return size > left && size < kOpenSize;
    }
    if (size > left) return true;
    at += kHead + size + size % 2;
  }
  return false;
}

// The bytes as libsndfile's virtual file.
struct Reader {
  const Bytes& bytes;
  sf_count_t at = 0;

  static Reader& Of(void* data) { return *static_cast<Reader*>(data); }
  static sf_count_t Length(void* data) { return std::ssize(Of(data).bytes); }
  static sf_count_t Tell(void* data) { return Of(data).at; }
  static sf_count_t Seek(sf_count_t offset, int whence, void* data) {
    Reader& r = Of(data);
    const sf_count_t from = whence == SEEK_SET ? 0 : whence == SEEK_CUR ? r.at : Length(data);
    return r.at = std::clamp<sf_count_t>(from + offset, 0, Length(data));
  }
  static sf_count_t Read(void* to, sf_count_t count, void* data) {
    Reader& r = Of(data);
    const sf_count_t n = std::min(count, Length(data) - r.at);
    std::copy_n(r.bytes.data() + r.at, n, static_cast<uint8_t*>(to));  // of an empty file: null
    r.at += n;
    return n;
  }
};

using SoundFile = std::unique_ptr<SNDFILE, int (*)(SNDFILE*)>;

}  // namespace

Audio ReadAudio(const std::string& path) { return DecodeAudio(ReadFile(path, kWhere), path); }

Audio DecodeAudio(std::vector<uint8_t> bytes, const std::string& name) {
  const bool cut = RepairWav(bytes);
  Reader reader{bytes};
  SF_VIRTUAL_IO io{Reader::Length, Reader::Seek, Reader::Read, nullptr, Reader::Tell};
  SF_INFO info{};
  const SoundFile file(sf_open_virtual(&io, SFM_READ, &info, &reader), sf_close);
  Check(file != nullptr, kWhere, "{}: must be a WAV, FLAC or Ogg file, but is not: {}", name,
        sf_strerror(nullptr));
  Check(info.channels >= 1 && info.channels <= 64, kWhere,
        "{}: must have from 1 to 64 channels, but has {}", name, info.channels);
  // Of an Ogg file whose last page is not there, libsndfile does not know the length.
  const bool no_end =
      (info.format & SF_FORMAT_TYPEMASK) == SF_FORMAT_OGG && info.frames == SF_COUNT_MAX;
  Audio audio{info.samplerate, {}, cut || no_end};
  constexpr sf_count_t kBlock = 4096;
  std::vector<float> block(static_cast<size_t>(kBlock * info.channels));
  for (sf_count_t n; (n = sf_readf_float(file.get(), block.data(), kBlock)) > 0;) {
    for (sf_count_t i = 0; i < n; ++i) {
      float sum = 0;
      for (int c = 0; c < info.channels; ++c) sum += block[i * info.channels + c];
      const float x = sum / static_cast<float>(info.channels);
      Check(std::abs(x) <= kLoudest, kWhere,
            "{}: samples must be numbers up to {:g} (full scale is 1), but sample {} is {}", name,
            kLoudest, audio.samples.size(), x);
      audio.samples.push_back(x);
    }
  }
  Check(sf_error(file.get()) == SF_ERR_NO_ERROR, kWhere, "{}: is damaged: {}", name,
        sf_strerror(file.get()));
  audio.cut |= info.frames != SF_COUNT_MAX && std::ssize(audio.samples) < info.frames;
  return audio;
}

void WriteWav(const std::string& path, const Audio& audio) {
  Bytes b(44 + 2 * audio.samples.size());
  const auto name = [&](size_t at, const char* text) { std::memcpy(&b[at], text, 4); };
  const auto rate = static_cast<size_t>(audio.rate);
  name(0, "RIFF"), SetSize(b, 4, b.size() - kHead), name(8, "WAVE");
  name(12, "fmt "), SetSize(b, 16, 16), SetSize(b, 20, 1 | 1 << 16);  // PCM, one channel
  SetSize(b, 24, rate), SetSize(b, 28, 2 * rate), SetSize(b, 32, 2 | 16 << 16);
  name(36, "data"), SetSize(b, 40, 2 * audio.samples.size());
  for (size_t i = 0; i < audio.samples.size(); ++i) {
    const auto x =
        static_cast<int16_t>(std::lround(std::clamp(audio.samples[i] * 32768, -32768.f, 32767.f)));
    b[44 + 2 * i] = static_cast<uint8_t>(x & 255), b[45 + 2 * i] = static_cast<uint8_t>(x >> 8);
  }
  WriteFileAtomic(path, b);
}

void AppendPcm16(std::span<const uint8_t> bytes, std::vector<float>& samples) {
  for (size_t i = 0; i + 1 < bytes.size(); i += 2) {
    const auto x = static_cast<int16_t>(bytes[i] | bytes[i + 1] << 8);
    samples.push_back(static_cast<float>(x) / 32768);
  }
}

}  // namespace linattn
