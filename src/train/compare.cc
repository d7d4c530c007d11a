#include "train/compare.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "base/child_process.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "model/layer.h"
#include "tasks/task.h"
#include "train/compare_report.h"
#include "train/config.h"
#include "train/mixer_spec.h"

namespace linattn {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr int64_t kEvaluations = 10;  // of each run, unless the user sets eval_every

struct StoppedEarly {};  // by a signal, before there is a plan

struct Entry {
  MixerSpec spec;
  RunConfig config;
};

class Comparison {
 public:
  explicit Comparison(const CompareOptions& options)
      : o_(options),
        trainer_(fs::read_symlink("/proc/self/exe").string()),
        runtime_(SiblingProgram("linattn", "compare")) {
    Resolve();
    Plan();
    CheckEarlierRuns();
  }

  CompareResult Run() {
    fs::create_directories(o_.directory + "/configs");
    for (size_t i = 0; i < entries_.size() && !Stopped(); ++i) {
      const Entry& entry = entries_[i];
      Note("[{}/{}] {}: {} parameters, mlp_dim {}", i + 1, entries_.size(), entry.spec.text,
           TrainedParameters(entry.config.model), entry.config.model.mlp_dim);
      if (!Finished(entry) && !TrainAndMeasure(entry) && !Stopped())
        failed_.push_back(entry.spec.text);
      Report();
    }
    return {Stopped(), failed_};
  }

 private:
  template <class... Args>
  void Note(fmt::format_string<Args...> format, Args&&... args) const {
    if (o_.log == nullptr) return;
    fmt::print(o_.log, "{}\n", fmt::format(format, std::forward<Args>(args)...));
    std::fflush(o_.log);
  }

  bool Stopped() const { return o_.signal && o_.signal() != 0; }
  ChildResult Child(const std::vector<std::string>& words, bool capture = false) const {
    return RunChild(words, {.capture = capture || o_.log == nullptr,
                            .output = o_.log ? fileno(o_.log) : -1,
                            .signal = o_.signal});
  }

  std::string DirectoryOf(const Entry& entry) const {
    return o_.directory + "/" + entry.spec.directory;
  }
  std::string ResultOf(const Entry& entry) const { return DirectoryOf(entry) + "/result.json"; }

  bool UserSets(const std::string& key) const {
    return std::any_of(o_.sets.begin(), o_.sets.end(),
                       [&](const std::string& set) { return set.starts_with(key + "="); });
  }

  // Every config, and the data: what is wrong with them is said now.
  void Resolve() {
    Check((o_.steps > 0) != (o_.minutes > 0), "compare",
          "one of --steps and --minutes must be given, but {} are", o_.steps > 0 ? "both" : "none");
    Check(!o_.mixers.empty(), "compare", "there must be at least one mixer, but are none");
    std::set<std::string> directories;
    for (const std::string& text : o_.mixers) {
      Entry entry{ParseMixerSpec(text), {}};
      Check(directories.insert(entry.spec.directory).second, "compare",
            "every mixer must be there once, but '{}' is there twice", text);
      std::vector<std::string> sets = {"train.minutes=0", "train.sample_every=0",
                                       "train.checkpoint_every=0", "train.keep=1",
                                       "train.export_weights=last"};
      sets.insert(sets.end(), o_.sets.begin(), o_.sets.end());
      sets.insert(sets.end(), entry.spec.sets.begin(), entry.spec.sets.end());
      entry.config = ResolveConfig(o_.config, sets);
      CheckRunConfig(entry.config);
      entries_.push_back(std::move(entry));
    }
    const RunConfig& c = entries_.front().config;
    const auto task = MakeTask({c.model, c.data, c.train.batch, c.train.eval_examples,
                                static_cast<uint64_t>(c.train.seed)});
    facts_.metric = task->metrics().front().name;
    figures_ = task->metrics();
    facts_.axis = task->axis();
    facts_.data = task->Summary();
    eval_batches_ = task->eval_batches();
    for (Entry& entry : entries_) task->FitModel(entry.config.model);
  }

