#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <iterator>
#include <new>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/interrupt.h"
#include "cli/console.h"
#include "cli/training.h"
#include "cli/verbs.h"

// linattn: the lean front end. Nothing else prints errors or decides on the exit status: 0, 2 (the
// caller's fault), 1 (ours or the machine's), 130 (Ctrl-C), 143 (SIGTERM).
namespace linattn::cli {
namespace {

constexpr const char* kExamples = R"(
Examples:
  linattn generate model.safetensors --n 16 --out samples.png
  linattn complete model.safetensors --data fashion-mnist --out completions.png
  linattn eval model.safetensors --data fashion-mnist --limit 1000
  linattn inspect model.safetensors
  linattn transcribe speech.safetensors prompt.wav
  linattn train --minutes 10
Each verb has its own: linattn generate --help)";

int Report(const char* message, int status) {
  fmt::print(stderr, "linattn: {}\n", message);
  return status;
}

// Whether a verb is asked for that keeps threads busy.
bool NeedsThreads(int argc, char** argv) {
  constexpr std::string_view kVerbs[] = {"generate", "complete", "eval", "bench", "transcribe"};
  return std::any_of(argv, argv + argc, [&](const char* argument) {
    return std::find(std::begin(kVerbs), std::end(kVerbs), argument) != std::end(kVerbs);
  });
}

int Parse(int argc, char** argv) {
  CLI::App app("Transformers whose attention is a recurrence: generate, complete, evaluate, train.",
               "linattn");
  Common common;
  app.set_version_flag("--version", "linattn " LINATTN_VERSION);
  AddCommon(app, common);
  app.footer(kExamples);
  app.require_subcommand(1);
  AddGenerate(app, common);
  AddComplete(app, common);
  AddEval(app, common);
  AddInspect(app, common);
  AddConvert(app, common);
  AddBench(app, common);
  AddPlot(app, common);
  AddTranscribe(app, common);
  AddTrainingVerbs(app);
  if (argc == 1) {
    fmt::print(stderr, "{}", app.help());
    return 2;
  }
  const std::string_view first = argv[1];
  const auto named = [first](const CLI::App* verb) { return verb->get_name() == first; };
  Check(first.starts_with('-') || !app.get_subcommands(named).empty(), "linattn",
        "'{}' is no verb (see: linattn --help)", first);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() == 0) return app.exit(e);
    const std::string verb =
        app.get_subcommands().empty() ? "" : app.get_subcommands()[0]->get_name() + " ";
    return Report(fmt::format("{} (see: linattn {}--help)", e.what(), verb).c_str(), 2);
  }
  return 0;
}

int Main(int argc, char** argv) {
  try {
    DispatchTraining(argc, argv);
    if (NeedsThreads(argc, argv)) SleepWhenWaiting(argv);
    InstallSignalHandlers();
    const int status = Parse(argc, argv);
    Write(std::string_view());  // what is still buffered
    return status;
  } catch (const Interrupted&) {
    return Report("interrupted", 128 + InterruptSignal());
  } catch (const OutputClosed&) {
    return 0;
  } catch (const Error& e) {
    return Report(e.what(), e.fault() == Fault::kCaller ? 2 : 1);
  } catch (const std::bad_alloc&) {
    return Report("not enough memory", 1);
  } catch (const std::exception& e) {
    return Report(e.what(), 1);
  }
}

}  // namespace
}  // namespace linattn::cli

int main(int argc, char** argv) { return linattn::cli::Main(argc, argv); }
