#include "data/manifest.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "data/utf8.h"

namespace linattn {
namespace {

constexpr const char* kWhere = "manifest";

constexpr const char* kBlanks = " \t";

enum Field { kAudio, kText, kSplit, kFields, kOther };

Field FieldNamed(std::string_view name) {
  constexpr std::pair<std::string_view, Field> kNames[] = {
      {"audio", kAudio}, {"audio_filepath", kAudio}, {"file", kAudio},    {"path", kAudio},
      {"text", kText},   {"transcript", kText},      {"sentence", kText}, {"normalised", kText},
      {"split", kSplit}};
  for (const auto& [known, field] : kNames)
    if (name == known) return field;
  return kOther;
}

struct Line {
  std::string_view text;
  int64_t number = 0;
};

// Lines that are not empty, without their ends.
std::vector<Line> LinesOf(std::string_view text) {
  std::vector<Line> lines;
  for (int64_t number = 1; !text.empty(); ++number) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.find_first_not_of(kBlanks) != std::string_view::npos) lines.push_back({line, number});
  }
  return lines;
}

std::vector<std::string_view> Split(std::string_view line) {
  std::vector<std::string_view> fields;
  while (true) {
    const size_t tab = line.find('\t');
    fields.push_back(line.substr(0, tab));
    if (tab == std::string_view::npos) return fields;
    line.remove_prefix(tab + 1);
  }
}

void Finish(ManifestEntry entry, const std::string& at, std::vector<ManifestEntry>& entries) {
  Check(!entry.audio.empty() && entry.audio.find('\0') == std::string::npos, kWhere,
        "{}: the audio's path must not be empty or hold a zero byte", at);
  Check(entry.split.empty() || entry.split == "train" || entry.split == "validation" ||
            entry.split == "test",
        kWhere, "{}: the split must be train, validation or test, but is '{}'", at,
        Printable(entry.split));
  entry.name = std::filesystem::path(entry.audio).lexically_normal().string();
  entries.push_back(std::move(entry));
}

void Put(Field field, std::string value, ManifestEntry& entry) {
  if (field == kAudio) entry.audio = std::move(value);
  if (field == kText) entry.text = std::move(value);
  if (field == kSplit) entry.split = std::move(value);
}

ManifestEntry FromJson(std::string_view line, const std::string& at) {
  const nlohmann::json json = ParseJson(line, kWhere, at);
  Check(json.is_object(), kWhere, "{}: must be a JSON object", at);
  ManifestEntry entry;
  bool seen[kFields] = {};
  for (const auto& [key, value] : json.items()) {
    const Field field = FieldNamed(key);
    if (field == kOther) continue;
    Check(value.is_string(), kWhere, "{}: '{}' must be a string", at, key);
    Check(!std::exchange(seen[field], true), kWhere, "{}: '{}' says again what another key says",
          at, key);
    Put(field, value.get<std::string>(), entry);
  }
  Check(seen[kAudio] && seen[kText], kWhere, "{}: must have 'audio' and 'text', but lacks '{}'", at,
        seen[kAudio] ? "text" : "audio");
  return entry;
}

// Without a byte order mark.
std::string_view Utf8Text(std::string_view text, const std::string& name) {
  const bool utf16 = text.starts_with("\xFF\xFE") || text.starts_with("\xFE\xFF");
  Check(!utf16, kWhere, "{}: must be UTF-8, but is UTF-16 (iconv -f UTF-16 -t UTF-8 converts it)",
        name);
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
  const size_t at = FirstNotUtf8(text);
  if (at == std::string_view::npos) return text;
  Fail(
      kWhere,
      "{}, line {}: must be UTF-8, but has the byte 0x{:02X} (if it is of Latin-1, iconv -f LATIN1 "
      "-t UTF-8 converts it)",
      name, 1 + std::count(text.begin(), text.begin() + static_cast<int64_t>(at), '\n'),
      static_cast<unsigned char>(text[at]));
}

// What the columns are, and whether a first line has said so.
std::pair<std::vector<Field>, bool> Columns(std::string_view first, const std::string& at) {
  std::vector<Field> columns;
  for (const std::string_view name : Split(first)) columns.push_back(FieldNamed(name));
  const auto count = [&](Field f) { return std::count(columns.begin(), columns.end(), f); };
  if (count(kAudio) == 0 || count(kText) == 0) return {{kAudio, kText, kSplit}, false};
  Check(count(kAudio) == 1 && count(kText) == 1 && count(kSplit) <= 1, kWhere,
        "{}: every column must be named once, but one is there twice", at);
  return {columns, true};
}

}  // namespace

std::vector<ManifestEntry> ParseManifest(std::string_view text, const std::string& name) {
  const std::vector<Line> lines = LinesOf(Utf8Text(text, name));
  Check(!lines.empty(), kWhere, "{}: must list at least one recording, but is empty", name);
  const auto at = [&](const Line& line) { return fmt::format("{}, line {}", name, line.number); };
  std::vector<ManifestEntry> entries;
  const std::string_view first = lines.front().text;
  if (first[first.find_first_not_of(kBlanks)] == '{') {
    for (const Line& line : lines) Finish(FromJson(line.text, at(line)), at(line), entries);
    return entries;
  }
  const auto [columns, named] = Columns(first, at(lines.front()));
  for (size_t i = named ? 1 : 0; i < lines.size(); ++i) {
    const auto fields = Split(lines[i].text);
    const bool right =
        named ? fields.size() == columns.size() : fields.size() == 2 || fields.size() == 3;
    Check(right, kWhere, "{}: must have {} fields with tabs between them, but has {}", at(lines[i]),
          named ? fmt::to_string(columns.size()) : "2 or 3", fields.size());
    ManifestEntry entry;
    for (size_t f = 0; f < fields.size(); ++f) Put(columns[f], std::string(fields[f]), entry);
    Finish(std::move(entry), at(lines[i]), entries);
  }
  return entries;
}

std::vector<ManifestEntry> ReadManifest(const std::string& path) {
  std::vector<ManifestEntry> entries = ParseManifest(AsText(ReadFile(path, kWhere)), path);
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  for (ManifestEntry& entry : entries) entry.audio = (folder / entry.audio).string();
  return entries;
}

}  // namespace linattn
