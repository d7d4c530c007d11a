#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <malloc.h>
#include <omp.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "base/error.h"
#include "base/interrupt.h"
#include "train/bench_verb.h"
#include "lab/lab_verb.h"
#include "train/compare_verb.h"
#include "train/linearize_verb.h"
#include "train/loop.h"
#include "train/throughput.h"

// linattn-train: the verbs of `linattn` that need LibTorch. Exit status as cli/main.cc has it.
namespace linattn {
namespace {

struct TrainFlags {
  std::string config, mixer, block, dtype, data, out, resume;
  std::vector<std::string> sets;
  int64_t steps = 0, batch = 0, seed = 0;
  double minutes = 0, lr = 0;
  bool skip_nonfinite = false, quiet = false;
  int threads = 0;
};

struct ExportFlags {
  std::string run, out, dtype = "f32";
  bool last = false, quiet = false;
  int threads = 0;
};

constexpr const char* kTrainExamples = R"(
Examples:
  linattn train                                    fashion-small on Fashion-MNIST
  linattn train --minutes 10 --mixer softmax --out runs/softmax
  linattn train configs/cifar10-paper.toml --data cifar10:DIR --set train.accumulate=4
  linattn train configs/text.toml --data book.txt --steps 2000
  linattn train --resume runs/softmax              go on where it stopped
Progress goes to standard output, everything else into the run's directory.)";

constexpr const char* kExportExamples = R"(
Examples:
  linattn export runs/softmax --out model.safetensors
  linattn export runs/softmax --dtype f16 --out small.safetensors)";

// A limit on what malloc gives back to the system: tensors of a step are as large as those of the
// next, and page faults on every call cost several times the arithmetic.
void KeepMemory() {
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, 2047 << 20);
  mallopt(M_TOP_PAD, 64 << 20);
}

// malloc on large pages: a step takes 3 to 5% less. glibc reads this before main; SleepWhenWaiting
// starts the program once more.
void UseLargePages() { setenv("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1", 0); }

void SetThreads(int threads) {
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  const int count = threads > 0 ? threads : std::max(1, cores);
  omp_set_num_threads(count);
  at::set_num_threads(count);
}

// "runs/linear", or "runs/linear-2", ...: the first that does not exist.
std::string FreshDirectory(const RunConfig& config) {
  const std::string stem = "runs/" + config.model.task + "-" + config.model.mixers.front();
  std::string directory = stem;
  for (int i = 2; std::filesystem::exists(directory); ++i)
    directory = fmt::format("{}-{}", stem, i);
  return directory;
}

std::vector<std::string> Overrides(const CLI::App& app, const TrainFlags& flags) {
  std::vector<std::string> sets;
  const auto add = [&](const char* flag, const char* key, const auto& value) {
    if (app.count(flag) > 0) sets.push_back(fmt::format("{}={}", key, value));
  };
  add("--mixer", "model.mixer", flags.mixer);
  add("--block", "model.block", flags.block);
  add("--minutes", "train.minutes", flags.minutes);  // before --steps: both may be given
  add("--steps", "train.steps", flags.steps);
  add("--batch", "train.batch", flags.batch);
  add("--lr", "train.lr", flags.lr);
  add("--dtype", "train.dtype", flags.dtype);
  add("--seed", "train.seed", flags.seed);
  add("--data", "data.source", flags.data);
  add("--skip-nonfinite", "train.skip_nonfinite", flags.skip_nonfinite);
  sets.insert(sets.end(), flags.sets.begin(), flags.sets.end());
  return sets;
}

