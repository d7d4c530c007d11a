#include "bench/output.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "bench/machine.h"

namespace linattn::bench {
namespace {

using Json = nlohmann::ordered_json;

const Json* Find(const Json& row, const std::string& key) {
  const size_t dot = key.find('.');
  const auto found = row.find(key.substr(0, dot));
  if (found == row.end()) return nullptr;
  return dot == std::string::npos ? &*found : Find(*found, key.substr(dot + 1));
}

// Three significant digits; whole numbers as they are.
std::string Number(double x) {
  const double size = std::abs(x);
  if (x == std::floor(x) && size < 1e9) return fmt::format("{:.0f}", x);
  const int digits = size >= 100 ? 0 : size >= 10 ? 1 : size >= 1 ? 2 : 3;
  return size < 0.01 || size >= 1e6 ? fmt::format("{:.3g}", x) : fmt::format("{:.{}f}", x, digits);
}

std::string Cell(const Column& column, const Json& row) {
  const Json* value = Find(row, column.key);
  if (value == nullptr || value->is_null()) return "-";
  if (value->is_string()) return value->get<std::string>();
  if (value->is_boolean()) return value->get<bool>() ? "yes" : "no";
  return Number(value->get<double>() * column.factor) + column.suffix;
}

std::string Padded(const Column& column, const std::string& text) {
  const int width = std::max(std::abs(column.width), static_cast<int>(column.title.size()));
  return column.width < 0 ? fmt::format("{:<{}}", text, width) : fmt::format("{:>{}}", text, width);
}

}  // namespace

void RowPrinter::Print(const Json& row) {
  if (output_.json) {
    Json line = row;
    line["machine"] = ToJson(ThisMachine());
    return output_.print(line.dump() + "\n");
  }
  std::string text;
  const auto line = [&](const auto& cell) {
    std::string cells;
    for (const Column& column : columns_)
      cells += (cells.empty() ? "" : "  ") + Padded(column, cell(column));
    text += cells.substr(0, cells.find_last_not_of(' ') + 1) + "\n";
  };
  if (!head_shown_) line([](const Column& column) { return column.title; });
  head_shown_ = true;
  line([&](const Column& column) { return Cell(column, row); });
  output_.print(text);
}

}  // namespace linattn::bench
