#include <charconv>
#include <string_view>

#include "base/error.h"
#include "kernels/mixer.h"
#include "model/config.h"

namespace linattn {
namespace {

constexpr int64_t kMostLayers = 4096;

std::string_view Trimmed(std::string_view text) {
  constexpr std::string_view kSpace = " \t\n";
  const size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

// Takes "3x", "3 x" or "3*" off the front; 1 if there is no number there.
int64_t TakeCount(std::string_view& part, const std::string& text) {
  int64_t count = 1;
  const char* end = part.data() + part.size();
  const auto number = std::from_chars(part.data(), end, count);
  if (number.ptr == part.data()) return 1;
  std::string_view rest = Trimmed({number.ptr, static_cast<size_t>(end - number.ptr)});
  const bool times = !rest.empty() && (rest[0] == 'x' || rest[0] == '*');
  Check(times, "config",
        "mixer: a count must be followed by x, as in '3x linear', but '{}' is not (in '{}')", part,
        text);
  Check(number.ec == std::errc() && count >= 1 && count <= kMostLayers, "config",
        "mixer: a count must be from 1 to {}, but '{}' is not (in '{}')", kMostLayers, part, text);
  part = Trimmed(rest.substr(1));
  return count;
}

}  // namespace

std::vector<std::string> ExpandMixers(const std::string& text, int64_t layers) {
  std::vector<std::string> cycle;
  std::string_view left = text;
  while (true) {
    const size_t end = std::min(left.find_first_of("+,"), left.size());
    std::string_view part = Trimmed(left.substr(0, end));
    const int64_t count = TakeCount(part, text);
    Check(!part.empty(), "config",
          "mixer must be names joined by + or ',', but one of them is empty (in '{}')", text);
    cycle.insert(cycle.end(), count, std::string(MixerByName(part).name));
    Check(static_cast<int64_t>(cycle.size()) <= kMostLayers, "config",
          "mixer must name at most {} layers, but names more (in '{}')", kMostLayers, text);
    if (end == left.size()) break;
    left.remove_prefix(end + 1);
  }
  std::vector<std::string> mixers;
  for (int64_t i = 0; i < layers; ++i) mixers.push_back(cycle[i % cycle.size()]);
  return mixers;
}

}  // namespace linattn
