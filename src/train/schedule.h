#pragma once

#include <cstdint>
#include <string>

namespace linattn {

// A learning rate as a function of the step alone, so that resuming cannot disturb it. Step n is
// the n-th update, counted from 1.
struct Schedule {
  std::string kind = "cosine";  // "constant" | "cosine" | "linear" | "step"
  double base = 1e-3;           // the rate at the end of the warm-up
  double final_rate = 0;        // cosine, linear: the rate at `total`, and after it
  int64_t warmup = 0;           // steps over which the rate rises linearly: base * n / warmup
  int64_t total = 0;            // cosine, linear: 0 means not known yet, the rate stays at base
  int64_t step_size = 1000;     // step: every so many steps after the warm-up ...
  double step_factor = 0.5;     // ... the rate is multiplied by this
};

// Throws Error naming the field that is out of range.
void CheckSchedule(const Schedule& schedule);

double LearningRate(const Schedule& schedule, int64_t step);

}  // namespace linattn
