#include "cli/transcriber.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "cli/console.h"
#include "model/layer.h"
#include "runtime/session_file.h"

namespace linattn::cli {
namespace {

const ModelConfig& CheckSpeech(const PackedModel& model) {
  const ModelConfig& c = model.config();
  Check(!c.units.empty(), "transcribe",
        "the model must say what its outputs stand for, but does not");
  return c;
}

void CheckFinite(std::span<const float> outputs, int64_t width, int64_t first,
                 const std::string& name) {
  const auto bad = std::ranges::find_if(outputs, [](float x) { return !std::isfinite(x); });
  if (bad == outputs.end()) return;
  Fail("transcribe", "{}: the model's outputs must be finite, but hold {} in row {}", name, *bad,
       first + (bad - outputs.begin()) / width);
}

// One row a step: what is heard does not depend on how much came at once.
std::vector<int32_t> Hear(std::span<const float> rows, Session& session, CtcGreedy& greedy,
                          const std::string& name) {
  constexpr int64_t kSlot[] = {0};
  const int64_t width = session.model().config().row_width();
  std::vector<int32_t> labels;
  for (; !rows.empty(); rows = rows.subspan(width)) {
    session.StepFrames(kSlot, rows.first(width));
    const std::span<const float> outputs = session.outputs(0);
    CheckFinite(outputs, std::ssize(outputs), session.length(0) - 1, name);
    const int32_t label = greedy.Push(outputs);
    if (label >= 0) labels.push_back(label);
  }
  return labels;
}

}  // namespace

FrameOptions FramesOf(const ModelConfig& c) {
  return {c.sample_rate, c.input_features, c.subsample, c.input_mean, c.input_deviation};
}

std::string Spell(const ModelConfig& c, std::span<const int32_t> labels) {
  std::string text;
  for (const int32_t label : labels) {
    if (c.unit_kind == "phonemes" && !text.empty()) text += ' ';
    text += c.units[label];
  }
  return text;
}

FileTranscriber::FileTranscriber(const PackedModel& model) : model_(model), pass_(model) {
  CheckSpeech(model);
}

int64_t FileTranscriber::LongestFile(int64_t beam) const {
  const ModelConfig& c = model_.config();
  return c.causal && beam == 0 ? LongestSequence(c) : c.max_len;
}

std::vector<int32_t> FileTranscriber::HearAsStream(std::span<const float> rows,
                                                   const std::string& name) const {
  Session session(model_, 1);
  CtcGreedy greedy(model_.config().blank);
  const int64_t block = model_.config().row_width() * 256;
  std::vector<int32_t> labels;
  while (!rows.empty()) {
    ThrowIfInterrupted();
    const auto some = rows.first(std::min(block, std::ssize(rows)));
    for (const int32_t label : Hear(some, session, greedy, name)) labels.push_back(label);
    rows = rows.subspan(some.size());
  }
  return labels;
}

Transcript FileTranscriber::Run(const Audio& audio, const std::string& name, int64_t beam) {
  const ModelConfig& c = model_.config();
  const std::vector<float> rows = RowsOf(FramesOf(c), audio);
  Check(!rows.empty(), "audio",
        "{}: must be at least one window of 25 ms long, {} samples at {} Hz, but has {} at {} Hz{}",
        name, LogMel(c.sample_rate, c.input_features).window(), c.sample_rate, audio.samples.size(),
        audio.rate, audio.cut ? " and is cut" : "");
  const int64_t n = std::ssize(rows) / c.row_width(), longest = LongestFile(beam);
  Check(n <= longest, "transcribe",
        "{}: must make at most {} rows, the model's maximum ({:.0f} s), but makes {}: {}", name,
        longest, static_cast<double>(longest * c.subsample) / 100, n,
        n <= LongestFile(0) ? "leave out --beam, and it is read as a stream"
                            : "cut it at pauses, or take a causal model without positions, such as "
                              "configs/speech-causal.toml trains");
  if (n > c.max_len) return {HearAsStream(rows, name), 0};
  const std::span<const float> logits = pass_.RunFrames(rows, 1);
  CheckFinite(logits, c.vocab, 0, name);
  if (beam == 0) return {CtcGreedyLabels(logits, c.vocab, c.blank), 0};
  CtcHypothesis best = std::move(CtcBeam(logits, c.vocab, c.blank, beam).front());
  return {std::move(best.labels), best.log_probability};
}

StreamTranscriber::StreamTranscriber(const PackedModel& model, int64_t rate)
    : model_(model),
      frames_(FramesOf(CheckSpeech(model)), rate),
      session_(model, 1),
      greedy_(model.config().blank) {}

std::string StreamTranscriber::Push(std::span<const uint8_t> pcm) {
  samples_.clear(), rows_.clear();
  if (!half_.empty() && !pcm.empty()) {
    const uint8_t sample[] = {half_.front(), pcm.front()};
    AppendPcm16(sample, samples_);
    half_.clear();
    pcm = pcm.subspan(1);
  }
  const size_t whole = pcm.size() / 2 * 2;
  AppendPcm16(pcm.first(whole), samples_);
  if (whole < pcm.size()) half_ = {pcm.back()};
  frames_.Push(samples_, rows_);
  return Read(rows_);
}

std::string StreamTranscriber::Finish() {
  rows_.clear();
  frames_.Finish(rows_);
  return Read(rows_);
}

std::string StreamTranscriber::Read(std::span<const float> rows) {
  const ModelConfig& c = model_.config();
  const std::string text = Spell(c, Hear(rows, session_, greedy_, "the stream"));
  const bool again = std::exchange(any_, any_ || !text.empty());
  return again && !text.empty() && c.unit_kind == "phonemes" ? " " + text : text;
}

void StreamTranscriber::Save(const std::string& path) const {
  StateExtras extras;
  for (auto& [key, values] : frames_.Save()) extras.tensors["audio." + key] = values;
  extras.tensors["ctc"] = {static_cast<float>(greedy_.last()), any_ ? 1.0f : 0.0f};
  if (!half_.empty()) extras.tensors["half_sample"] = {static_cast<float>(half_.front())};
  SaveState(session_, 0, path, extras);
}

void StreamTranscriber::Load(const std::string& path) {
  const StateExtras extras = LoadState(session_, 0, path);
  std::map<std::string, std::vector<float>> audio;
  for (const auto& [key, values] : extras.tensors)
    if (key.starts_with("audio.")) audio[key.substr(6)] = values;
  const auto ctc = extras.tensors.find("ctc");
  const auto vocab = static_cast<float>(model_.config().vocab);
  Check(ctc != extras.tensors.end() && ctc->second.size() == 2 && ctc->second[0] >= 0 &&
            ctc->second[0] < vocab,
        "state", "{}: must be the state of a stream of speech, but is not", path);
  half_.clear();
  if (const auto half = extras.tensors.find("half_sample"); half != extras.tensors.end()) {
    const std::vector<float>& byte = half->second;
    Check(byte.size() == 1 && byte[0] >= 0 && byte[0] < 256, "state",
          "{}: half a sample must be one byte, but is not", path);
    half_ = {static_cast<uint8_t>(byte[0])};
  }
  frames_.Restore(audio);
  greedy_.Restore(static_cast<int32_t>(ctc->second[0]));
  any_ = ctc->second[1] != 0;
}

}  // namespace linattn::cli