void AddTrain(CLI::App& app, TrainFlags& flags) {
  app.footer(kTrainExamples);
  app.add_option("config", flags.config, "TOML file with the tables model, data and train")
      ->check(CLI::ExistingFile);
  app.add_option("--set", flags.sets, "override a key of the config: train.lr=1e-3")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  app.add_option("--mixer", flags.mixer,
                 "attention of every layer; \"a,b\" or \"3x a + 1x b\" cycles through the layers");
  app.add_option("--block", flags.block,
                 "classic (LayerNorm, GELU) or modern (RMSNorm, SwiGLU, short convolutions)");
  app.add_option("--steps", flags.steps, "updates in all")
      ->check(CLI::Range(int64_t{0}, int64_t{1'000'000'000'000}));
  app.add_option("--minutes", flags.minutes, "time in all; steps follow from the speed")
      ->check(CLI::Range(0.001, 1e6));
  app.add_option("--batch", flags.batch, "sequences a forward pass");
  app.add_option("--lr", flags.lr, "learning rate at the end of the warm-up");
  app.add_option("--dtype", flags.dtype, "of activations and products: f32 or bf16");
  app.add_option("--seed", flags.seed, "of weights, data order, dropout and samples");
  app.add_option("--data", flags.data,
                 "fashion-mnist, mnist:DIR, cifar10:DIR, png:DIR, or a text file");
  auto* out = app.add_option("--out", flags.out, "directory of the run (default: runs/...)");
  app.add_option("--resume", flags.resume, "go on with the run in this directory")
      ->check(CLI::ExistingDirectory)
      ->excludes(out);
  app.add_flag("--skip-nonfinite", flags.skip_nonfinite,
               "leave out steps whose loss or gradient is not finite, instead of stopping");
  app.add_option("--threads", flags.threads, "default: all cores")->check(CLI::Range(1, 1024));
  app.add_flag("--quiet,-q", flags.quiet, "print nothing but errors");
}

void AddExport(CLI::App& app, ExportFlags& flags) {
  app.footer(kExportExamples);
  app.add_option("run", flags.run, "directory of a run")->required()->check(CLI::ExistingDirectory);
  app.add_option("--out", flags.out, "model file to write (default: RUN/model.safetensors)");
  app.add_option("--dtype", flags.dtype, "of the stored weights: f32, f16 or bf16");
  app.add_flag("--last", flags.last, "the newest checkpoint's weights, not the best's");
  app.add_option("--threads", flags.threads, "default: all cores")->check(CLI::Range(1, 1024));
  app.add_flag("--quiet,-q", flags.quiet, "print nothing but errors");
}

// A wrong directory is named as such before anything is read from it.
void CheckRunDirectory(const char* verb, const std::string& directory) {
  Check(std::filesystem::exists(directory + "/config.toml"), verb,
        "'{}' must be a run's directory, but holds no config.toml", directory);
}

int RunTrain(const CLI::App& app, const TrainFlags& flags) {
  KeepMemory();
  SetThreads(flags.threads);
  InstallInterruptHandlers();
  const bool resume = !flags.resume.empty();
  Check(!resume || flags.config.empty(), "train",
        "--resume takes the run's own config, so no config file may be given");
  if (resume) CheckRunDirectory("train", flags.resume);
  const std::string path = resume ? flags.resume + "/config.toml" : flags.config;
  const RunConfig config = ResolveConfig(path, Overrides(app, flags));
  RunOptions options;
  options.log = stdout;
  options.quiet = flags.quiet;
  if (!flags.quiet) options.peak_gflops = PeakGflops(config.train.dtype);
  options.stop = [] { return InterruptSignal() != 0; };
  options.directory = resume              ? flags.resume
                      : flags.out.empty() ? FreshDirectory(config)
                                          : flags.out;
  const RunResult result = resume ? Resume(config, options) : Train(config, options);
  const std::string& run = options.directory;
  switch (result.end) {
    case RunResult::End::kLogClosed:
      return 0;
    case RunResult::End::kStopped:
      fmt::print(stderr, "stopped after step {}; go on with: linattn train --resume {}\n",
                 result.state.step, run);
      return 128 + InterruptSignal();
    case RunResult::End::kFinished:
      break;
  }
  if (!flags.quiet) {
    fmt::print("{} steps in {:.1f} minutes; model: {}/model.safetensors\n", result.state.step,
               result.state.wall_s / 60, run);
  }
  return 0;
}