  // The steps and parameters that all share: the directory's, if it has them, else new ones.
  void Plan() {
    const std::string path = o_.directory + "/plan.json";
    const ModelConfig& first = entries_.front().config.model;
    int64_t steps = o_.steps, parameters = TrainedParameters(first);
    int64_t state = StateBytes(first, first.max_len);
    const bool planned = fs::exists(path);
    if (planned) {
      const Json plan = ParseJson(AsText(ReadFile(path, "compare")), "compare", path);
      parameters = plan.at("parameters");
      state = plan.at("state");
      Check(o_.steps == 0 || plan.at("steps") == o_.steps, "compare",
            "{} is planned with {} steps, so --steps must be that, but is {} (choose another "
            "directory by --out)",
            o_.directory, plan.at("steps").get<int64_t>(), o_.steps);
      Check(o_.minutes == 0 || plan.at("minutes") == o_.minutes, "compare",
            "{} is planned with {} minutes, so --minutes must be that, but is {} (choose another "
            "directory by --out)",
            o_.directory, plan.at("minutes").get<double>(), o_.minutes);
      steps = plan.at("steps");
    }
    if (o_.equal_state) {
      facts_.state = state;
      for (Entry& entry : entries_) MatchState(state, entry.config.model);
    }
    for (Entry& entry : entries_) MatchParameters(entry.spec.text, parameters, entry.config.model);
    if (steps == 0) steps = StepsFromPilot();
    if (!planned) {
      fs::create_directories(o_.directory);
      WriteFileAtomic(path, Json{{"steps", steps},
                                 {"minutes", o_.minutes},
                                 {"parameters", parameters},
                                 {"state", state}}
                                    .dump() +
                                "\n");
    }
    for (Entry& entry : entries_) {
      entry.config.train.steps = steps;
      if (!UserSets("train.eval_every"))
        entry.config.train.eval_every = (steps + kEvaluations - 1) / kEvaluations;
    }
    Describe(parameters);
  }

  void Describe(int64_t parameters) {
    const ModelConfig& m = entries_.front().config.model;
    const TrainConfig& t = entries_.front().config.train;
    facts_.model = fmt::format("{} layers of width {}, {} heads of {}, T = {}, {} blocks",
                               m.layers(), m.dim, m.heads, m.head_dim, m.max_len, m.block);
    facts_.command = o_.command;
    facts_.steps = t.steps, facts_.batch = t.batch * t.accumulate;
    facts_.parameters = parameters, facts_.eval_examples = t.eval_examples;
    facts_.threads = o_.threads;
  }

  // A few steps of every mixer; it also shows whether all of them can be trained at all.
  int64_t StepsFromPilot() {
    constexpr int64_t kSteps = 8;
    const std::string pilot = o_.directory + "/pilot";
    double total_s = 0;
    fs::remove_all(pilot);
    fs::create_directories(pilot);
    for (Entry entry : entries_) {
      TrainConfig& t = entry.config.train;
      t.steps = kSteps, t.log_every = 1, t.eval_every = 0, t.eval_examples = 1;
      const std::string run = pilot + "/" + entry.spec.directory;
      WriteFileAtomic(run + ".toml", ToToml(entry.config));
      const ChildResult child =
          Child(Words({trainer_, "train", run + ".toml", "--out", run}, true));
      Check(child.status == 0 || Stopped(), "compare",
            "the first steps of '{}' must succeed, but do not (see above)", entry.spec.text);
      if (Stopped()) throw StoppedEarly();
      const double step_s = SecondsPerStep(run);
      Note("pilot: {}: {:.3g} s a step, {:.0f} MB", entry.spec.text, step_s,
           static_cast<double>(child.peak_bytes) / 1e6);
      total_s += step_s;
    }
    fs::remove_all(pilot);
    // A batch of an evaluation goes forward only; the last twentieth is for what else there is.
    const double mean_s = total_s / static_cast<double>(entries_.size());
    const double all = 0.95 * o_.minutes * 60 / mean_s;
    const double evaluations = 0.35 * static_cast<double>((kEvaluations + 1) * eval_batches_);
    const auto steps = std::max<int64_t>(1, std::llround(std::max(all - evaluations, all / 2)));
    Note("{} steps of each mixer", steps);
    return steps;
  }

  // Runs that are there must be of these settings.
  void CheckEarlierRuns() const {
    for (const Entry& entry : entries_) {
      const std::string path = DirectoryOf(entry) + "/config.toml";
      if (!fs::exists(path)) continue;
      const RunConfig was = ResolveConfig(path, {});
      std::string difference = TrajectoryDifference(was, entry.config);
      if (difference.empty() && was.train.steps != entry.config.train.steps)
        difference =
            fmt::format("train.steps ({}, not {})", was.train.steps, entry.config.train.steps);
      Check(difference.empty(), "compare",
            "{} must be of the same settings, but differs in {} (choose another directory by "
            "--out)",
            DirectoryOf(entry), difference);
    }
  }

  bool Finished(const Entry& entry) const { return fs::exists(ResultOf(entry)); }

