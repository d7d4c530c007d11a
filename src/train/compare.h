#pragma once

#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

namespace linattn {

struct CompareOptions {
  std::vector<std::string> mixers;  // as ParseMixerSpec reads them
  std::string config;               // TOML file that all share; "" for the defaults
  std::vector<std::string> sets;    // laid over it, as ResolveConfig takes them
  std::string directory;
  int64_t steps = 0;         // of each mixer; or
  double minutes = 0;        // for each on average: a pilot of a few steps of each finds the steps
  bool equal_state = false;  // MatchState to the first mixer's bytes, before the parameters
  int threads = 1;
  std::string command;          // the user's, for the report
  std::FILE* log = nullptr;     // progress, the runs' too; null: none
  std::function<int()> signal;  // the signal that asks to stop, or 0; may be null
};

struct CompareResult {
  bool stopped = false;             // by options.signal
  std::vector<std::string> failed;  // these mixers; the others are done, unless it was stopped
};

// Trains every mixer on the same data in the same order for as many steps, in a process of its own,
// at as many parameters as the first (mlp_dim makes up the difference), and writes into
// options.directory
//   compare.md, compare.json, curves.svg     of the mixers that are done, after each of them;
//                                            profile.svg too if the task's metrics have an axis
//   plan.json                                the steps and parameters that all share
//   <mixer>/                                 its run, as Train leaves it, and result.json
// The same call goes on where it stopped: runs that are done are not trained again. Throws Error
// before any work if a mixer, the config or the data are wrong, or if the directory holds a
// comparison with other settings.
CompareResult Compare(const CompareOptions& options);

}  // namespace linattn
