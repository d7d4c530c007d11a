#pragma once

#include <string>
#include <vector>

#include "bench/output.h"

namespace CLI {
class App;
}

namespace linattn::bench {

struct PaperOptions {
  std::vector<std::string> models = {"cifar10", "mnist"};
  std::string dtype = "bf16";
  double seconds = 4;  // of timed steps a row
  bool quick = false;
};

// Declares the flags of `linattn bench paper`, and its help.
void AddPaperOptions(CLI::App& verb, PaperOptions& options);
void BenchPaper(const PaperOptions& options, const Output& output);

}  // namespace linattn::bench
