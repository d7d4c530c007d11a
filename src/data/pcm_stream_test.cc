#include "data/pcm_stream.h"

#include <gmock/gmock.h>

#include "base/error_testing.h"
#include "base/file.h"
#include "base/temporary_directory.h"
#include "data/audio.h"

namespace linattn {
namespace {

using ::testing::HasSubstr;

// Bytes in pieces of at most `piece`.
PcmStream::Source From(Bytes bytes, size_t piece) {
  return [bytes = std::move(bytes), piece, at = size_t{0}](std::span<uint8_t> to) mutable {
    const size_t n = std::min({piece, to.size(), bytes.size() - at});
    std::copy_n(bytes.begin() + static_cast<int64_t>(at), n, to.begin());
    at += n;
    return n;
  };
}

Bytes All(PcmStream& stream) {
  Bytes all;
  for (auto piece = stream.Read(); !piece.empty(); piece = stream.Read())
    all.insert(all.end(), piece.begin(), piece.end());
  return all;
}

Bytes Wav() {
  const TemporaryDirectory directory;
  Audio audio{8000, {}};
  for (int i = 0; i < 2000; ++i) audio.samples.push_back(static_cast<float>(i % 77) / 100);
  WriteWav(directory / "a.wav", audio);
  return ReadFile(directory / "a.wav");
}

TEST(PcmStream, BareOrBehindAHead) {
  const Bytes wav = Wav(), pcm(wav.begin() + 44, wav.end());
  Bytes junk = wav, open = wav, more = wav;
  const std::string list("LIST\3\0\0\0abc\0", 12);
  junk.insert(junk.begin() + 12, list.begin(), list.end());
  more.insert(more.end(), list.begin(), list.end());  // behind the samples
  std::fill_n(open.begin() + 40, 4, 0xFF);
  for (const size_t piece : {1, 7, 1 << 20}) {
    PcmStream bare(From(pcm, piece), 8000);
    EXPECT_EQ(All(bare), pcm);
    for (const Bytes& file : {wav, junk, open, more}) {
      for (const int64_t rate : {0, 8000}) {
        PcmStream headed(From(file, piece), rate);
        EXPECT_EQ(headed.rate(), 8000);
        EXPECT_EQ(All(headed), pcm) << piece;
      }
    }
  }
  for (const size_t size : {0, 1, 3}) {
    const Bytes few(size, 'R');
    PcmStream stream(From(few, 9), 8000);
    EXPECT_EQ(All(stream), few);
  }
}

TEST(PcmStream, OtherFilesAreRefusedByTheirFirstBytes) {
  const auto message = [](Bytes bytes, int64_t rate = 8000) {
    return MessageOf([&] { PcmStream(From(std::move(bytes), 100), rate); });
  };
  EXPECT_THAT(message({'f', 'L', 'a', 'C', 0}),
              HasSubstr("must be PCM, but begins as a file of FLAC: give its name"));
  EXPECT_THAT(message({'O', 'g', 'g', 'S', 0}), HasSubstr("Ogg"));
  EXPECT_THAT(message({0, 1, 2, 3}, 0), HasSubstr("rate must be given (--rate)"));
  const Bytes wav = Wav();
  EXPECT_THAT(message(wav, 16000),
              HasSubstr("--rate must be the stream's, 8000 Hz by its WAV head, but is 16000"));
  EXPECT_THAT(message({wav.begin(), wav.begin() + 30}), HasSubstr("is cut"));
  EXPECT_THAT(message({wav.begin(), wav.begin() + 36}), HasSubstr("ends before them"));
  Bytes stereo = wav, floats = wav;
  stereo[22] = 2, floats[20] = 3, floats[34] = 32;
  EXPECT_THAT(message(stereo), HasSubstr("but is format 1 of 16 bits and 2 channels"));
  EXPECT_THAT(message(floats), HasSubstr("but is format 3 of 32 bits and 1 channels"));
}

}  // namespace
}  // namespace linattn
