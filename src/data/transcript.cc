#include "data/transcript.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "data/utf8.h"

namespace linattn {
namespace {

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

struct Range {
  char32_t first, last;
};

// Spaces, dashes, quotes and other marks outside ASCII, which end words as ASCII's do.
constexpr Range kMarks[] = {
    {0xA0, 0xA9},     {0xAB, 0xB1},     {0xB4, 0xB4},     {0xB6, 0xB8},  // Latin-1
    {0xBB, 0xBB},     {0xBF, 0xBF},     {0xD7, 0xD7},     {0xF7, 0xF7},  //
    {0x2000, 0x200B}, {0x2010, 0x206F},                                  // general punctuation
    {0x3000, 0x3003}, {0x3008, 0x3011}, {0x3014, 0x301F},                // of East Asia
    {0xFEFF, 0xFEFF}, {0xFF01, 0xFF0F}, {0xFF1A, 0xFF20}};

// Capitals whose small letters stand `to_small` on; every = 2: only every other one is a capital.
struct Capitals {
  Range range;
  int to_small;
  char32_t every;
};
constexpr Capitals kCapitals[] = {
    {{'A', 'Z'}, 32, 1},      {{0xC0, 0xD6}, 32, 1},        {{0xD8, 0xDE}, 32, 1},   // Latin-1
    {{0x100, 0x12E}, 1, 2},   {{0x130, 0x130}, -199, 1},    {{0x132, 0x136}, 1, 2},  // Extended-A
    {{0x139, 0x147}, 1, 2},   {{0x14A, 0x176}, 1, 2},       {{0x178, 0x178}, -121, 1},
    {{0x179, 0x17D}, 1, 2},   {{0x17F, 0x17F}, -268, 1},                              //
    {{0x386, 0x386}, 38, 1},  {{0x388, 0x38A}, 37, 1},      {{0x38C, 0x38C}, 64, 1},  // Greek
    {{0x38E, 0x38F}, 63, 1},  {{0x391, 0x3A1}, 32, 1},      {{0x3A3, 0x3AB}, 32, 1},
    {{0x400, 0x40F}, 80, 1},  {{0x410, 0x42F}, 32, 1},       // Cyrillic
    {{0x1E00, 0x1E94}, 1, 2}, {{0x1E9E, 0x1E9E}, -7615, 1},  // Latin Extended Additional
    {{0x1EA0, 0x1EFE}, 1, 2}};

bool Within(const Range& range, char32_t c) { return range.first <= c && c <= range.last; }

// A letter in lower case, an apostrophe or a digit; of marks and spaces, nothing.
std::string Normalised(const std::string& character) {
  const auto byte = static_cast<unsigned char>(character[0]);
  if (character.size() == 1 && byte >= 128) return character;
  const char32_t c = CodePoint(character);
  if (c == U'\'' || c == 0x2018 || c == 0x2019 || c == 0x2BC) return "'";
  if (std::ranges::any_of(kMarks, [c](const Range& marks) { return Within(marks, c); })) return "";
  for (const auto& [range, to_small, every] : kCapitals)
    if (Within(range, c) && (c - range.first) % every == 0)
      return Utf8(c + static_cast<char32_t>(to_small));
  const bool word = c >= 128 || IsDigit(character[0]) || (c >= 'a' && c <= 'z');
  return word ? character : "";
}

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

std::string InLowerCase(std::string_view word) {  // ASCII
  std::string result(word);
  for (char& c : result)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return result;
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
  for (const std::string& character : Characters(text)) {
    const std::string normal = Normalised(character);
    word += normal;
    if (normal.empty() && !finish()) return std::nullopt;
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
    dictionary.words_.emplace(InLowerCase(words[0]), std::move(phones));
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
  while (!text.empty()) {
    const Utf8Prefix first = FirstCharacter(text);
    const size_t n = first.kind == Utf8Prefix::Kind::kWhole ? first.bytes : 1;
    characters.emplace_back(text.substr(0, n));
    text.remove_prefix(n);
  }
  return characters;
}

}  // namespace linattn
