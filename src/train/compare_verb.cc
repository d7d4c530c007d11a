#include "train/compare_verb.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <thread>

#include "train/compare.h"

namespace linattn {
namespace {

constexpr const char* kExamples = R"(
Examples:
  linattn compare --mixers linear,softmax --steps 500
  linattn compare --mixers linear,performer,gla,softmax --minutes 10 --out runs/four
  linattn compare --mixers "lsh:rounds=1,lsh:rounds=4,3x gated_delta + 1x softmax" --minutes 10
  linattn compare --mixers linear,linear:feature_map=dpfp --config configs/text.toml --data book.txt --steps 2000
  linattn compare --mixers gated_delta,linear,softmax --config configs/recall.toml --steps 1000 --equal-state
A mixer may be followed by options of the model, each behind a colon (lsh:rounds=4 sets lsh_rounds), or by its
layers= and lr= (the learning rate). All see the same
data in the same order for as many steps, each in a process of its own; mlp_dim is changed so that all have as many
parameters as the first. Evaluations are ten, samples none, unless --set says otherwise. The same command goes on where
it was stopped, and trains nothing twice: mixers may be added to the list. --out then holds compare.md, compare.json,
curves.svg, and a run for every mixer.)";

// As a shell takes it.
std::string Quoted(const std::string& word) {
  const bool plain = !word.empty() && std::all_of(word.begin(), word.end(), [](unsigned char c) {
    return std::isalnum(c) ||
           std::string_view("-_./=:,+").find(static_cast<char>(c)) != std::string_view::npos;
  });
  if (plain) return word;
  std::string quoted = "'";
  for (const char c : word) quoted += c == '\'' ? "'\\''" : std::string(1, c);
  return quoted + "'";
}

}  // namespace

void AddCompare(CLI::App& verb, CompareFlags& flags) {
  verb.footer(kExamples);
  verb.add_option("--mixers", flags.mixers, "what is compared, joined by commas")
      ->required()
      ->delimiter(',')
      ->type_name("LIST");
  auto* steps = verb.add_option("--steps", flags.steps, "updates of each mixer")
                    ->check(CLI::Range(int64_t{1}, int64_t{1'000'000'000}));
  verb.add_option("--minutes", flags.minutes,
                  "for each mixer on average; a few steps of all of them, first, tell how many "
                  "steps that are")
      ->check(CLI::Range(0.001, 1e6))
      ->excludes(steps);
  verb.add_option("--data", flags.data,
                  "fashion-mnist (the default), mnist:DIR, cifar10:DIR, png:DIR, or a text file");
  verb.add_option("--config", flags.config, "TOML file with the tables model, data and train")
      ->check(CLI::ExistingFile);
  verb.add_option("--set", flags.sets, "override a key of the config: train.lr=1e-3")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  verb.add_option("--out", flags.out, "directory (default: runs/compare)");
  verb.add_option("--threads", flags.threads, "default: all cores")->check(CLI::Range(1, 1024));
  verb.add_flag("--equal-state", flags.equal_state,
                "states as large as the first mixer's: by head_dim, features or window; what keeps "
                "every token stays as it is");
  verb.add_flag("--quiet,-q", flags.quiet, "print nothing but errors");
}

int RunCompare(const CompareFlags& flags, const std::vector<std::string>& arguments,
               int (*signal)()) {
  CompareOptions options;
  options.mixers = flags.mixers;
  options.config = flags.config;
  if (!flags.data.empty()) options.sets.push_back("data.source=" + flags.data);
  options.sets.insert(options.sets.end(), flags.sets.begin(), flags.sets.end());
  options.directory = flags.out;
  options.steps = flags.steps;
  options.minutes = flags.minutes;
  options.equal_state = flags.equal_state;
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  options.threads = flags.threads > 0 ? flags.threads : std::max(1, cores);
  options.command = "linattn";
  for (const std::string& word : arguments) options.command += " " + Quoted(word);
  options.log = flags.quiet ? nullptr : stdout;
  options.signal = signal;
  const CompareResult result = Compare(options);
  if (result.stopped) {
    fmt::print(stderr, "stopped; what is done is in {}/compare.md; go on with the same command\n",
               flags.out);
    return 128 + signal();
  }
  if (!result.failed.empty()) {
    fmt::print(stderr,
               "linattn: [compare] every mixer must succeed, but these do not (see above): {}; the "
               "others are in {}/compare.md\n",
               fmt::join(result.failed, ", "), flags.out);
    return 1;
  }
  if (!flags.quiet) fmt::print("{0}/compare.md, {0}/curves.svg\n", flags.out);
  return 0;
}

}  // namespace linattn
