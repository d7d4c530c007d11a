#include "cli/transcriber.h"

#include "base/error.h"
#include "runtime/session_file.h"

namespace linattn::cli {
namespace {

const ModelConfig& CheckSpeech(const PackedModel& model) {
  const ModelConfig& c = model.config();
  Check(c.task == "speech", "transcribe", "the model must be of speech, but is of {}", c.task);
  Check(!c.units.empty(), "transcribe",
        "the model must say what its outputs stand for, but does not");
  return c;
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

Transcript FileTranscriber::Run(const Audio& audio, const std::string& name, int64_t beam) {
  const ModelConfig& c = CheckSpeech(model_);
  const std::vector<float> rows = RowsOf(FramesOf(c), audio, name);
  const int64_t n = std::ssize(rows) / c.row_width();
  Check(n <= c.max_len, "transcribe",
        "{}: must make at most {} rows, the model's maximum ({:.0f} s), but makes {}", name,
        c.max_len, static_cast<double>(c.max_len * c.subsample) / 100, n);
  const std::span<const float> logits = pass_.RunFrames(rows, 1);
  if (beam == 0) return {Spell(c, CtcGreedyLabels(logits, c.vocab, c.blank)), 0};
  const CtcHypothesis best = CtcBeam(logits, c.vocab, c.blank, beam).front();
  return {Spell(c, best.labels), best.log_probability};
}

StreamTranscriber::StreamTranscriber(const PackedModel& model, int64_t rate)
    : model_(model),
      frames_(FramesOf(CheckSpeech(model)), rate),
      session_(model, 1),
      greedy_(model.config().blank) {}

std::string StreamTranscriber::Push(std::span<const float> samples) {
  rows_.clear();
  frames_.Push(samples, rows_);
  return Read(rows_);
}

std::string StreamTranscriber::Finish() {
  rows_.clear();
  frames_.Finish(rows_);
  return Read(rows_);
}

// One row a step: what is heard does not depend on how much came at once.
std::string StreamTranscriber::Read(std::span<const float> rows) {
  const ModelConfig& c = model_.config();
  constexpr int64_t kSlot[] = {0};
  std::string text;
  for (; !rows.empty(); rows = rows.subspan(c.row_width())) {
    session_.StepFrames(kSlot, rows.first(c.row_width()));
    const int32_t label = greedy_.Push(session_.outputs(0));
    if (label < 0) continue;
    if (c.unit_kind == "phonemes" && any_) text += ' ';
    any_ = true;
    text += c.units[label];
  }
  return text;
}

void StreamTranscriber::Save(const std::string& path) const {
  StateExtras extras;
  for (auto& [key, values] : frames_.Save()) extras.tensors["audio." + key] = values;
  extras.tensors["ctc"] = {static_cast<float>(greedy_.last()), any_ ? 1.0f : 0.0f};
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
  frames_.Restore(audio);
  greedy_.Restore(static_cast<int32_t>(ctc->second[0]));
  any_ = ctc->second[1] != 0;
}

}  // namespace linattn::cli
