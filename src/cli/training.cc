#include "cli/training.h"

#include <fmt/format.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "cli/verbs.h"

namespace linattn::cli {
namespace {

constexpr std::string_view kProgram = "linattn-train";
constexpr std::pair<const char*, const char*> kVerbs[] = {
    {"train", "train a model, or go on with a run (see: train --help)"},
    {"export", "write a run's weights as a model file"},
    {"compare", "train several mixers alike, and compare"},
    {"linearize", "turn a trained model's softmax into linear attention"},
    {"lab", "see where linear attention breaks, and what it buys"}};

std::filesystem::path OwnPath() { return std::filesystem::read_symlink("/proc/self/exe"); }

std::filesystem::path ProgramPath() { return OwnPath().parent_path() / kProgram; }

[[noreturn]] void Execute(std::vector<std::string> arguments) {
  const std::filesystem::path own = OwnPath(), program = ProgramPath();
  if (!std::filesystem::exists(program)) {
    Fail(
        arguments[0],
        "'{}' must be beside {}, but is not: this is the lean build, which generates and evaluates "
        "only. To train, install libtorch-dev (scripts/setup does) and build with: "
        "cmake --preset release && cmake --build --preset release",
        kProgram, own.string());
  }
  arguments.insert(arguments.begin(), program.string());
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  // As linattn-train wants them; saves it a second start.
  setenv("OMP_WAIT_POLICY", "passive", 0);
  setenv("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1", 0);
  execv(program.c_str(), argv.data());
  throw Error(arguments[1], fmt::format("cannot run {}: {}", program.string(), strerror(errno)),
              Fault::kInternal);
}

// Whether the words that begin with a verb are for the other program. Kernels are measured there
// for the sake of LibTorch's figures, and here where it is missing.
bool IsTraining(int argc, char** argv) {
  const std::string_view verb = argv[0], second = argc > 1 ? argv[1] : "";
  if (verb == "bench") return second == "train" || (second == "kernels" && HasTrainingProgram());
  return std::any_of(std::begin(kVerbs), std::end(kVerbs),
                     [&](const auto& of) { return of.first == verb; });
}

}  // namespace

bool HasTrainingProgram() { return std::filesystem::exists(ProgramPath()); }

void DispatchTraining(int argc, char** argv) {
  std::vector<std::string> common;  // options before the verb go behind it
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (IsTraining(argc - i, argv + i)) {
      std::vector<std::string> arguments(argv + i, argv + argc);
      arguments.insert(arguments.end(), common.begin(), common.end());
      Execute(std::move(arguments));
    }
    const bool takes_value = argument == "--threads" && i + 1 < argc;
    const bool quiet = argument == "--quiet" || argument == "-q";
    if (!takes_value && !quiet && !argument.starts_with("--threads=")) return;
    common.emplace_back(argument);
    if (takes_value) common.emplace_back(argv[++i]);
  }
}

void AddTrainingVerbs(CLI::App& app) {
  // Listed for --help; DispatchTraining has taken them before the parser sees them, unless
  // something else than the common options stands in front.
  for (const auto& [name, what] : kVerbs) {
    app.add_subcommand(name, what)->callback([name = name] {
      Fail(name, "only --threads and --quiet may stand before '{}', but something else does", name);
    });
  }
}

}  // namespace linattn::cli
