#include "data/text_stream.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace linattn {
namespace {

constexpr const char* kReplacement = "\xEF\xBF\xBD";  // U+FFFD

struct Prefix {
  size_t bytes = 0;  // that begin a character, at least 1
  enum class Kind { kWhole, kUnfinished, kInvalid } kind = Kind::kInvalid;
};

// The first character of `text`, or as much of one as there is.
Prefix FirstCharacter(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return {1, Prefix::Kind::kWhole};
  if (lead < 0xC2 || lead > 0xF4) return {1, Prefix::Kind::kInvalid};
  const size_t size = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  // No overlong forms, no surrogates, nothing above U+10FFFF: a narrower second byte.
  unsigned char low = 0x80, high = 0xBF;
  if (lead == 0xE0) low = 0xA0;
  if (lead == 0xED) high = 0x9F;
  if (lead == 0xF0) low = 0x90;
  if (lead == 0xF4) high = 0x8F;
  for (size_t i = 1; i < size; ++i, low = 0x80, high = 0xBF) {
    if (i == text.size()) return {i, Prefix::Kind::kUnfinished};
    if (byte(i) < low || byte(i) > high) return {i, Prefix::Kind::kInvalid};
  }
  return {size, Prefix::Kind::kWhole};
}

}  // namespace

std::string Utf8Stream::Push(std::string_view bytes) {
  held_ += bytes;
  std::string shown;
  std::string_view rest = held_;
  while (!rest.empty()) {
    const Prefix first = FirstCharacter(rest);
    if (first.kind == Prefix::Kind::kUnfinished) break;
    if (first.kind == Prefix::Kind::kWhole) shown += rest.substr(0, first.bytes);
    if (first.kind == Prefix::Kind::kInvalid) shown += kReplacement;
    rest.remove_prefix(first.bytes);
  }
  held_ = std::string(rest);
  return shown;
}

std::string Utf8Stream::Finish() { return std::exchange(held_, "").empty() ? "" : kReplacement; }

StopStrings::StopStrings(std::vector<std::string> stops) : stops_(std::move(stops)) {
  for (const std::string& stop : stops_) {
    Check(!stop.empty(), "generate", "a stop string must have at least one byte, but is empty");
  }
}

std::string StopStrings::Push(std::string_view bytes) {
  if (stopped_) return "";
  held_ += bytes;
  size_t first = std::string::npos;  // where a stop string begins
  for (const std::string& stop : stops_) first = std::min(first, held_.find(stop));
  stopped_ = first != std::string::npos;
  size_t certain = stopped_ ? first : held_.size();
  for (size_t i = 0; !stopped_ && i < held_.size() && certain == held_.size(); ++i) {
    const std::string_view tail = std::string_view(held_).substr(i);
    for (const std::string& stop : stops_) {
      if (stop.starts_with(tail)) certain = i;
    }
  }
  std::string out = held_.substr(0, certain);
  held_.erase(0, stopped_ ? held_.size() : certain);
  return out;
}

std::string StopStrings::Finish() { return std::exchange(held_, ""); }

}  // namespace linattn
