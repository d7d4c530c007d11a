#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <vector>

namespace linattn {

struct CompareFlags {
  std::vector<std::string> mixers, sets;
  std::string config, data, out = "runs/compare";
  int64_t steps = 0;
  double minutes = 0;
  int threads = 0;
  bool equal_state = false, quiet = false;
};

// Declares the flags and the help of `linattn compare`.
void AddCompare(CLI::App& verb, CompareFlags& flags);

// Runs it; `arguments` as the program got them, for the report; `signal` is asked for the signal
// that wants to stop it, or 0. Returns the exit status.
int RunCompare(const CompareFlags& flags, const std::vector<std::string>& arguments,
               int (*signal)());

}  // namespace linattn
