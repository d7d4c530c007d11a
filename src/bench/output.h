#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace linattn::bench {

// Where measurements go, given by the program that runs them.
struct Output {
  bool json = false;
  std::function<void(const std::string&)> print;  // to standard output
  std::function<void(const std::string&)> note;   // a line on what is going on, for people
  std::function<void()> check;                    // throws if the user wants to stop
};

// A column of the table that people read: `key` of the row, "a.b" for b of the object a.
struct Column {
  std::string title, key;
  int width = 0;      // at least; negative: to the left
  double factor = 1;  // of numbers
  std::string suffix{};
};

// Rows as lines of JSON, each with the key "machine" (machine.h), or as a table under one head.
class RowPrinter {
 public:
  RowPrinter(Output output, std::vector<Column> columns)
      : output_(std::move(output)), columns_(std::move(columns)) {}
  void Print(const nlohmann::ordered_json& row);

 private:
  Output output_;
  std::vector<Column> columns_;
  bool head_shown_ = false;
};

}  // namespace linattn::bench
