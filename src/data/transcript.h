#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace linattn {

// Text as it is spoken: letters in lower case (Latin, Greek, Cyrillic), whole numbers below 100 as
// English words, punctuation gone except apostrophes within words (a typographic one is '), one
// space between words; other characters and bytes that are not UTF-8 stay. Nothing if a number is
// larger or stands within a word.
std::optional<std::string> NormaliseTranscript(std::string_view text);

// A pronouncing dictionary: lines "word PHONE PHONE ..."; of alternatives, "word(2) ...", the first
// is taken. Words in capitals are known in lower case too. Throws Error if the file is none.
class Pronunciations {
 public:
  static Pronunciations Read(const std::string& path);
  static Pronunciations Parse(std::string_view text, const std::string& name);

  // Of a normalised transcript; nothing if a word is not known, which `unknown` then is.
  std::optional<std::vector<std::string>> Phonemes(std::string_view transcript,
                                                   std::string* unknown = nullptr) const;

 private:
  std::map<std::string, std::vector<std::string>, std::less<>> words_;
};

// The code points of UTF-8 text; a byte that is not part of one stands for itself.
std::vector<std::string> Characters(std::string_view text);

}  // namespace linattn
