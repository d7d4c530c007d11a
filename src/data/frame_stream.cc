#include "data/frame_stream.h"

#include "base/error.h"

namespace linattn {

FrameStream::FrameStream(const FrameOptions& options, int64_t input_rate)
    : options_(options),
      input_rate_(input_rate),
      resampler_(input_rate, options.rate),
      log_mel_(options.rate, options.features) {
  const auto fits = [&](const std::vector<double>& values) {
    return values.empty() || std::ssize(values) == options.features;
  };
  Check(fits(options.mean) && fits(options.deviation), "audio",
        "means and deviations must be as many as features, {}, but are {} and {}", options.features,
        options.mean.size(), options.deviation.size());
}

void FrameStream::Push(std::span<const float> samples, std::vector<float>& rows) {
  resampled_.clear();
  resampler_.Push(samples, resampled_);
  Append(resampled_, rows);
}

void FrameStream::Finish(std::vector<float>& rows) {
  resampled_.clear();
  resampler_.Finish(resampled_);
  Append(resampled_, rows);
  log_mel_.Reset();
  if (row_.empty()) return;
  row_.resize(row_width(), 0.0f);
  rows.insert(rows.end(), row_.begin(), row_.end());
  row_.clear();
}

void FrameStream::Append(const std::vector<float>& samples, std::vector<float>& rows) {
  fresh_.clear();
  log_mel_.Push(samples, fresh_);
  const int64_t F = options_.features;
  frames_ += std::ssize(fresh_) / F;
  for (size_t i = 0; i < fresh_.size(); ++i) {
    const int64_t f = static_cast<int64_t>(i) % F;
    double x = fresh_[i];
    if (!options_.mean.empty()) x -= options_.mean[f];
    if (!options_.deviation.empty()) x /= options_.deviation[f];
    row_.push_back(static_cast<float>(x));
    if (std::ssize(row_) < row_width()) continue;
    rows.insert(rows.end(), row_.begin(), row_.end());
    row_.clear();
  }
}

std::map<std::string, std::vector<float>> FrameStream::Save() const {
  // Rates and counts as two numbers below 2^20, which floats hold exactly.
  constexpr int64_t kBase = 1 << 20;
  const auto pair = [](int64_t n) {
    return std::vector<float>{static_cast<float>(n / kBase), static_cast<float>(n % kBase)};
  };
  return {{"frames", pair(frames_)},
          {"input_rate", pair(input_rate_)},
          {"resampler", resampler_.Save()},
          {"samples", log_mel_.Save()},
          {"row", row_}};
}

void FrameStream::CheckState(bool condition) const {
  Check(condition, "audio",
        "a saved stream must be of {} Hz and {} features, {} a row, like this one, but is not",
        input_rate_, options_.features, options_.subsample);
}

void FrameStream::Restore(const std::map<std::string, std::vector<float>>& state) {
  constexpr int64_t kBase = 1 << 20;
  const auto get = [&](const char* key) -> const std::vector<float>& {
    const auto found = state.find(key);
    CheckState(found != state.end());
    return found->second;
  };
  const auto number = [&](const char* key) {
    const std::vector<float>& pair = get(key);
    CheckState(pair.size() == 2 && pair[0] >= 0 && pair[1] >= 0 && pair[0] < 1e12f);
    return static_cast<int64_t>(pair[0]) * kBase + static_cast<int64_t>(pair[1]);
  };
  CheckState(number("input_rate") == input_rate_);
  const std::vector<float>& row = get("row");
  CheckState(std::ssize(row) < row_width() && std::ssize(row) % options_.features == 0);
  resampler_.Restore(get("resampler"));
  log_mel_.Restore(get("samples"));
  row_ = row;
  frames_ = number("frames");
}

int64_t CountFrames(const FrameOptions& options, const Audio& audio) {
  const int64_t samples = (std::ssize(audio.samples) * options.rate + audio.rate - 1) / audio.rate;
  return LogMel(options.rate, options.features).Frames(samples);
}

std::vector<float> RowsOf(const FrameOptions& options, const Audio& audio) {
  FrameStream stream(options, audio.rate);
  std::vector<float> rows;
  stream.Push(audio.samples, rows);
  stream.Finish(rows);
  return rows;
}

}  // namespace linattn
