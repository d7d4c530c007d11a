#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>

namespace linattn::cli {

// The end of ranges that have none of their own: CLI11's checks without an end name the largest
// double, all 309 digits of it.
inline constexpr int64_t kMany = 1'000'000'000'000;

// Options that every verb takes.
struct Common {
  int threads = 0;  // 0: all cores
  bool quiet = false;
};

// --threads and --quiet, for the program or a verb of it.
void AddCommon(CLI::App& app, Common& common);

// Each adds one verb, which runs while `app` parses. `common` must outlive `app`.
void AddGenerate(CLI::App& app, Common& common);
void AddComplete(CLI::App& app, Common& common);
void AddEval(CLI::App& app, Common& common);
void AddInspect(CLI::App& app, Common& common);
void AddConvert(CLI::App& app, Common& common);
void AddBench(CLI::App& app, Common& common);
void AddPlot(CLI::App& app, Common& common);
void AddTranscribe(CLI::App& app, Common& common);
void AddTrainingVerbs(CLI::App& app);  // train, export: see training.h

}  // namespace linattn::cli
