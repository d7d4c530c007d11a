#include <omp.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>

#include "base/child_process.h"
#include "base/error.h"
#include "base/interrupt.h"
#include "bench/decode_bench.h"
#include "bench/kernel_bench.h"
#include "bench/memory_bench.h"
#include "bench/paper_bench.h"
#include "cli/console.h"
#include "cli/training.h"
#include "cli/verbs.h"

namespace linattn::cli {
namespace {

constexpr const char* kExamples = R"(
Examples:
  linattn bench decode --model cifar10 --mixer linear --batch 1 --dtype bf16 --threads 2 --json
  linattn bench kernels --mixer gla --pass forward --T 8192 --K 64 --V 64
  linattn bench all --quick
Each has its own: linattn bench decode --help. Run nothing beside a measurement.)";

bench::Output OutputFor(bool json, const Common& common) {
  return {.json = json,
          .print = [](const std::string& text) { Write(text); },
          .note =
              [quiet = json || common.quiet](const std::string& line) {
                if (!quiet) Write(line + "\n");
              },
          .check = ThrowIfInterrupted};
}

// Adds `name` with its options; `run(options, output)` is what it does.
template <class Options>
void AddOne(CLI::App& bench, Common& common, std::pair<const char*, const char*> name,
            void (*add)(CLI::App&, Options&), void (*run)(const Options&, const bench::Output&)) {
  CLI::App& verb = *bench.add_subcommand(name.first, name.second);
  auto options = std::make_shared<Options>();
  auto json = std::make_shared<bool>(false);
  add(verb, *options);
  verb.add_flag("--json", *json, "a line of JSON a row");
  AddCommon(verb, common);
  verb.callback([=, &common] { run(*options, OutputFor(*json, common)); });
}

void RunKernels(const bench::KernelOptions& o, const bench::Output& output) {
  bench::BenchKernels(o, nullptr, output);
}

constexpr const char* kAllExamples = R"(
Examples:
  linattn bench all --quick                 everything in about three minutes
  linattn bench all --json --threads 2 > rows.jsonl
Runs the others one after the other: decode (cifar10; linear in all types, softmax), kernels, train (if linattn-train is
here), memory, paper.)";

struct AllOptions {
  bool quick = false;
};

void AddAllOptions(CLI::App& verb, AllOptions& o) {
  verb.footer(kAllExamples);
  verb.add_flag("--quick", o.quick, "a part of the time, shorter sequences");
}

void RunAll(const AllOptions& o, const bench::Output& output) {
  const std::string own = std::filesystem::read_symlink("/proc/self/exe").string();
  std::vector<std::vector<std::string>> lines = {
      {"decode", "--batch", "1,64", "--dtype", "f32,bf16,int8"},
      {"decode", "--batch", "1,16", "--dtype", "bf16", "--mixer", "softmax"},
      {"kernels"},
      {"train"},
      {"memory"},
      {"paper"}};
  if (!HasTrainingProgram()) lines.erase(lines.begin() + 3);
  for (std::vector<std::string>& words : lines) {
    output.check();
    std::string line = "linattn bench";
    for (const std::string& word : words) line += " " + word;
    output.note("\n" + line + (o.quick ? " --quick" : ""));
    words.insert(words.begin(), {own, "bench"});
    words.insert(words.end(), {"--threads", std::to_string(omp_get_max_threads())});
    if (o.quick) words.emplace_back("--quick");
    if (output.json) words.emplace_back("--json");
    const ChildResult child = RunChild(words, {.capture = false, .signal = InterruptSignal});
    ThrowIfInterrupted();
    if (child.status == 0) continue;
    throw Error("bench", fmt::format("'{}' must end well, but ended with {}", line, child.status),
                Fault::kInternal);
  }
}

}  // namespace

void AddBench(CLI::App& app, Common& common) {
  CLI::App& bench = *app.add_subcommand("bench", "measure, against the machine's own limits");
  bench.require_subcommand(1);
  bench.footer(kExamples);
  AddOne(bench, common, {"decode", "time decoding, token by token"}, bench::AddDecodeOptions,
         bench::BenchDecode);
  AddOne(bench, common, {"kernels", "time the mixers' forward, backward and step"},
         bench::AddKernelOptions, RunKernels);
  AddOne(bench, common, {"memory", "time and bytes of a layer against the tokens, as pictures"},
         bench::AddMemoryOptions, bench::BenchMemory);
  AddOne(bench, common, {"paper", "the tables of the paper that linear attention comes from"},
         bench::AddPaperOptions, bench::BenchPaper);
  bench.add_subcommand("train", "time training steps (linattn-train)")->callback([] {
    Fail("bench", "nothing may stand between 'bench' and 'train', but something does");
  });
  AddOne(bench, common, {"all", "all of these, one after the other"}, AddAllOptions, RunAll);
}

}  // namespace linattn::cli
