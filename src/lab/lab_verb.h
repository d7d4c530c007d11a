#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "lab/lab.h"

namespace linattn {

struct LabFlags {
  std::vector<std::string> names;
  std::string out = "lab", report;
  LabOptions options;
  int threads = 0;
  bool again = false, json = false, quiet = false;
};

// Declares the flags and the help of `linattn lab`.
void AddLab(CLI::App& verb, LabFlags& flags);

// Runs it; `signal` is asked for the signal that wants to stop it, or 0. Returns the exit status.
int RunLab(const LabFlags& flags, int (*signal)());

}  // namespace linattn
