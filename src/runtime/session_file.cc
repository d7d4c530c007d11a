#include "runtime/session_file.h"

#include <fmt/format.h>

#include <charconv>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/safetensors.h"
#include "runtime/digest.h"

namespace linattn {
namespace {

constexpr const char* kWhere = "state";
constexpr const char* kFormat = "linattn.state";
constexpr const char* kVersion = "2";
constexpr std::string_view kNote = "note.", kExtra = "extra.";

std::string Hex(uint64_t x) { return fmt::format("{:016x}", x); }

uint64_t DigestText(uint64_t h, const std::string& text) {
  return Digest(h, text.data(), text.size());
}

uint64_t Checksum(std::span<const float> state, std::span<const float> outputs, int64_t tokens,
                  const StateExtras& extras) {
  uint64_t h = Digest(0, state.data(), state.size_bytes());
  h = Digest(h, outputs.data(), outputs.size_bytes());
  h = Digest(h, &tokens, sizeof tokens);
  for (const auto& [key, note] : extras.notes) h = DigestText(DigestText(h, key), note);
  for (const auto& [key, values] : extras.tensors) {
    h = Digest(DigestText(h, key), values.data(), values.size() * sizeof(float));
  }
  return h;
}

std::string Metadata(const SafetensorsFile& file, const std::string& key) {
  const auto found = file.metadata().find(key);
  Check(found != file.metadata().end(), kWhere,
        "{}: metadata must hold '{}', but has no such key: not a state file", file.path(), key);
  return found->second;
}

int64_t Count(const SafetensorsFile& file, const std::string& key) {
  const std::string text = Metadata(file, key);
  int64_t value = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  Check(result.ec == std::errc() && result.ptr == text.data() + text.size() && value >= 0, kWhere,
        "{}: '{}' must be a number, but is '{}'", file.path(), key, Printable(text));
  return value;
}

StateExtras ExtrasOf(const SafetensorsFile& file) {
  StateExtras extras;
  for (const auto& [key, note] : file.metadata()) {
    if (key.starts_with(kNote)) extras.notes[key.substr(kNote.size())] = note;
  }
  for (const auto& [key, tensor] : file.tensors()) {
    if (key.starts_with(kExtra)) extras.tensors[key.substr(kExtra.size())] = file.Floats(key);
  }
  return extras;
}

}  // namespace

void SaveState(const Session& session, int64_t slot, const std::string& path,
               const StateExtras& extras) {
  const std::span<const float> state = session.state(slot), outputs = session.outputs(slot);
  const int64_t tokens = session.length(slot);
  const auto store = [](std::string name, std::span<const float> values) {
    return ToStore(std::move(name), {static_cast<int64_t>(values.size())}, values);
  };
  std::vector<NamedTensor> tensors = {store("state", state), store("outputs", outputs)};
  for (const auto& [key, values] : extras.tensors) {
    tensors.push_back(store(std::string(kExtra) + key, values));
  }
  std::map<std::string, std::string> metadata = {
      {kFormat, kVersion},
      {"model", Hex(session.model().fingerprint())},
      {"tokens", fmt::format("{:019}", tokens)},  // as long whatever the number
      {"capacity", std::to_string(session.capacity())},
      {"checksum", Hex(Checksum(state, outputs, tokens, extras))}};
  for (const auto& [key, note] : extras.notes) metadata[std::string(kNote) + key] = note;
  WriteSafetensors(path, tensors, metadata);
}

StateExtras LoadState(Session& session, int64_t slot, const std::string& path) {
  const SafetensorsFile file = SafetensorsFile::Open(path, kWhere);
  const std::string version = Metadata(file, kFormat);
  Check(version == kVersion, kWhere, "{}: the format must be version {}, but is '{}'", path,
        kVersion, Printable(version));
  const std::string model = Metadata(file, "model"), own = Hex(session.model().fingerprint());
  Check(model == own, kWhere, "{}: must be a state of this model, {}, but is of model {}", path,
        own, Printable(model));
  const int64_t tokens = Count(file, "tokens");
  const std::vector<float> state = file.Floats("state"), outputs = file.Floats("outputs");
  Check(static_cast<int64_t>(state.size()) == session.state_floats(), kWhere,
        "{}: must hold {} state floats for a capacity of {} tokens, but holds {} for {}", path,
        session.state_floats(), session.capacity(), state.size(), Count(file, "capacity"));
  StateExtras extras = ExtrasOf(file);
  const std::string sum = Hex(Checksum(state, outputs, tokens, extras));
  Check(sum == Metadata(file, "checksum"), kWhere,
        "{}: the checksum of state, extras and token count must be {}, but is {}: the file is "
        "damaged",
        path, Printable(Metadata(file, "checksum")), sum);
  Check(tokens <= session.capacity(), kWhere,
        "{}: must hold at most {} tokens, this session's capacity, but holds {}", path,
        session.capacity(), tokens);
  session.Restore(slot, state, outputs, tokens);
  return extras;
}

}  // namespace linattn
