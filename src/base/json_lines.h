#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace linattn {

// The objects of a file that holds one a line, such as a run's metrics.jsonl; a last line that is
// cut short, of a run that goes on, is left out. Throws Error from `where` if the file cannot be
// read, holds no whole line or one that is no JSON.
std::vector<nlohmann::json> ReadJsonLines(const std::string& path, std::string_view where);

}  // namespace linattn
