#include "data/audio.h"

#include <gmock/gmock.h>
#include <sndfile.h>

#include <cmath>
#include <numbers>

#include "base/error.h"
#include "base/error_testing.h"
#include "base/file.h"
#include "base/temporary_directory.h"
#include "data/frame_stream.h"

namespace linattn {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

// Two tones that come and go, as speech does.
std::vector<float> Tones(int64_t rate, double seconds) {
  std::vector<float> x(static_cast<size_t>(std::lround(static_cast<double>(rate) * seconds)));
  for (size_t i = 0; i < x.size(); ++i) {
    const double t = 2 * std::numbers::pi * static_cast<double>(i) / static_cast<double>(rate);
    x[i] = static_cast<float>(0.3 * std::sin(440 * t) * std::sin(2 * t) + 0.1 * std::sin(1500 * t));
  }
  return x;
}

Bytes Wav(const std::vector<float>& samples, int64_t rate) {
  const TemporaryDirectory directory;
  WriteWav(directory / "a.wav", {rate, samples});
  return ReadFile(directory / "a.wav");
}

Bytes Chunk(const char* name, size_t size) {
  Bytes chunk(name, name + 4);
  for (int i = 0; i < 4; ++i) chunk.push_back(static_cast<uint8_t>(size >> 8 * i));
  chunk.resize(8 + size + size % 2, 'x');
  return chunk;
}

TEST(Audio, WavChunksInAnyOrder) {  // E11
  const Bytes plain = Wav(Tones(8000, 0.1), 8000);
  const std::vector<float> right = DecodeAudio(plain, "plain").samples;
  ASSERT_EQ(right.size(), 800u);
  EXPECT_NEAR(right[100], Tones(8000, 0.1)[100], 1e-4);

  Bytes junk = plain;  // JUNK of an odd size before fmt, LIST behind data
  const Bytes odd = Chunk("JUNK", 7), list = Chunk("LIST", 26);
  junk.insert(junk.begin() + 12, odd.begin(), odd.end());
  junk.insert(junk.end(), list.begin(), list.end());
  EXPECT_EQ(DecodeAudio(junk, "junk").samples, right);

  EXPECT_FALSE(DecodeAudio(plain, "plain").cut);
  for (const uint8_t byte : {0x00, 0x7F, 0xFF}) {  // sizes that were never filled in
    Bytes open = plain;
    std::fill_n(open.begin() + 40, 4, byte);
    std::fill_n(open.begin() + 4, 4, byte);
    EXPECT_EQ(DecodeAudio(open, "open").samples, right);
    EXPECT_FALSE(DecodeAudio(open, "open").cut);
    open = junk;
    open.resize(open.size() - list.size());
    std::fill_n(open.begin() + 40 + static_cast<int64_t>(odd.size()), 4, byte);
    EXPECT_EQ(DecodeAudio(open, "open, with JUNK").samples, right);
  }
  Bytes cut = plain;
  cut.resize(44 + 2 * 300 + 1);
  EXPECT_EQ(DecodeAudio(cut, "cut").samples.size(), 300u);
  EXPECT_TRUE(DecodeAudio(cut, "cut").cut);
}

TEST(Audio, FlacOggAndChannels) {
  const TemporaryDirectory directory;
  const std::vector<float> x = Tones(16000, 0.5);
  const std::pair<const char*, int> kFormats[] = {{"a.flac", SF_FORMAT_FLAC | SF_FORMAT_PCM_16},
                                                  {"a.ogg", SF_FORMAT_OGG | SF_FORMAT_VORBIS}};
  for (const auto& [name, format] : kFormats) {
    SF_INFO info{};
    info.samplerate = 16000, info.channels = 2, info.format = format;
    SNDFILE* file = sf_open((directory / name).c_str(), SFM_WRITE, &info);
    ASSERT_NE(file, nullptr) << name;
    for (const float v : x) {
      const float both[] = {v + 0.05f, v - 0.05f};
      sf_writef_float(file, both, 1);
    }
    sf_close(file);
    const Audio audio = ReadAudio(directory / name);
    EXPECT_EQ(audio.rate, 16000);
    ASSERT_EQ(audio.samples.size(), x.size());
    double error = 0;
    for (size_t i = 0; i < x.size(); ++i) error += std::abs(audio.samples[i] - x[i]);
    EXPECT_LT(error / static_cast<double>(x.size()), 0.01) << name;
    EXPECT_FALSE(audio.cut) << name;
  }
  // Cut, an Ogg file ends without saying so, and a FLAC file is shorter than its head says.
  Bytes ogg = ReadFile(directory / "a.ogg"), flac = ReadFile(directory / "a.flac");
  ogg.resize(ogg.size() * 9 / 10);
  EXPECT_TRUE(DecodeAudio(ogg, "cut.ogg").cut);
  flac.resize(flac.size() / 2);
  EXPECT_THAT(MessageOf([&] { EXPECT_TRUE(DecodeAudio(flac, "cut.flac").cut); }),
              AnyOf(HasSubstr("no error"), HasSubstr("cut.flac: is damaged")));
}

TEST(Audio, SamplesAreNumbers) {
  const TemporaryDirectory directory;
  for (const float bad : {NAN, INFINITY, -1e30f}) {
    SF_INFO info{};
    info.samplerate = 8000, info.channels = 1, info.format = SF_FORMAT_WAV | SF_FORMAT_FLOAT;
    SNDFILE* file = sf_open((directory / "x.wav").c_str(), SFM_WRITE, &info);
    std::vector<float> x(800, 0.1f);
    x[100] = bad;
    sf_writef_float(file, x.data(), std::ssize(x));
    sf_close(file);
    EXPECT_THAT(MessageOf([&] { ReadAudio(directory / "x.wav"); }),
                HasSubstr(fmt::format("x.wav: samples must be numbers up to 1e+06 (full scale is "
                                      "1), but sample 100 is {}",
                                      bad)));
  }
}

TEST(Audio, OtherFilesAreNamed) {
  EXPECT_THAT(MessageOf([] { DecodeAudio(Bytes(100, 'a'), "a.mp3"); }),
              HasSubstr("a.mp3: must be a WAV, FLAC or Ogg file"));
  EXPECT_THAT(MessageOf([] { DecodeAudio({}, "empty.wav"); }), HasSubstr("empty.wav"));
  EXPECT_THAT(MessageOf([] { ReadAudio("/nowhere.wav"); }), HasSubstr("/nowhere.wav"));
}

TEST(Resampler, ConstantsStayAndHighTonesGo) {
  for (const auto& [from, to] :
       {std::pair(44100, 8000), {16000, 8000}, {8000, 16000}, {11025, 8000}}) {
    Resampler resampler(from, to);
    std::vector<float> out;
    resampler.Push(std::vector<float>(from, 0.5f), out);
    resampler.Finish(out);
    EXPECT_EQ(std::ssize(out), to);
    for (int i = to / 4; i < 3 * to / 4; ++i) ASSERT_NEAR(out[i], 0.5f, 1e-4f);
  }
  Resampler resampler(16000, 8000);
  std::vector<float> in(16000), out;
  for (size_t i = 0; i < in.size(); ++i)
    in[i] =
        static_cast<float>(std::sin(2 * std::numbers::pi * 5000 / 16000 * static_cast<double>(i)));
  resampler.Push(in, out);
  for (int i = 2000; i < 6000; ++i) ASSERT_NEAR(out[i], 0, 2e-4f);
}

TEST(Resampler, PiecesAndASavedStateChangeNothing) {
  const std::vector<float> in = Tones(44100, 0.3);
  Resampler whole(44100, 8000);
  std::vector<float> right, out;
  whole.Push(in, right);
  whole.Finish(right);
  const Resampler fresh(44100, 8000);
  Resampler pieces = fresh;
  for (size_t at = 0, n = 1; at < in.size(); at += n, n = n * 3 % 1000 + 1) {
    const std::vector<float> state = pieces.Save();
    pieces = fresh;
    pieces.Restore(state);
    n = std::min(n, in.size() - at);
    pieces.Push(std::span(in).subspan(at, n), out);
  }
  pieces.Finish(out);
  EXPECT_EQ(out, right);
  Resampler other(16000, 8000);
  EXPECT_THROW(other.Restore(pieces.Save()), Error);
  EXPECT_THAT(MessageOf([] { Resampler(1048573, 1048571); }),
              HasSubstr("1048573 Hz cannot be resampled to 1048571 Hz"));
}

TEST(LogMel, FramesCoverWholeWindowsAndFindATone) {
  LogMel mel(8000, 40);
  EXPECT_EQ(mel.window(), 200);
  EXPECT_EQ(mel.hop(), 80);
  for (const auto& [samples, frames] :
       {std::pair(199, 0), {200, 1}, {279, 1}, {280, 2}, {8000, 98}})
    EXPECT_EQ(mel.Frames(samples), frames);
  std::vector<float> in(8000), out;
  for (size_t i = 0; i < in.size(); ++i)
    in[i] =
        static_cast<float>(std::sin(2 * std::numbers::pi * 1000 / 8000 * static_cast<double>(i)));
  mel.Push(in, out);
  ASSERT_EQ(out.size(), 98u * 40);
  const auto best = std::max_element(out.begin(), out.begin() + 40) - out.begin();
  // 1127 ln(1 + f/700) spaces 40 centres evenly from 20 to 4000 Hz; the 19th stands at 1003 Hz.
  EXPECT_EQ(best, 18);
  LogMel silence(16000, 40);
  out.clear();
  silence.Push(std::vector<float>(400), out);
  for (const float x : out) EXPECT_FLOAT_EQ(x, std::log(1e-6f));
}

FrameOptions Options() {
  FrameOptions o;
  o.rate = 8000, o.features = 40, o.subsample = 3;
  o.mean.assign(40, -5), o.deviation.assign(40, 3);
  return o;
}

TEST(FrameStream, AStreamIsTheFile) {
  const std::vector<float> in = Tones(22050, 1.01);
  const std::vector<float> right = RowsOf(Options(), {22050, in});
  const FrameStream fresh(Options(), 22050);
  FrameStream stream = fresh;
  std::vector<float> rows;
  for (size_t at = 0, n = 1; at < in.size(); at += n, n = n * 5 % 3000 + 1) {
    const auto state = stream.Save();
    stream = fresh;
    stream.Restore(state);
    n = std::min(n, in.size() - at);
    stream.Push(std::span(in).subspan(at, n), rows);
  }
  stream.Finish(rows);
  EXPECT_EQ(rows, right);
  FrameStream other(Options(), 16000);
  EXPECT_THAT(MessageOf([&] { other.Restore(stream.Save()); }), HasSubstr("16000 Hz"));
}

TEST(FrameStream, RowsAreFramesRoundedUp) {  // E10
  for (const int64_t factor : {4, 8}) {
    for (const int64_t frames : {1, 3, 4, 5, 7, 8, 9}) {
      FrameOptions o;
      o.subsample = factor;
      const Audio audio{8000, Tones(8000, 0.025 + 0.010 * static_cast<double>(frames - 1))};
      const auto rows = RowsOf(o, audio);
      EXPECT_EQ(CountFrames(o, audio), frames);
      ASSERT_EQ(std::ssize(rows), (frames + factor - 1) / factor * factor * 40);
      for (size_t i = frames * 40; i < rows.size(); ++i) EXPECT_EQ(rows[i], 0);
    }
  }
}

TEST(FrameStream, AudioShorterThanAWindowHasNoRows) {  // E10
  EXPECT_EQ(RowsOf(Options(), {8000, std::vector<float>(199)}).size(), 0u);
  EXPECT_EQ(RowsOf(Options(), {8000, std::vector<float>(200)}).size(), 120u);
  EXPECT_EQ(RowsOf(Options(), {8000, {}}).size(), 0u);
}

TEST(FrameStream, CopiesAtOtherRatesGiveTheSameFrames) {  // E13
  FrameOptions o;
  o.deviation.assign(40, 1);
  const auto right = RowsOf(o, {8000, Tones(8000, 1)});
  for (const int64_t rate : {16000, 22050, 44100}) {
    const auto rows = RowsOf(o, {rate, Tones(rate, 1)});
    ASSERT_EQ(std::ssize(rows), 40 * CountFrames(o, {rate, Tones(rate, 1)}));
    ASSERT_NEAR(static_cast<double>(rows.size()), static_cast<double>(right.size()), 40);
    double error = 0, count = 0;
    for (size_t i = 0; i < std::min(rows.size(), right.size()); ++i) {
      // Loud ones below the filter's edge, away from the ends.
      if (right[i] < -4 || i % 40 > 36 || i < 400 || i + 400 > right.size()) continue;
      error += std::abs(rows[i] - right[i]), ++count;
    }
    ASSERT_GT(count, 500);
    EXPECT_LT(error / count, 0.05) << rate;
  }
}

}  // namespace
}  // namespace linattn