  std::vector<std::string> Words(std::vector<std::string> words, bool quiet) const {
    words.insert(words.end(), {"--threads", std::to_string(o_.threads)});
    if (quiet || o_.log == nullptr) words.push_back("--quiet");
    return words;
  }

  // False if it was stopped or failed; what went wrong has then been said by the child.
  bool TrainAndMeasure(const Entry& entry) const {
    const std::string run = DirectoryOf(entry);
    const std::string config = o_.directory + "/configs/" + entry.spec.directory + ".toml";
    WriteFileAtomic(config, ToToml(entry.config));
    const bool begun = fs::exists(run + "/config.toml");
    const ChildResult child =
        Child(begun ? Words({trainer_, "train", "--resume", run}, false)
                    : Words({trainer_, "train", config, "--out", run}, false));
    const int64_t peak = KeepPeak(run, child.peak_bytes);
    if (child.status != 0 || Stopped()) return false;
    // A run whose log was closed ends early without an error.
    const auto curve = EvaluationCurve(run, facts_.metric);
    const auto steps = static_cast<double>(entry.config.train.steps);
    if (curve.empty() || curve.back().first < steps) return false;
    const std::optional<double> tokens_per_s = Decode(entry.config.model, run);
    if (!tokens_per_s) return false;
    const ModelConfig& model = entry.config.model;
    const ComparedMixer result{.mixer = entry.spec.text,
                               .directory = entry.spec.directory,
                               .parameters = TrainedParameters(model),
                               .mlp_dim = model.mlp_dim,
                               .steps = entry.config.train.steps,
                               .value = curve.back().second,
                               .profile = Profile(run),
                               .step_s = SecondsPerStep(run),
                               .minutes = SecondsOfRun(run) / 60,
                               .peak_bytes = peak,
                               .tokens_per_s = *tokens_per_s,
                               .state_bytes = StateBytes(model, model.max_len)};
    WriteFileAtomic(ResultOf(entry), Json(result).dump(2) + "\n");
    return true;
  }

  // The last evaluation's metrics that have a place on the task's axis.
  std::vector<std::pair<double, double>> Profile(const std::string& run) const {
    std::vector<std::pair<double, double>> profile;
    for (const Metric& metric : figures_) {
      if (!metric.at) continue;
      const auto curve = EvaluationCurve(run, metric.name);
      if (!curve.empty()) profile.emplace_back(*metric.at, curve.back().second);
    }
    return profile;
  }

  // The largest peak of the processes that have trained `run`: one that is resumed has several.
  static int64_t KeepPeak(const std::string& run, int64_t peak) {
    const std::string path = run + "/peak.json";
    if (fs::exists(path)) {
      const Json json = ParseJson(AsText(ReadFile(path, "compare")), "compare", path);
      peak = std::max(peak, json.at("peak_bytes").get<int64_t>());
    }
    if (fs::exists(run)) WriteFileAtomic(path, Json{{"peak_bytes", peak}}.dump() + "\n");
    return peak;
  }

  // Tokens a second of one sequence in the lean runtime; 0 of models that do not write.
  std::optional<double> Decode(const ModelConfig& config, const std::string& run) const {
    if (!config.causal || config.reads_frames()) return 0;
    const std::string model = run + "/model.safetensors";
    const ChildResult child =
        Child(Words({runtime_, "bench", "decode", model, "--seconds", "1", "--json"}, true), true);
    if (child.status != 0) return std::nullopt;
    return ParseJson(child.output, "compare", "the output of linattn bench")
        .at("tokens_per_second");
  }

  void Report() const {
    std::vector<ComparedMixer> results;
    for (const Entry& entry : entries_) {
      if (!Finished(entry)) continue;
      const std::string path = ResultOf(entry);
      results.push_back(ParseJson(AsText(ReadFile(path, "compare")), "compare", path));
    }
    WriteComparison(o_.directory, facts_, results);
    if (results.size() == entries_.size()) Note("\n{}", ComparisonTable(facts_.metric, results));
  }

  const CompareOptions& o_;
  std::string trainer_, runtime_;
  std::vector<Entry> entries_;
  std::vector<std::string> failed_;
  ComparisonFacts facts_;
  std::vector<Metric> figures_;
  int64_t eval_batches_ = 0;
};

}  // namespace

CompareResult Compare(const CompareOptions& options) {
  try {
    return Comparison(options).Run();
  } catch (const StoppedEarly&) {
    return {.stopped = true, .failed = {}};
  }
}

}  // namespace linattn
