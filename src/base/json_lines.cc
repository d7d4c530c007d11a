#include "base/json_lines.h"

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"

namespace linattn {

std::vector<nlohmann::json> ReadJsonLines(const std::string& path, std::string_view where) {
  const Bytes bytes = ReadFile(path, where);
  std::string_view text = AsText(bytes);
  std::vector<nlohmann::json> lines;
  for (size_t end = text.find('\n'); end != std::string_view::npos; end = text.find('\n')) {
    lines.push_back(ParseJson(text.substr(0, end), where, path));
    text.remove_prefix(end + 1);
  }
  Check(!lines.empty(), where, "{} must hold metrics, but has not a whole line", path);
  return lines;
}

}  // namespace linattn
