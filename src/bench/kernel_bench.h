#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bench/mixer_problem.h"
#include "bench/output.h"

namespace CLI {
class App;
}

namespace linattn::bench {

struct KernelOptions {
  std::vector<std::string> mixers = {"all"}, passes = {"forward", "backward", "step"};
  Shape shape;
  double seconds = 2;  // a row
  bool quick = false;
};

// The same job done by somebody else's code.
struct Baseline {
  std::string how;  // for people: "chunkwise, chunks of 64"
  std::function<void()> run{};
  double scale = 1;                 // of its time to that of the shape that we run
  std::function<double()> error{};  // of its last result: max|theirs - ours| / max|ours|
};

// Makes a baseline of the problem (for steps: of `steps`, else null), or none: `how` then says why
// and `run` is null.
using BaselineMaker = std::function<Baseline(const Mixer&, Pass, const MixerProblem<float>&,
                                             const StepProblem* steps)>;

// Declares the flags of `linattn bench kernels`, and its help.
void AddKernelOptions(CLI::App& verb, KernelOptions& options);

// A row a mixer and pass. `make_baseline` null: none is to be had in this program.
void BenchKernels(const KernelOptions& options, const BaselineMaker& make_baseline,
                  const Output& output);

}  // namespace linattn::bench
