#pragma once

#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>

#include "train/checkpoint.h"
#include "train/config.h"

namespace linattn {

struct RunOptions {
  std::string directory;                 // of this run; made if need be
  std::FILE* log = nullptr;              // progress and messages; null: none
  bool quiet = false;                    // only what went wrong
  double peak_gflops = 0;                // PeakGflops(train.dtype), for the log; 0: leave it out
  std::function<bool()> stop;            // asked after each step: true saves and ends the run
  std::function<void(int64_t)> on_step;  // told after each step, checkpoint included; may be null
};

struct RunResult {
  enum class End { kFinished, kStopped, kLogClosed };
  End end = End::kFinished;
  RunState state;
  double metric = 0;  // the task's first, at the last evaluation; NaN if there was none
};

// Trains `config` in options.directory, which then holds
//   config.toml            the resolved config
//   metrics.jsonl          and events.out.tfevents.* for TensorBoard
//   samples/               pictures (or text) drawn on the way
//   checkpoints/           the last `keep` and the best
//   model.safetensors      for the lean runtime
// Throws Error: bad data or config; a directory that already holds checkpoints; a loss or gradient
// that is not finite, naming step and layer (Fault::kInternal), with every earlier checkpoint
// intact.
RunResult Train(const RunConfig& config, const RunOptions& options);

// Goes on with the newest checkpoint in options.directory that is whole (from the start if there is
// none), exactly as the unbroken run would have. `config` may differ from the run's in what does
// not decide its course (TrajectoryKey), else Error.
RunResult Resume(const RunConfig& config, const RunOptions& options);

// Writes the weights of a run's newest whole checkpoint (its running means, if it has them) as a
// model file. storage: "f32" | "f16" | "bf16". Returns the checkpoint's path. best: of the best
// evaluation instead.
std::string ExportRun(const std::string& directory, const std::string& path,
                      const std::string& storage, bool best);

}  // namespace linattn
