#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "train/config.h"
#include "train/optimiser.h"

namespace linattn {

// Where a run stands after `step` updates, apart from its tensors. The data's position is the step:
// batches are functions of the seed and the step.
struct RunState {
  int64_t step = 0;
  int64_t total = 0;  // the schedule's; 0: not settled yet (a run by minutes)
  int64_t tokens = 0;
  double wall_s = 0;  // training, evaluations included, over all resumptions
  double best_metric = std::numeric_limits<double>::infinity();
  int64_t best_step = -1, evaluated_step = -1;  // of the best and of the last evaluation
  int64_t skipped = 0;  // updates left out because they were not finite
};

// One file: a safetensors container with every tensor of `tensors` under its name (weights,
// moments, running means, random generators) and, in its metadata, the state, the config and a
// checksum of the tensors. Written atomically.
void SaveCheckpoint(const std::string& path, const RunState& state, const RunConfig& config,
                    const NamedTensors& tensors);

// Copies the file's tensors into `tensors` and returns its state. Throws Error if the file is cut
// or damaged, or its tensors' names, types or shapes are not those of `tensors`; then nothing has
// been changed.
RunState LoadCheckpoint(const std::string& path, const NamedTensors& tensors);

// The config that the run was made with.
RunConfig CheckpointConfig(const std::string& path);

// `directory`/step-000001000.safetensors, ...
class CheckpointFiles {
 public:
  explicit CheckpointFiles(std::string directory) : directory_(std::move(directory)) {}
  std::string Path(int64_t step) const;
  std::vector<int64_t> Steps() const;  // of the files that exist, newest first
  // Removes all but the newest `keep` and the one of `best_step`.
  void Prune(int64_t keep, int64_t best_step) const;
  // Removes those later than `step`: damaged ones, before they are made again.
  void RemoveAfter(int64_t step) const;

 private:
  std::string directory_;
};

}  // namespace linattn
