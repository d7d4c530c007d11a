#include "lab/lab_verb.h"

#include <fmt/format.h>

#include <cstdio>

#include "base/error.h"
#include "base/file.h"
#include "base/progress.h"

namespace linattn {
namespace {

constexpr const char* kExamples = R"(
Examples:
  linattn lab retrieval
  linattn lab swap --model models/fashion-softmax.safetensors
  linattn lab features denominator --quick --out runs/lab
  linattn lab all --report lab                     one page with everything, readable without a network
Each experiment takes minutes on two cores and writes NAME.md (a paragraph with its figures), NAME.json and its pictures
(SVG) into --out. With --report they go into that directory, and index.html shows them all. What is there already is not
run again, unless --again says so: a report that was stopped goes on with the same command.)";

struct Stopped {};

std::vector<Experiment> Chosen(const std::vector<std::string>& names) {
  std::vector<Experiment> chosen;
  for (const std::string& name : names) {
    if (name == "all") return {AllExperiments().begin(), AllExperiments().end()};
    chosen.push_back(ExperimentByName(name));
  }
  return chosen;
}

LabResult RunOne(const Experiment& experiment, const LabFlags& flags, const std::string& directory,
                 int (*signal)()) {
  Progress progress(0, stderr, flags.quiet);
  if (!flags.quiet) progress.Note(fmt::format("{}: {}", experiment.name, experiment.question));
  LabOptions options = flags.options;
  options.directory = directory;
  options.signal = signal;
  options.progress = [&](int64_t done, int64_t total, const std::string& what) {
    if (signal() != 0) throw Stopped();
    progress.Update(done, fmt::format("of {}: {}", total, what));
  };
  return experiment.run(options);
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
  verb.add_option("--model", f.options.model, "of swap: a model file whose attention is softmax");
  verb.add_option("--data", f.options.data, "of swap: what the model learned (fashion-mnist)");
  verb.add_option("--seed", f.options.seed, "of random numbers");
  verb.add_flag("--quick", f.options.quick, "smaller sizes: a first look");
  verb.add_flag("--again", f.again, "run what has a result already");
  verb.add_flag("--json", f.json, "print the figures as JSON");
  verb.add_option("--threads", f.threads, "default: all cores")->check(CLI::Range(1, 1024));
  verb.add_flag("--quiet,-q", f.quiet, "no progress");
}

int RunLab(const LabFlags& flags, int (*signal)()) {
  const std::string directory = flags.report.empty() ? flags.out : flags.report;
  std::vector<std::pair<Experiment, LabResult>> results;
  for (const Experiment& experiment : Chosen(flags.names)) {
    LabResult result;
    if (flags.again || !LoadResult(experiment, directory, result)) {
      try {
        result = RunOne(experiment, flags, directory, signal);
      } catch (const Stopped&) {
        fmt::print(stderr, "stopped; what is done is in {}; go on with the same command\n",
                   directory);
        return 128 + signal();
      }
      SaveResult(experiment, result, directory);
    }
    if (flags.json)
      fmt::print("{}\n", result.figures);
    else
      fmt::print("{}\n{}\n\n", experiment.name, result.paragraph);
    std::fflush(stdout);
    results.emplace_back(experiment, std::move(result));
  }
  if (!flags.report.empty()) {
    const std::string page = directory + "/index.html";
    WriteFileAtomic(page, LabPage(results));
    if (!flags.json) fmt::print("{}\n", page);
  }
  return 0;
}

}  // namespace linattn
