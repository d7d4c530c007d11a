#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "bench/kernel_bench.h"

namespace linattn {

struct BenchTrainFlags {
  std::vector<std::string> models, dtypes;
  std::string mixer;
  int64_t batch = 0, steps = 0;
  int threads = 0;
  bool json = false, quick = false, quiet = false;
};

// Declares the flags and the help of `linattn bench train`.
void AddBenchTrain(CLI::App& verb, BenchTrainFlags& flags);

// Runs it; `signal` is asked for the signal that wants to stop it, or 0. Returns the exit status.
int RunBenchTrain(const BenchTrainFlags& flags, int (*signal)());

struct BenchKernelFlags {
  bench::KernelOptions kernels;
  int threads = 0;
  bool json = false, quiet = false;
};

// `linattn bench kernels`, with LibTorch's figures beside ours.
void AddBenchKernels(CLI::App& verb, BenchKernelFlags& flags);
int RunBenchKernels(const BenchKernelFlags& flags, int (*signal)());

}  // namespace linattn
