#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace linattn {

struct Utf8Prefix {
  size_t bytes = 0;  // that begin a character, at least 1
  enum class Kind { kWhole, kUnfinished, kInvalid } kind = Kind::kInvalid;
};

// The first character of `text`, which is not empty, or as much of one as there is (the Unicode
// Standard, section 3.9, table 3-7).
Utf8Prefix FirstCharacter(std::string_view text);

// Where the first byte stands that is not UTF-8, or npos.
size_t FirstNotUtf8(std::string_view text);

// Of a character that is whole, and back.
char32_t CodePoint(std::string_view character);
std::string Utf8(char32_t code_point);

}  // namespace linattn
