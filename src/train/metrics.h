#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "train/event_file.h"

namespace linattn {

// What a run reports, twice: `directory`/metrics.jsonl, one JSON object a line, and an event file
// for TensorBoard.
class Metrics {
 public:
  // Lines of steps after `step`, and a last line that is cut, are dropped: a resumed run makes
  // those steps again.
  Metrics(const std::string& directory, int64_t step);

  struct Value {
    std::string_view name;
    double value;
  };
  // {"step":..., "kind":"train", "loss":..., ...}; TensorBoard's tags are "train/loss", ...
  void Add(int64_t step, std::string_view kind, const std::vector<Value>& values);
  // A PNG file under the tag "samples".
  void AddPicture(int64_t step, const std::string& path);

 private:
  std::ofstream lines_;
  EventFile events_;
};

}  // namespace linattn
