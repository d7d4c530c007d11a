#include "data/speech_set.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "data/gzip.h"
#include "data/manifest.h"
#include "data/transcript.h"
#include "data/utf8.h"

namespace linattn {
namespace {

namespace fs = std::filesystem;

constexpr const char* kWhere = "speech";
constexpr const char* kPrompts = "/usr/share/asterisk/sounds/en_US_f_Allison";
constexpr const char* kPromptsText = "/usr/share/doc/asterisk-core-sounds-en/core-sounds-en.txt.gz";

// Lines "name: text" of those that have a file. Texts in brackets describe sounds.
std::vector<ManifestEntry> Prompts(const std::string& directory) {
  Check(fs::is_directory(directory) && fs::exists(kPromptsText), kWhere,
        "the prompts must be in {} and their texts in {}, but are not: install "
        "asterisk-core-sounds-en-wav and asterisk-core-sounds-en, or run scripts/setup",
        directory, kPromptsText);
  constexpr int64_t kMost = 1 << 24;
  const Bytes bytes = Unpack(ReadFile(kPromptsText, kWhere), kMost, kPromptsText).bytes;
  std::vector<ManifestEntry> list;
  for (std::string_view text = AsText(bytes); !text.empty();) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    const size_t colon = line.find(": ");
    if (line.starts_with(';') || colon == std::string_view::npos) continue;
    const std::string name(line.substr(0, colon)), path = directory + "/" + name + ".wav";
    const std::string said(line.substr(colon + 2));
    if (!fs::exists(path) || said.find('[') != std::string::npos) continue;
    list.push_back({name, path, said, ""});
  }
  return list;
}

std::vector<fs::path> Sorted(const fs::path& directory) {
  std::vector<fs::path> entries;
  for (const auto& entry : fs::directory_iterator(directory)) entries.push_back(entry.path());
  std::sort(entries.begin(), entries.end());
  return entries;
}

bool IsWav(const fs::path& path) {
  return (path.extension() == ".wav" || path.extension() == ".WAV") && !fs::is_directory(path);
}

std::vector<ManifestEntry> WavFolder(const std::string& directory) {
  Check(fs::is_directory(directory), kWhere, "'{}' must be a folder, but is not", directory);
  std::vector<ManifestEntry> list;
  for (const fs::path& path : Sorted(directory)) {
    const std::string name = path.filename().string();
    if (IsWav(path) && name.size() > 2 && name[0] >= '0' && name[0] <= '9' && name[1] == '_')
      list.push_back({name, path.string(), name.substr(0, 1), ""});
    if (!fs::is_directory(path)) continue;
    for (const fs::path& file : Sorted(path))
      if (IsWav(file))
        list.push_back({name + "/" + file.filename().string(), file.string(), name, ""});
  }
  Check(!list.empty(), kWhere, "{}: looked for WORD/*.wav and D_*.wav, found none", directory);
  return list;
}

std::vector<ManifestEntry> Recordings(const std::string& spec) {
  if (spec == "asterisk") return Prompts(kPrompts);
  if (spec.starts_with("asterisk:")) return Prompts(spec.substr(9));
  if (spec.starts_with("wav:")) return WavFolder(spec.substr(4));
  return ReadManifest(spec);
}

Split SplitOf(const ManifestEntry& recording) {
  if (!recording.split.empty()) return ParseSplit(recording.split);
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : recording.name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  const uint64_t place = hash % 10;
  return place == 0 ? Split::kTest : place == 1 ? Split::kValidation : Split::kTrain;
}

}  // namespace

std::string ErrorRateName(const std::string& unit_kind) {
  return unit_kind == "phonemes" ? "phoneme_error_rate" : "character_error_rate";
}

std::string ToString(const LeftOut& left_out) {
  const auto& [name, reason, detail] = left_out;
  return fmt::format("{}: {}{}{}", Printable(name), reason, detail.empty() ? "" : ": ", detail);
}

std::string CountReasons(std::span<const LeftOut> left_out) {
  if (left_out.empty()) return "";
  std::map<std::string, int64_t> counts;
  for (const LeftOut& one : left_out) ++counts[one.reason];
  std::vector<std::pair<int64_t, std::string>> reasons;
  for (const auto& [reason, count] : counts) reasons.emplace_back(-count, reason);
  std::sort(reasons.begin(), reasons.end());
  std::string list;
  for (const auto& [count, reason] : reasons)
    list += fmt::format("{}{} {}", list.empty() ? "" : ", ", -count, reason);
  return fmt::format("{} left out ({})", left_out.size(), list);
}

SpeechSet LoadSpeech(const SpeechSource& source) {
  std::optional<Pronunciations> dictionary;
  if (source.unit_kind == "phonemes") dictionary = Pronunciations::Read(source.dictionary);
  SpeechSet set;
  for (const ManifestEntry& recording : Recordings(source.spec)) {
    const auto leave_out = [&](const char* reason, const std::string& detail = "") {
      set.left_out.push_back({recording.name, reason, detail});
    };
    if (FirstNotUtf8(recording.text) != std::string::npos) {
      leave_out("text that is not UTF-8");
      continue;
    }
    const auto text = NormaliseTranscript(recording.text);
    if (!text || text->empty()) {
      leave_out(text ? "no words" : "a number that is not spelled out");
      continue;
    }
    std::string unknown;
    auto units =
        dictionary ? dictionary->Phonemes(*text, &unknown) : std::optional(Characters(*text));
    if (!units) {
      leave_out("a word that is not in the dictionary", Printable(unknown));
      continue;
    }
    set.utterances.push_back(
        {recording.name, recording.audio, std::move(*units), SplitOf(recording)});
  }
  Check(!set.utterances.empty(), kWhere, "{}: none of the {} recordings can be used{}{}",
        source.spec, set.left_out.size(), set.left_out.empty() ? "" : ": ",
        set.left_out.empty() ? "" : ToString(set.left_out.front()));
  std::stable_sort(set.utterances.begin(), set.utterances.end(),
                   [](const Utterance& a, const Utterance& b) { return a.name < b.name; });
  return set;
}

}  // namespace linattn
