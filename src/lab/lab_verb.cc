#include "lab/lab_verb.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdio>
#include <ctime>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "base/file.h"
#include "base/progress.h"
#include "bench/machine.h"

namespace linattn {
namespace {

constexpr const char* kExamples = R"(
Examples:
  linattn lab retrieval
  linattn lab swap --model FILE                    of your own model, whose attention is softmax
  linattn lab features denominator --quick --out runs/lab
  linattn lab all --report lab                     one page with everything, readable without a network
Each experiment takes minutes on two cores and writes NAME.md (a paragraph with its figures), NAME.json and its pictures
(SVG) into --out. With --report they go into that directory, and index.html shows all that are there. What was run with
the same settings is not run again, unless --again says so: a report that was stopped goes on with the same command.)";

struct Stopped {};

std::vector<Experiment> Chosen(const std::vector<std::string>& names) {
  std::vector<Experiment> chosen;
  for (const std::string& name : names) {
    if (name == "all") return {AllExperiments().begin(), AllExperiments().end()};
    chosen.push_back(ExperimentByName(name));
  }
  return chosen;
}

std::string Today() {
  const std::time_t now = std::time(nullptr);
  std::tm day{};
  gmtime_r(&now, &day);
  return fmt::format("{}-{:02}-{:02}", day.tm_year + 1900, day.tm_mon + 1, day.tm_mday);
}

LabResult RunOne(const Experiment& experiment, LabOptions options, const std::string& directory,
                 bool again) {
  if (!options.quiet) fmt::print(stderr, "{}: {}\n", experiment.name, experiment.question);
  std::optional<Progress> progress;
  options.directory = directory + "/" + std::string(experiment.name) + "-files";
  if (again) std::filesystem::remove_all(options.directory);
  options.check = [signal = options.signal] {
    if (signal() != 0) throw Stopped();
  };
  options.progress = [&](int64_t done, int64_t total, const std::string& what) {
    options.check();
    if (!progress) {
      using Style = Progress::Style;
      Progress::Options style;
      style.style = options.quiet ? Style::kQuiet : Style::kAuto, style.unit = "part";
      progress.emplace(total, stderr, style);
      progress->Start(done);  // the rate is that of the parts that follow
    }
    progress->Update(done, what);
  };
  LabResult result = experiment.run(options);
  const bench::Machine& machine = bench::ThisMachine();
  result.settings = SettingsOf(experiment, options);
  result.made =
      fmt::format("{}, linattn {}, {}", Today(), machine.version, bench::Describe(machine));
  SaveResult(experiment, result, directory);
  return result;
}

// Every experiment that has a result in the directory.
void WritePage(const std::string& directory) {
  std::vector<std::pair<Experiment, LabResult>> results;
  for (const Experiment& experiment : AllExperiments()) {
    LabResult result;
    if (LoadResult(experiment, directory, result)) results.emplace_back(experiment, result);
  }
  WriteFileAtomic(directory + "/index.html", LabPage(results));
}

// One object: the figures by the experiments' names.
std::string AllFigures(const std::vector<std::pair<Experiment, LabResult>>& results) {
  nlohmann::ordered_json all = nlohmann::ordered_json::object();
  for (const auto& [experiment, result] : results)
    all[std::string(experiment.name)] = nlohmann::ordered_json::parse(result.figures);
  return all.dump(1);
}

}  // namespace

void AddLab(CLI::App& verb, LabFlags& f) {
  verb.footer(kExamples);
  std::string help = "all, or any of:";
  for (const Experiment& e : AllExperiments()) help += fmt::format(" {} ({})", e.name, e.question);
  verb.add_option("names", f.names, help)->required()->type_name("NAME...");
  auto* out = verb.add_option("--out", f.out, "directory of results (lab)");
  verb.add_option("--report", f.report, "directory of results and of the page index.html")
      ->excludes(out);
  verb.add_option("--model", f.options.model,
                  "of swap: a model file whose attention is softmax (" + f.options.model + ")");
  verb.add_option("--data", f.options.data, "of swap: what the model learned (fashion-mnist)");
  verb.add_option("--seed", f.options.seed, "of random numbers");
  verb.add_flag("--quick", f.options.quick, "smaller sizes: a first look");
  verb.add_flag("--again", f.again, "run what has a result already");
  verb.add_flag("--json", f.json, "print the figures as one JSON object, by experiment");
  verb.add_option("--threads", f.threads, "default: all cores")->check(CLI::Range(1, 1024));
  verb.add_flag("--quiet,-q", f.quiet, "no progress");
}

int RunLab(const LabFlags& flags, int (*signal)()) {
  const std::string directory = flags.report.empty() ? flags.out : flags.report;
  LabOptions options = flags.options;
  options.quiet = flags.quiet, options.signal = signal;
  if (options.quick) bench::MeasureMachineQuickly();
  std::vector<std::pair<Experiment, LabResult>> results;
  std::vector<std::string_view> failed;
  for (const Experiment& experiment : Chosen(flags.names)) {
    LabResult result;
    try {
      if (flags.again || !LoadResult(experiment, directory, result) ||
          result.settings != SettingsOf(experiment, options))
        result = RunOne(experiment, options, directory, flags.again);
    } catch (const Stopped&) {
      fmt::print(stderr, "stopped; what is done is in {}; go on with the same command\n",
                 directory);
      return 128 + signal();
    } catch (const Error& error) {  // the other experiments need not suffer
      fmt::print(stderr, "linattn: {}: {}\n", experiment.name, error.what());
      failed.push_back(experiment.name);
      continue;
    }
    if (!flags.json) fmt::print("{}\n{}\n\n", experiment.name, result.paragraph);
    std::fflush(stdout);
    results.emplace_back(experiment, std::move(result));
    if (!flags.report.empty()) WritePage(directory);
  }
  if (flags.json) fmt::print("{}\n", AllFigures(results));
  if (!flags.report.empty() && !flags.json && !results.empty())
    fmt::print("{}/index.html\n", directory);
  if (failed.empty()) return 0;
  fmt::print(stderr, "without a result: {}; the same command runs what is missing\n",
             fmt::join(failed, ", "));
  return 1;
}

}  // namespace linattn
