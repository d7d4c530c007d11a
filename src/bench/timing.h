#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace linattn::bench {

struct Timing {
  double median_s = 0;
  double spread = 0;  // (third quartile - first quartile) / median
  int64_t rounds = 0;
};

Timing Summarise(std::vector<double> seconds);

double SecondsOf(const std::function<void()>& work);

// A job is timed as a whole; `prepare` comes before each time and is not; may be null.
struct Job {
  std::function<void()> run, prepare;
  int64_t burst = 1;  // times a turn: short jobs that keep caches warm need several
};

// Runs the jobs in turns (a b a b ...), so that a machine that drifts drifts for all: one turn to
// warm up, then turns until `seconds` have passed, at least `least` of them. `check` is called
// between jobs; what it throws ends the measurement.
std::vector<Timing> TimeInTurns(const std::vector<Job>& jobs, double seconds, int64_t least,
                                const std::function<void()>& check);

}  // namespace linattn::bench
