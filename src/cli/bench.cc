#include <omp.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/error.h"
#include "cli/console.h"
#include "cli/loaded_model.h"
#include "cli/verbs.h"
#include "kernels/machine_peak.h"
#include "runtime/session.h"

namespace linattn::cli {
namespace {

constexpr const char* kExamples = R"(
Examples:
  linattn bench                                     cifar10, random weights, batch 1 and 32
  linattn bench cifar10 --mixer softmax --batch 1 --tokens 3072
  linattn bench model.safetensors --batch 1,16,64 --json
MODEL is a file, or mnist, cifar10 or fashion-small with random weights. Times are of steps alone, one token for
every sequence, without sampling: the median of the rounds, and their spread. Run nothing beside it.)";

using Clock = std::chrono::steady_clock;

struct Options {
  std::string model = "cifar10", mixer = "linear";
  std::vector<int64_t> batches = {1, 32};
  int64_t tokens = 0, rounds = 3;
  bool json = false;
};

PackedModel MakeModel(const Options& o) {
  for (const char* name : {"mnist", "cifar10", "fashion-small"}) {
    if (o.model != name) continue;
    const ModelConfig config = NamedConfig(name, o.mixer);
    return PackedModel(config, RandomTensors(config, 1));
  }
  return PackedModel::Load(o.model);
}

// Seconds of `tokens` steps from an empty sequence.
double Round(Session& session, int64_t tokens) {
  const ModelConfig& c = session.model().config();
  std::vector<int64_t> slots(session.slots());
  std::iota(slots.begin(), slots.end(), 0);
  std::vector<int32_t> next(slots.size(), static_cast<int32_t>(c.start_token(0)));
  for (const int64_t slot : slots) session.Reset(slot);
  const auto start = Clock::now();
  for (int64_t t = 0; t < tokens; ++t) {
    ThrowIfInterrupted();
    session.Step(slots, next);
    for (size_t i = 0; i < next.size(); ++i) {
      next[i] = static_cast<int32_t>((t * 37 + static_cast<int64_t>(i) * 11) % c.vocab);
    }
  }
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Multiplications and additions of the weight matrices for one token; the mixers' own are not
// counted.
double FlopsOfToken(const ModelConfig& c) {
  double flops = 0;
  for (const ParameterSpec& spec : Parameters(c)) {
    const bool matrix = spec.shape.size() == 2 && spec.name.find("embed") == std::string::npos &&
                        spec.name.find("position") == std::string::npos;
    if (matrix) flops += 2.0 * static_cast<double>(spec.shape[0] * spec.shape[1]);
  }
  return flops;
}

struct Timing {
  int64_t batch = 0, tokens = 0;
  double seconds = 0, spread = 0;  // median of the rounds; (slowest - fastest) / median
  bool whole = false;  // stands for a whole picture: with a cache only the full length does

  double tokens_per_s() const { return static_cast<double>(tokens * batch) / seconds; }
  double us_per_step() const { return seconds / static_cast<double>(tokens) * 1e6; }
};

Timing Measure(const Options& o, const PackedModel& model, int64_t batch) {
  const int64_t max_len = model.config().max_len;
  Session session(model, batch);
  // A state mixer's steps all cost the same, so about a second of them stands for all; a cache's
  // grow, so all are run.
  bool constant = true;
  for (int64_t i = 0; i < model.config().layers(); ++i) {
    constant &= model.mixer(i).family == Family::kState;
  }
  constexpr int64_t kWarmUp = 8;
  const double step = Round(session, std::min(max_len, kWarmUp)) / kWarmUp;
  const int64_t enough = constant ? std::max(kWarmUp, static_cast<int64_t>(1 / step)) : max_len;
  const int64_t tokens = std::min(max_len, o.tokens > 0 ? o.tokens : enough);
  std::vector<double> seconds;
  for (int64_t i = 0; i < o.rounds; ++i) seconds.push_back(Round(session, tokens));
  std::sort(seconds.begin(), seconds.end());
  const double median = seconds[seconds.size() / 2];
  return {batch, tokens, median, (seconds.back() - seconds.front()) / median,
          constant || tokens == max_len};
}

void Report(const Options& o, const ModelConfig& c, const Timing& t, double peak) {
  const double images = t.tokens_per_s() / static_cast<double>(c.max_len);
  const double gflops = t.tokens_per_s() * FlopsOfToken(c) / 1e9;
  if (o.json) {
    const nlohmann::json json = {
        {"model", o.model},
        {"mixer", c.mixers[0]},
        {"batch", t.batch},
        {"tokens", t.tokens},
        {"threads", omp_get_max_threads()},
        {"us_per_step", t.us_per_step()},
        {"tokens_per_s", t.tokens_per_s()},
        {"images_per_s", t.whole ? nlohmann::json(images) : nlohmann::json()},
        {"matrix_gflops", gflops},
        {"fma_peak_gflops", peak},
        {"spread", t.spread}};
    return Print("{}\n", json.dump());
  }
  Print("{:>5}  {:>6}  {:>9.1f}  {:>9.0f}  {:>9}  {:>7.1f}  {:>5.1f}%  {:>5.1f}%\n", t.batch,
        t.tokens, t.us_per_step(), t.tokens_per_s(), t.whole ? fmt::format("{:.3f}", images) : "-",
        gflops, 100 * gflops / peak, 100 * t.spread);
}

void Run(const Options& o) {
  const PackedModel model = MakeModel(o);
  const double peak = MeasureFmaPeak();
  if (!o.json) {
    Print("{}, {} layers of {}; {} threads, float32 FMA peak {:.0f} GFLOP/s (measured now)\n",
          o.model, model.config().layers(), model.config().mixers[0], omp_get_max_threads(), peak);
    Print("batch  tokens    us/step   tokens/s   images/s  GFLOP/s    peak  spread\n");
  }
  for (const int64_t batch : o.batches) Report(o, model.config(), Measure(o, model, batch), peak);
}

}  // namespace

void AddBench(CLI::App& app, Common& common) {
  CLI::App& verb = *app.add_subcommand("bench", "time decoding, against the machine's own peak");
  auto o = std::make_shared<Options>();
  AddModelArgument(verb, o->model);
  verb.add_option("--mixer", o->mixer, "of a named model's layers (linear)");
  verb.add_option("--batch", o->batches, "sequences that are stepped together (1,32)")
      ->delimiter(',')
      ->check(CLI::Range(1, 4096));
  verb.add_option("--tokens", o->tokens, "steps a round")->check(CLI::Range(int64_t{1}, kMany));
  verb.add_option("--rounds", o->rounds, "rounds (3)")->check(CLI::Range(1, 1000));
  verb.add_flag("--json", o->json, "a line of JSON a batch");
  AddCommon(verb, common);
  verb.footer(kExamples);
  verb.callback([o] { Run(*o); });
}

}  // namespace linattn::cli
