#pragma once

#include <benchmark/benchmark.h>
#include <fmt/format.h>
#include <omp.h>

#include <string>

#include "kernels/machine_peak.h"

namespace linattn {

// The main of a benchmark program: flags, what the machine can do, the rows that `register_rows`
// adds.
inline int RunBenchmarks(int argc, char** argv, void (*register_rows)()) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::AddCustomContext("float32 FMA peak, GFLOP/s", fmt::format("{:.0f}", MeasureFmaPeak()));
  benchmark::AddCustomContext("threads", std::to_string(omp_get_max_threads()));
  register_rows();
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}

}  // namespace linattn
