#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/frame_stream.h"
#include "kernels/ctc_decode.h"
#include "runtime/full_pass.h"
#include "runtime/session.h"

namespace linattn::cli {

// How a model of speech wants its audio.
FrameOptions FramesOf(const ModelConfig& config);

// Labels as text: characters one after the other, phonemes with spaces between them.
std::string Spell(const ModelConfig& config, std::span<const int32_t> labels);

struct Transcript {
  std::vector<int32_t> labels;
  double log_probability = 0;  // ln, of the kept alignments; 0 with width 0
};

// Whole recordings. The model must outlive it.
class FileTranscriber {
 public:
  explicit FileTranscriber(const PackedModel& model);

  // beam: width, 0: greedy. Throws Error if the audio is shorter than a window or longer than the
  // model can read, or the outputs are not finite.
  Transcript Run(const Audio& audio, const std::string& name, int64_t beam);
  // The most rows that it reads: the model's maximum, or kEndless (model/layer.h) greedily with a
  // model that may go on for ever.
  int64_t LongestFile(int64_t beam) const;

 private:
  std::vector<int32_t> HearAsStream(std::span<const float> rows, const std::string& name) const;

  const PackedModel& model_;
  FullPass pass_;
};

// A stream of 16-bit little-endian PCM, as it comes: constant memory, and the same text however it
// is cut into pieces. Greedy. Throws Error if the outputs are not finite.
class StreamTranscriber {
 public:
  StreamTranscriber(const PackedModel& model, int64_t rate);  // rate: of the samples, Hz

  // What these bytes add to the text. Half a sample waits for its other half.
  std::string Push(std::span<const uint8_t> pcm);
  std::string Finish();  // the end of the stream

  // All that goes on with later samples, to a file and back (runtime/session_file.h).
  void Save(const std::string& path) const;
  void Load(const std::string& path);

 private:
  std::string Read(std::span<const float> rows);

  const PackedModel& model_;
  FrameStream frames_;
  Session session_;
  CtcGreedy greedy_;
  bool any_ = false;           // whether the text has begun
  std::vector<uint8_t> half_;  // of a sample: one byte, or none
  std::vector<float> samples_, rows_;
};

}  // namespace linattn::cli
