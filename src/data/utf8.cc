#include "data/utf8.h"

namespace linattn {

Utf8Prefix FirstCharacter(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return {1, Utf8Prefix::Kind::kWhole};
  if (lead < 0xC2 || lead > 0xF4) return {1, Utf8Prefix::Kind::kInvalid};
  const size_t size = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  // No overlong forms, no surrogates, nothing above U+10FFFF: a narrower second byte.
  unsigned char low = 0x80, high = 0xBF;
  if (lead == 0xE0) low = 0xA0;
  if (lead == 0xED) high = 0x9F;
  if (lead == 0xF0) low = 0x90;
  if (lead == 0xF4) high = 0x8F;
  for (size_t i = 1; i < size; ++i, low = 0x80, high = 0xBF) {
    if (i == text.size()) return {i, Utf8Prefix::Kind::kUnfinished};
    if (byte(i) < low || byte(i) > high) return {i, Utf8Prefix::Kind::kInvalid};
  }
  return {size, Utf8Prefix::Kind::kWhole};
}

size_t FirstNotUtf8(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const Utf8Prefix first = FirstCharacter(text.substr(at));
    if (first.kind != Utf8Prefix::Kind::kWhole) return at;
    at += first.bytes;
  }
  return std::string_view::npos;
}

char32_t CodePoint(std::string_view character) {
  const auto lead = static_cast<unsigned char>(character[0]);
  const size_t n = character.size();
  char32_t point = n == 1 ? lead : lead & (0x7Fu >> n);
  for (size_t i = 1; i < n; ++i)
    point = point << 6 | (static_cast<unsigned char>(character[i]) & 0x3Fu);
  return point;
}

std::string Utf8(char32_t point) {
  if (point < 0x80) return {static_cast<char>(point)};
  const int more = point < 0x800 ? 1 : point < 0x10000 ? 2 : 3;  // bytes behind the first
  std::string bytes = {static_cast<char>(0xFF00u >> (more + 1) | point >> 6 * more)};
  for (int i = more - 1; i >= 0; --i) bytes += static_cast<char>(0x80u | (point >> 6 * i & 0x3Fu));
  return bytes;
}

}  // namespace linattn
