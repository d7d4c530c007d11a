#include "train/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/error.h"

namespace linattn {
namespace {

// 0 at the end of the warm-up, 1 at `total` and from there on.
double Progress(const Schedule& s, int64_t step) {
  if (s.total <= 0) return 0;
  const double span = static_cast<double>(std::max<int64_t>(1, s.total - s.warmup));
  return std::clamp(static_cast<double>(step - s.warmup) / span, 0.0, 1.0);
}

}  // namespace

void CheckSchedule(const Schedule& s) {
  Check(s.kind == "constant" || s.kind == "cosine" || s.kind == "linear" || s.kind == "step",
        "train", "schedule must be one of constant, cosine, linear, step, but is '{}'", s.kind);
  Check(s.base > 0 && std::isfinite(s.base), "train", "lr must be positive, but is {}", s.base);
  Check(s.final_rate >= 0 && std::isfinite(s.final_rate), "train",
        "final_lr must not be negative, but is {}", s.final_rate);
  Check(s.warmup >= 0, "train", "warmup must not be negative, but is {}", s.warmup);
  Check(s.total >= 0, "train", "schedule_steps must not be negative, but is {}", s.total);
  Check(s.step_size > 0, "train", "step_size must be positive, but is {}", s.step_size);
  Check(s.step_factor > 0 && s.step_factor <= 1, "train", "step_factor must be in (0,1], but is {}",
        s.step_factor);
}

double LearningRate(const Schedule& s, int64_t step) {
  if (step < s.warmup) return s.base * static_cast<double>(step) / static_cast<double>(s.warmup);
  if (s.kind == "cosine") {
    const double fall = 0.5 * (1 + std::cos(std::numbers::pi * Progress(s, step)));
    return s.final_rate + (s.base - s.final_rate) * fall;
  }
  if (s.kind == "linear") return s.base + (s.final_rate - s.base) * Progress(s, step);
  if (s.kind == "step") {
    const int64_t falls = (step - s.warmup) / s.step_size;
    return s.base * std::pow(s.step_factor, static_cast<double>(falls));
  }
  return s.base;
}

}  // namespace linattn
