#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "train/linearize.h"

namespace linattn {

struct LinearizeFlags {
  std::string model, out, storage = "f32";
  LinearizeOptions options;
  int threads = 0;
  bool json = false, quiet = false;
};

// Declares the flags and the help of `linattn linearize`.
void AddLinearize(CLI::App& verb, LinearizeFlags& flags);

// Runs it; `signal` is asked for the signal that wants to stop it, or 0. Returns the exit status.
int RunLinearize(const LinearizeFlags& flags, int (*signal)());

}  // namespace linattn
