#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace linattn {

struct ManifestEntry {
  std::string name;   // the audio's path as the manifest has it, less "./", "//" and "x/.."
  std::string audio;  // its path; ReadManifest starts from the manifest's folder
  std::string text;
  std::string split;  // "train", "validation", "test", or empty: not said
};

// A list of recordings, one a line, in UTF-8 (a byte order mark is skipped). JSON lines (the first
// character is {): keys audio, audio_filepath, file or path; text, transcript or sentence; split.
// TSV: these names in a first line, in any order among others (also "normalised" for the text);
// without such a line the fields are audio, text and perhaps split. Empty lines are skipped. Throws
// Error "[manifest] name, line N: ..." .
std::vector<ManifestEntry> ParseManifest(std::string_view text, const std::string& name);
std::vector<ManifestEntry> ReadManifest(const std::string& path);

}  // namespace linattn
