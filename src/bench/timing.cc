#include "bench/timing.h"

#include <algorithm>

#include "base/error.h"
#include "base/steady_seconds.h"

namespace linattn::bench {
Timing Summarise(std::vector<double> seconds) {
  Check(!seconds.empty(), "bench", "there must be a time to summarise, but there is none");
  std::sort(seconds.begin(), seconds.end());
  const size_t n = seconds.size();
  const double median = (seconds[(n - 1) / 2] + seconds[n / 2]) / 2;
  const double quartiles = seconds[n - 1 - (n - 1) / 4] - seconds[(n - 1) / 4];
  return {median, median > 0 ? quartiles / median : 0, static_cast<int64_t>(n)};
}

double SecondsOf(const std::function<void()>& work) {
  const double start = SteadySeconds();
  work();
  return SteadySeconds() - start;
}

std::vector<Timing> TimeInTurns(const std::vector<Job>& jobs, double seconds, int64_t least,
                                const std::function<void()>& check) {
  std::vector<std::vector<double>> times(jobs.size());
  const double start = SteadySeconds();
  for (int64_t turn = -1; turn < least || SteadySeconds() - start < seconds; ++turn) {
    for (size_t i = 0; i < jobs.size(); ++i) {
      check();
      for (int64_t n = 0; n < jobs[i].burst; ++n) {
        if (jobs[i].prepare) jobs[i].prepare();
        const double time = SecondsOf(jobs[i].run);
        if (turn >= 0) times[i].push_back(time);
      }
    }
  }
  std::vector<Timing> timings;
  for (auto& list : times) timings.push_back(Summarise(std::move(list)));
  return timings;
}

}  // namespace linattn::bench
