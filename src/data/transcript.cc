#include "data/transcript.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <utility>

#include "base/error.h"
#include "base/file.h"

namespace linattn {
namespace {

bool IsLetter(char c) {
  return static_cast<unsigned char>(c) >= 128 || std::isalpha(static_cast<unsigned char>(c));
}
bool IsDigit(char c) { return c >= '0' && c <= '9'; }

std::string Spelled(int number) {  // below 100
  constexpr const char* kSmall[] = {"zero",    "one",     "two",       "three",    "four",
                                    "five",    "six",     "seven",     "eight",    "nine",
                                    "ten",     "eleven",  "twelve",    "thirteen", "fourteen",
                                    "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"};
  constexpr const char* kTens[] = {"",      "",      "twenty",  "thirty", "forty",
                                   "fifty", "sixty", "seventy", "eighty", "ninety"};
  if (number < 20) return kSmall[number];
  const std::string tens = kTens[number / 10];
  return number % 10 == 0 ? tens : tens + " " + kSmall[number % 10];
}

// A run of letters, digits and apostrophes, in lower case.
std::optional<std::string> NormaliseWord(std::string word) {
  while (word.starts_with('\'')) word.erase(0, 1);
  while (word.ends_with('\'')) word.pop_back();
  const auto digits = std::count_if(word.begin(), word.end(), IsDigit);
  if (digits == 0) return word;
  if (digits != std::ssize(word) || digits > 2) return std::nullopt;
  return Spelled(std::stoi(word));
}

std::vector<std::string_view> Words(std::string_view text) {
  std::vector<std::string_view> words;
  while (true) {
    const size_t begin = text.find_first_not_of(" \t\r");
    if (begin == std::string_view::npos) return words;
    text.remove_prefix(begin);
    const size_t end = std::min(text.find_first_of(" \t\r"), text.size());
    words.push_back(text.substr(0, end));
    text.remove_prefix(end);
  }
}

}  // namespace

std::optional<std::string> NormaliseTranscript(std::string_view text) {
  std::string result, word;
  const auto finish = [&] {
    const std::optional<std::string> normal = NormaliseWord(std::exchange(word, ""));
    if (normal && !normal->empty()) result += (result.empty() ? "" : " ") + *normal;
    return normal.has_value();
  };
  for (const char c : text) {
    if (IsLetter(c) || IsDigit(c) || c == '\'') {
      word += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    } else if (!finish()) {
      return std::nullopt;
    }
  }
  if (!finish()) return std::nullopt;
  return result;
}

Pronunciations Pronunciations::Read(const std::string& path) {
  return Parse(AsText(ReadFile(path, "dictionary")), path);
}

Pronunciations Pronunciations::Parse(std::string_view text, const std::string& name) {
  Pronunciations dictionary;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const auto words = Words(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    if (words.size() < 2 || words[0].ends_with(')')) continue;
    std::vector<std::string> phones;
    for (size_t i = 1; i < words.size(); ++i) phones.emplace_back(words[i]);
    dictionary.words_.emplace(words[0], std::move(phones));
  }
  Check(!dictionary.words_.empty(), "dictionary",
        "{}: must have lines of a word and its phones, but has none", name);
  return dictionary;
}

std::optional<std::vector<std::string>> Pronunciations::Phonemes(std::string_view transcript,
                                                                 std::string* unknown) const {
  std::vector<std::string> phones;
  for (const std::string_view word : Words(transcript)) {
    const auto found = words_.find(word);
    if (found == words_.end()) {
      if (unknown != nullptr) *unknown = word;
      return std::nullopt;
    }
    phones.insert(phones.end(), found->second.begin(), found->second.end());
  }
  return phones;
}

std::vector<std::string> Characters(std::string_view text) {
  std::vector<std::string> characters;
  for (size_t i = 0; i < text.size();) {
    const auto lead = static_cast<unsigned char>(text[i]);
    size_t n = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : lead >= 0xC0 ? 2 : 1;
    bool whole = i + n <= text.size();
    for (size_t j = 1; whole && j < n; ++j)
      whole = (static_cast<unsigned char>(text[i + j]) & 0xC0) == 0x80;
    if (!whole) n = 1;
    characters.emplace_back(text.substr(i, n));
    i += n;
  }
  return characters;
}

}  // namespace linattn
