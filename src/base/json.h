#pragma once

#include <nlohmann/json.hpp>
#include <string_view>

namespace linattn {

// Strict JSON: refuses names that occur twice in one object, nesting deeper than 16, text after the
// value, and whatever the grammar refuses. Throws Error "[where] <what> is not valid JSON:
// <reason>".
nlohmann::json ParseJson(std::string_view text, std::string_view where, std::string_view what);

}  // namespace linattn
