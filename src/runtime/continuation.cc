#include "runtime/continuation.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "base/error.h"
#include "model/layer.h"
#include "runtime/digest.h"
#include "runtime/session_file.h"

namespace linattn {
namespace {

constexpr const char* kSymbols = "symbols";  // the note with their digest
constexpr const char* kRecent = "recent";    // the tensor with the last of them, oldest first

std::string Hex(uint64_t x) { return fmt::format("{:016x}", x); }

}  // namespace

Continuation::Continuation(const PackedModel& model, const ContinuationOptions& options)
    : model_(model),
      options_(options),
      session_(model, 1),
      sample_(model.config(), options.sampler),
      random_(options.seed) {
  const ModelConfig& c = model.config();
  Check(c.head == "categorical", "generate", "the model's head must be categorical, but is {}",
        c.head);
  Check(options.label >= 0 && options.label < std::max<int64_t>(1, c.classes), "generate",
        "the class must be from 0 to {}, but is {}", std::max<int64_t>(1, c.classes) - 1,
        options.label);
  Check(options.repetition_window >= 0 && options.repetition_window <= (1 << 20), "generate",
        "the repetition window must be from 0 to {} symbols, but is {}", 1 << 20,
        options.repetition_window);
  PenaliseRepetition({}, options.repetition_penalty, {});  // refuses a bad penalty before the work
  outputs_.resize(c.outputs());
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
  length_ = 0, drawn_ = -1;
  digest_ = empty_digest();
  recent_.assign(options_.repetition_window, -1);
}

void Continuation::Note(int32_t symbol) {
  if (!recent_.empty()) recent_[length_ % std::ssize(recent_)] = symbol;
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
}

int32_t Continuation::Next() {
  Settle();
  std::span<const float> outputs = session_.outputs(0);
  CheckOutputs(outputs, length_, 0);
  if (options_.repetition_penalty != 1) {
    std::copy(outputs.begin(), outputs.end(), outputs_.begin());
    PenaliseRepetition(recent_, options_.repetition_penalty, outputs_);
    outputs = outputs_;
  }
  drawn_ = sample_(outputs, length_, random_);
  Note(drawn_);
  return drawn_;
}

void Continuation::Save(const std::string& path) {
  Settle();
  StateExtras extras;
  extras.notes[kSymbols] = Hex(digest_);
  std::vector<float>& recent = extras.tensors[kRecent];  // ids are below 2^24: exact
  for (size_t i = 0; i < recent_.size(); ++i) {
    recent.push_back(static_cast<float>(recent_[(length_ + i) % recent_.size()]));
  }
  SaveState(session_, 0, path, extras);
}

void Continuation::Load(const std::string& path) {
  Session loaded(model_, 1);
  const StateExtras extras = LoadState(loaded, 0, path);
  const auto digest = extras.notes.find(kSymbols);
  const auto recent = extras.tensors.find(kRecent);
  Check(digest != extras.notes.end() && recent != extras.tensors.end() && loaded.length(0) > 0,
        "state", "{} must be of a text, but is not", path);
  for (const float symbol : recent->second) {
    Check(symbol >= -1 && symbol < static_cast<float>(model_.config().vocab), "state",
          "{}: recent symbols must be from -1 to {}, but one is {}", path,
          model_.config().vocab - 1, symbol);
  }
  Reset();
  session_.Restore(0, loaded.state(0), loaded.outputs(0), loaded.length(0));
  length_ = session_.length(0) - 1;  // without the start token
  const std::string& hex = digest->second;
  std::from_chars(hex.data(), hex.data() + hex.size(), digest_, 16);
  const int64_t window = std::ssize(recent_), kept = std::ssize(recent->second);
  for (int64_t i = 1; i <= std::min({kept, window, length_}); ++i) {
    recent_[(length_ - i) % window] = static_cast<int32_t>(recent->second[kept - i]);
  }
}

}  // namespace linattn
