#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench/output.h"

namespace CLI {
class App;
}

namespace linattn::bench {

struct MemoryOptions {
  std::vector<std::string> mixers = {"linear", "softmax", "lsh"};
  int64_t shortest = 512, longest = 65536;  // tokens, by powers of two
  int64_t heads = 8, channels = 64;
  std::string out = "memory";  // OUT-time.svg, OUT-bytes.svg; empty: no pictures
  double seconds = 0.5;        // of timed runs a row
  bool quick = false;
};

// Declares the flags of `linattn bench memory`, and its help.
void AddMemoryOptions(CLI::App& verb, MemoryOptions& options);
void BenchMemory(const MemoryOptions& options, const Output& output);

}  // namespace linattn::bench
