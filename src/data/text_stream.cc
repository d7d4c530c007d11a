#include "data/text_stream.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "data/utf8.h"

namespace linattn {
namespace {

constexpr const char* kReplacement = "\xEF\xBF\xBD";  // U+FFFD

}  // namespace

std::string Utf8Stream::Push(std::string_view bytes) {
  held_ += bytes;
  std::string shown;
  std::string_view rest = held_;
  while (!rest.empty()) {
    const Utf8Prefix first = FirstCharacter(rest);
    if (first.kind == Utf8Prefix::Kind::kUnfinished) break;
    if (first.kind == Utf8Prefix::Kind::kWhole) shown += rest.substr(0, first.bytes);
    if (first.kind == Utf8Prefix::Kind::kInvalid) shown += kReplacement;
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

void StopStrings::Begin(std::string_view before) {
  held_ = before;
  before_ = before.size();
}

std::string StopStrings::Push(std::string_view bytes) {
  if (stopped_) return "";
  held_ += bytes;
  size_t first = std::string::npos;  // where a stop string begins
  for (const std::string& stop : stops_) {
    first = std::min(first, held_.find(stop, before_ - std::min(before_, stop.size() - 1)));
  }
  stopped_ = first != std::string::npos;
  size_t certain = stopped_ ? first : held_.size();
  for (size_t i = 0; !stopped_ && i < held_.size() && certain == held_.size(); ++i) {
    const std::string_view tail = std::string_view(held_).substr(i);
    for (const std::string& stop : stops_) {
      if (stop.starts_with(tail)) certain = i;
    }
  }
  const size_t old = std::min(before_, certain);
  std::string out = held_.substr(old, certain - old);
  held_.erase(0, stopped_ ? held_.size() : certain);
  before_ = stopped_ ? 0 : before_ - old;
  return out;
}

std::string StopStrings::Finish() {
  return std::exchange(held_, "").substr(std::exchange(before_, 0));
}

}  // namespace linattn
