#include "runtime/continuation.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "base/error.h"
#include "base/file.h"
#include "model/layer.h"
#include "runtime/digest.h"
#include "runtime/session_file.h"

namespace linattn {
namespace {

constexpr const char* kSymbols = "symbols";  // the note with their digest
constexpr const char* kRun = "run";          // the note with how many of the last are a run
constexpr const char* kRecent = "recent";    // the tensor with the last of them, oldest first

std::string Hex(uint64_t x) { return fmt::format("{:016x}", x); }

// The number that a note holds.
template <class T>
T Noted(const StateExtras& extras, const char* key, int base, const std::string& path) {
  const auto found = extras.notes.find(key);
  Check(found != extras.notes.end(), "state", "{} must be of a text, but is not", path);
  const std::string& text = found->second;
  T value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  Check(error == std::errc() && end == text.data() + text.size(), "state",
        "{}: note '{}' must be a number, but is '{}'", path, key, Printable(text));
  return value;
}

}  // namespace

Continuation::Continuation(const PackedModel& model, const ContinuationOptions& options)
    : model_(model),
      options_(options),
      session_(model, 1),
      sample_(model.config(), options.sampler),
      random_(options.seed),
      kept_(std::max({int64_t{1}, options.kept, options.repetition_window})) {
  const ModelConfig& c = model.config();
  Check(c.head == "categorical", "generate", "the model's head must be categorical, but is {}",
        c.head);
  Check(options.label >= 0 && options.label < std::max<int64_t>(1, c.classes), "generate",
        "the class must be from 0 to {}, but is {}", std::max<int64_t>(1, c.classes) - 1,
        options.label);
  Check(options.repetition_window >= 0 && options.repetition_window <= (1 << 20), "generate",
        "the repetition window must be from 0 to {} symbols, but is {}", 1 << 20,
        options.repetition_window);
  PenaliseRepetition({}, options.repetition_penalty, {}, {});  // refuses a bad one before the work
  outputs_.resize(c.outputs());
  recent_.reserve(2 * kept_);
  Reset();
}

int64_t Continuation::state_bytes() const {
  return session_.state_floats() * static_cast<int64_t>(sizeof(float));
}

uint64_t Continuation::Extended(uint64_t digest, std::span<const int32_t> symbols) {
  for (const int32_t& symbol : symbols) digest = Digest(digest, &symbol, sizeof symbol);
  return digest;
}

uint64_t Continuation::empty_digest() const {
  const auto start = static_cast<int32_t>(model_.config().start_token(options_.label));
  return Extended(0, {&start, 1});
}

void Continuation::Reset() {
  session_.Reset(0);
  length_ = 0, run_ = 0, drawn_ = -1;
  digest_ = empty_digest();
  recent_.clear();
}

std::span<const int32_t> Continuation::Last(int64_t n) const {
  return std::span(recent_).last(std::min({n, kept_, std::ssize(recent_)}));
}

void Continuation::Note(int32_t symbol) {
  if (std::ssize(recent_) == 2 * kept_) recent_.erase(recent_.begin(), recent_.begin() + kept_);
  recent_.push_back(symbol);
  digest_ = Extended(digest_, {&symbol, 1});
  ++length_;
}

void Continuation::Settle() {
  if (session_.length(0) == 0) {
    const auto start = static_cast<int32_t>(model_.config().start_token(options_.label));
    session_.Prefill(0, {&start, 1});
    ++evaluated_;
  }
  if (drawn_ < 0) return;
  const int64_t slot = 0;
  session_.Step({&slot, 1}, {&drawn_, 1});
  drawn_ = -1;
  ++evaluated_;
}

void Continuation::Read(std::span<const int32_t> symbols) {
  if (symbols.empty()) return;
  std::vector<int32_t> tokens;  // the start token with the prompt: one prefill
  if (session_.length(0) == 0) {
    tokens.push_back(static_cast<int32_t>(model_.config().start_token(options_.label)));
  }
  if (drawn_ >= 0) tokens.push_back(drawn_);
  tokens.insert(tokens.end(), symbols.begin(), symbols.end());
  session_.Prefill(0, tokens);
  drawn_ = -1;
  evaluated_ += std::ssize(tokens);
  for (const int32_t symbol : symbols) Note(symbol);
  EndRun();
}

int32_t Continuation::Next() {
  Settle();
  std::span<const float> outputs = session_.outputs(0);
  CheckOutputs(outputs, length_, 0);
  if (options_.repetition_penalty != 1) {
    PenaliseRepetition(Last(options_.repetition_window), options_.repetition_penalty, outputs,
                       outputs_);
    outputs = outputs_;
  }
  drawn_ = sample_(outputs, length_, random_);
  Note(drawn_);
  ++run_;
  return drawn_;
}

void Continuation::Save(const std::string& path) {
  Settle();
  StateExtras extras;
  extras.notes[kSymbols] = Hex(digest_);
  extras.notes[kRun] = fmt::format("{:019}", run_);
  const std::span<const int32_t> last = Last(kept_);
  std::vector<float>& recent = extras.tensors[kRecent];  // ids are below 2^24: exact
  recent.assign(kept_ - std::ssize(last), -1);
  recent.insert(recent.end(), last.begin(), last.end());
  SaveState(session_, 0, path, extras);
}

void Continuation::Load(const std::string& path) {
  Session loaded(model_, 1);
  const StateExtras extras = LoadState(loaded, 0, path);
  const auto digest = Noted<uint64_t>(extras, kSymbols, 16, path);
  const auto run = Noted<int64_t>(extras, kRun, 10, path);
  const auto recent = extras.tensors.find(kRecent);
  Check(recent != extras.tensors.end() && loaded.length(0) > 0, "state",
        "{} must be of a text, but is not", path);
  for (const float symbol : recent->second) {
    Check(symbol >= -1 && symbol < static_cast<float>(model_.config().vocab), "state",
          "{}: recent symbols must be from -1 to {}, but one is {}", path,
          model_.config().vocab - 1, symbol);
  }
  Reset();
  session_.Restore(0, loaded.state(0), loaded.outputs(0), loaded.length(0));
  length_ = session_.length(0) - 1;  // without the start token
  digest_ = digest, run_ = std::clamp<int64_t>(run, 0, length_);
  const std::span<const float> last = recent->second;
  for (const float symbol : last.last(std::min(kept_, std::ssize(last)))) {
    if (symbol >= 0) recent_.push_back(static_cast<int32_t>(symbol));
  }
}

}  // namespace linattn