int RunExport(const ExportFlags& flags) {
  const std::string out = flags.out.empty() ? flags.run + "/model.safetensors" : flags.out;
  CheckRunDirectory("export", flags.run);
  SetThreads(flags.threads);
  const std::string checkpoint = ExportRun(flags.run, out, flags.dtype, !flags.last);
  if (!flags.quiet) fmt::print("{} -> {}\n", checkpoint, out);
  return 0;
}

int Main(int argc, char** argv) {
  UseLargePages();
  SleepWhenWaiting(argv);
  CLI::App app("Trains transformers whose attention is a recurrence.", "linattn");
  app.set_version_flag("--version", "linattn " LINATTN_VERSION);
  app.require_subcommand(1);
  TrainFlags train_flags;
  ExportFlags export_flags;
  CompareFlags compare_flags;
  BenchTrainFlags bench_flags;
  BenchKernelFlags kernel_flags;
  LinearizeFlags linearize_flags;
  LabFlags lab_flags;
  CLI::App& train = *app.add_subcommand("train", "train a model, or go on with a run");
  CLI::App& to_export = *app.add_subcommand("export", "write a run's weights as a model file");
  AddTrain(train, train_flags);
  CLI::App& compare = *app.add_subcommand("compare", "train several mixers alike, and compare");
  AddExport(to_export, export_flags);
  AddCompare(compare, compare_flags);
  CLI::App& linearize = *app.add_subcommand(
      "linearize", "turn a trained model's softmax into linear attention");
  AddLinearize(linearize, linearize_flags);
  CLI::App& lab = *app.add_subcommand("lab", "see where linear attention breaks, and what it buys");
  AddLab(lab, lab_flags);
  CLI::App& bench = *app.add_subcommand("bench", "measure")->require_subcommand(1);
  AddBenchTrain(*bench.add_subcommand("train", "time training steps, against the machine's peak"),
                bench_flags);
  CLI::App& kernels = *bench.add_subcommand("kernels", "time the mixers, against LibTorch too");
  AddBenchKernels(kernels, kernel_flags);
  try {
    app.parse(argc, argv);
    if (compare.parsed()) {
      InstallInterruptHandlers();
      return RunCompare(compare_flags, {argv + 1, argv + argc}, InterruptSignal);
    }
    if (linearize.parsed() || lab.parsed()) {
      KeepMemory();
      SetThreads(lab.parsed() ? lab_flags.threads : linearize_flags.threads);
      InstallInterruptHandlers();
      return lab.parsed() ? RunLab(lab_flags, InterruptSignal)
                          : RunLinearize(linearize_flags, InterruptSignal);
    }
    if (bench.parsed()) {
      KeepMemory();
      SetThreads(kernels.parsed() ? kernel_flags.threads : bench_flags.threads);
      InstallInterruptHandlers();
      if (kernels.parsed()) return RunBenchKernels(kernel_flags, InterruptSignal);
      return RunBenchTrain(bench_flags, InterruptSignal);
    }
    return train.parsed() ? RunTrain(train, train_flags) : RunExport(export_flags);
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() == 0) return app.exit(e);
    const std::string verb =
        app.get_subcommands().empty() ? "" : app.get_subcommands()[0]->get_name() + " ";
    fmt::print(stderr, "linattn: {} (see: linattn {}--help)\n", e.what(), verb);
    return 2;
  } catch (const Error& e) {
    fmt::print(stderr, "linattn: {}\n", e.what());
    return e.fault() == Fault::kCaller ? 2 : 1;
  } catch (const std::exception& e) {
    fmt::print(stderr, "linattn: {}\n", e.what());
    return 1;
  }
}

}  // namespace
}  // namespace linattn

int main(int argc, char** argv) { return linattn::Main(argc, argv); }
