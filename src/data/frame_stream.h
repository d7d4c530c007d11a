#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "data/audio.h"
#include "data/log_mel.h"
#include "data/resample.h"

namespace linattn {

// What a model of speech wants to read.
struct FrameOptions {
  int64_t rate = 8000;                  // Hz
  int64_t features = 40;                // log-mel energies a frame
  int64_t subsample = 1;                // frames a row
  std::vector<double> mean, deviation;  // [features] of the energies, or empty: 0 and 1
};

// From samples at any rate to the rows that a model reads: resampled, log-mel, less their mean over
// their deviation, `subsample` frames side by side. Rows come out as soon as they are full; memory
// is constant. The same rows, bit for bit, however the samples are cut into pieces.
class FrameStream {
 public:
  FrameStream(const FrameOptions& options, int64_t input_rate);

  int64_t row_width() const { return options_.features * options_.subsample; }
  int64_t frames() const { return frames_; }  // so far, of this stream

  void Push(std::span<const float> samples, std::vector<float>& rows);  // appends [n,row_width]
  // The stream's end: a row that is not full is filled up with zeros.
  void Finish(std::vector<float>& rows);

  // All that a continuation needs, as StateExtras (runtime/session_file.h) takes it. Restore throws
  // Error if it is not of the same rates and features.
  std::map<std::string, std::vector<float>> Save() const;
  void Restore(const std::map<std::string, std::vector<float>>& state);

 private:
  void Append(const std::vector<float>& samples, std::vector<float>& rows);
  void CheckState(bool condition) const;

  FrameOptions options_;
  int64_t input_rate_;
  Resampler resampler_;
  LogMel log_mel_;
  std::vector<float> resampled_, fresh_;  // scratch
  std::vector<float> row_;                // frames of a row that is not full
  int64_t frames_ = 0;
};

// Frames that `audio` makes.
int64_t CountFrames(const FrameOptions& options, const Audio& audio);

// All rows of `audio`; none if it is shorter than one window.
std::vector<float> RowsOf(const FrameOptions& options, const Audio& audio);

}  // namespace linattn
