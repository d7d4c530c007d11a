#include "base/json.h"

#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"

namespace linattn {

nlohmann::json ParseJson(std::string_view text, std::string_view where, std::string_view what) {
  using Event = nlohmann::json::parse_event_t;
  constexpr int kDeepest = 16;
  std::vector<std::set<std::string>> open;  // names seen, for each object that is still open
  const auto check = [&](int depth, Event event, nlohmann::json& value) {
    Check(depth <= kDeepest, where, "{} is nested deeper than {} levels", what, kDeepest);
    if (event == Event::object_start) open.emplace_back();
    if (event == Event::object_end) open.pop_back();
    if (event == Event::key) {
      const auto& name = value.get_ref<const std::string&>();
      Check(open.back().insert(name).second, where, "{} has the name '{}' twice", what,
            Printable(name));
    }
    return true;
  };
  try {
    return nlohmann::json::parse(text, check);
  } catch (const nlohmann::json::exception& e) {
    Fail(where, "{} is not valid JSON: {}", what, Printable(e.what()));
  }
}

}  // namespace linattn
