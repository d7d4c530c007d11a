#include "bench/kernel_bench.h"

#include <omp.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "bench/machine.h"
#include "bench/timing.h"

namespace linattn::bench {
namespace {

constexpr const char* kExamples = R"(
Examples:
  linattn bench kernels --mixer linear --pass forward --T 8192 --K 64 --V 64
  linattn bench kernels --mixer gla,kda --pass step --B 64 --T 1024 --threads 1 --json
  linattn bench kernels --quick
Each row is checked before it is timed, on the very arrays: the first tokens of head 0 against the float64 reference
("checked_tokens"), and all of it against LibTorch's result where there is one. Times are medians; ours and LibTorch's
are taken in turns. gflops counts useful operations (backward: 2.5 times forward). fraction_of_peak is the least time
that the machine needs (operations at its float32 peak, or bytes at the bandwidth of the level that holds them,
whichever is more: "bound") over ours. ratio_to_libtorch is LibTorch's time over ours, for the same job in plain tensor
operations ("libtorch" says which); it needs linattn-train and is null without it.
forward, backward: B sequences of T tokens. step: one token of each of B sequences that hold T.)";

constexpr std::string_view kPasses[] = {"forward", "backward", "step"};

std::string_view NameOf(Pass pass) { return kPasses[static_cast<int>(pass)]; }

Pass PassByName(std::string_view name) {
  for (const Pass pass : {Pass::kForward, Pass::kBackward, Pass::kStep})
    if (NameOf(pass) == name) return pass;
  Fail("bench", "--pass must be forward, backward or step, but is '{}'", name);
}

std::vector<const Mixer*> MixersByName(const std::vector<std::string>& names) {
  std::vector<const Mixer*> mixers;
  for (const std::string& name : names) {
    if (name != "all") {
      mixers.push_back(&MixerByName(name));
      continue;
    }
    mixers.insert(mixers.end(), AllMixers().begin(), AllMixers().end());
  }
  return mixers;
}

constexpr int64_t kBurst =
    16;  // steps in a row: a sequence's state stays where it is from one to the next

// One row's problem, made and checked.
struct Case {
  const Mixer& mixer;
  Pass pass;
  Shape shape;
  std::unique_ptr<MixerProblem<float>> problem;  // null: steps
  std::unique_ptr<Scratch> scratch;
  std::unique_ptr<StepProblem> steps;
  int64_t checked = 0;

  Case(const Mixer& m, Pass p, const Shape& s) : mixer(m), pass(p), shape(s) {
    if (pass == Pass::kStep) {
      checked = CheckStepRight(mixer, shape);
      steps = std::make_unique<StepProblem>(mixer, shape);
      steps->Step();  // what a baseline's first step is compared with
      return;
    }
    problem = std::make_unique<MixerProblem<float>>(mixer, shape);
    if (pass == Pass::kBackward) problem->AddGradients();
    checked = CheckRight(mixer, pass, *problem);
    scratch = std::make_unique<Scratch>(mixer, problem->in);
    mixer.forward(problem->in, problem->out, scratch->get());
    if (pass == Pass::kBackward)
      mixer.backward(problem->in, problem->out, problem->grad, scratch->get());
  }

  const MixerProblem<float>& arrays() const { return steps ? steps->token : *problem; }

  Job MakeJob() {
    if (pass == Pass::kStep)
      return {[this] { steps->Step(); },
              [this] {
                if (steps->full()) steps->Restart();
              },
              kBurst};
    if (pass == Pass::kForward)
      return {[this] { mixer.forward(problem->in, problem->out, scratch->get()); }, nullptr};
    return {[this] { mixer.backward(problem->in, problem->out, problem->grad, scratch->get()); },
            nullptr};
  }

  Work WorkOf() const {
    Work work;
    work.f32 = FlopsOf(mixer, pass, shape);
    if (pass != Pass::kStep) {  // every array once
      work.state_bytes = work.state_footprint = static_cast<double>(BytesOf(*problem));
      return work;
    }
    const double states = static_cast<double>(shape.B * steps->state_bytes());
    // A state is read and written; of a cache a step reads what it multiplies, each number once.
    const bool state = mixer.family == Family::kState;
    work.state_footprint = states;
    work.state_bytes = state ? 2 * states : 2 * work.f32;
    return work;
  }
};

void CheckBaseline(const Case& c, const Baseline& baseline) {
  if (!baseline.error) return;
  baseline.run();
  const double error = baseline.error(), bound = 1e-3;  // two float32 results, in other orders
  Check(error <= bound, "bench",
        "{}'s {} must agree with LibTorch's ({}) within {:.0e} before it is timed, but is off by "
        "{:.2g}",
        c.mixer.name, NameOf(c.pass), baseline.how, bound, error);
}

nlohmann::ordered_json RowOf(const Case& c, const Baseline& baseline,
                             const std::vector<Timing>& times) {
  const Timing& ours = times[0];
  const Work work = c.WorkOf();
  const Roof roof = RoofOf(ThisMachine(), work);
  const double tokens = static_cast<double>(c.shape.B * (c.steps ? 1 : c.shape.T));
  nlohmann::ordered_json row = {{"bench", "kernels"},
                                {"mixer", c.mixer.name},
                                {"pass", NameOf(c.pass)},
                                {"B", c.shape.B},
                                {"H", c.shape.H},
                                {"T", c.shape.T},
                                {"K", c.shape.K},
                                {"V", c.shape.V},
                                {"threads", omp_get_max_threads()},
                                {"median_ms", ours.median_s * 1e3},
                                {"spread", ours.spread},
                                {"rounds", ours.rounds},
                                {"tokens_per_second", tokens / ours.median_s},
                                {"gflops", work.f32 / ours.median_s / 1e9},
                                {"gbps", work.state_bytes / ours.median_s / 1e9},
                                {"fraction_of_peak", roof.seconds / ours.median_s},
                                {"bound", roof.bound},
                                {"checked_tokens", c.checked},
                                {"ratio_to_libtorch", nullptr},
                                {"libtorch_ms", nullptr},
                                {"libtorch", baseline.how}};
  if (times.size() > 1) {
    const double theirs = times[1].median_s * baseline.scale;
    row["ratio_to_libtorch"] = theirs / ours.median_s;
    row["libtorch_ms"] = theirs * 1e3;
  }
  return row;
}

}  // namespace

void AddKernelOptions(CLI::App& verb, KernelOptions& o) {
  verb.footer(kExamples);
  verb.add_option("--mixer", o.mixers, "names, or all (all)")->delimiter(',')->type_name("LIST");
  verb.add_option("--pass", o.passes, "forward, backward, step (all three)")
      ->delimiter(',')
      ->type_name("LIST")
      ->check(CLI::IsMember({"forward", "backward", "step"}));
  const auto size = [&](const char* name, int64_t& value, const char* what) {
    verb.add_option(name, value, fmt::format("{} ({})", what, value))
        ->check(CLI::Range(int64_t{1}, int64_t{1} << 24));
  };
  size("--B", o.shape.B, "sequences");
  size("--H", o.shape.H, "heads");
  size("--T", o.shape.T, "tokens of a sequence");
  size("--K", o.shape.K, "channels of a head of q and k");
  size("--V", o.shape.V, "channels of a head of v");
  verb.add_option("--seconds", o.seconds, "time a row (2)")->check(CLI::Range(0.0, 600.0));
  verb.add_flag("--quick", o.quick, "an eighth of the time, and no more than 2048 tokens");
}

void BenchKernels(const KernelOptions& given, const BaselineMaker& make_baseline,
                  const Output& output) {
  KernelOptions o = given;
  if (o.quick) MeasureMachineQuickly();
  if (o.quick) o.seconds /= 8, o.shape.T = std::min<int64_t>(o.shape.T, 2048);
  const std::vector<const Mixer*> mixers = MixersByName(o.mixers);
  output.note(Describe(ThisMachine()));
  RowPrinter printer(output, {{"mixer", "mixer", -11},
                              {"pass", "pass", -8},
                              {"B", "B", 3},
                              {"H", "H", 2},
                              {"T", "T", 6},
                              {"K", "K", 3},
                              {"V", "V", 3},
                              {"ms", "median_ms", 7},
                              {"spread", "spread", 6, 100, "%"},
                              {"tokens/s", "tokens_per_second", 9},
                              {"GFLOP/s", "gflops", 7},
                              {"GB/s", "gbps", 6},
                              {"of peak", "fraction_of_peak", 7, 100, "%"},
                              {"bound", "bound", -7},
                              {"x LibTorch", "ratio_to_libtorch", 10},
                              {"LibTorch's way", "libtorch", -14}});
  for (const Mixer* mixer : mixers) {
    for (const std::string& name : o.passes) {
      output.check();
      Case c(*mixer, PassByName(name), o.shape);
      const Baseline baseline = make_baseline
                                    ? make_baseline(*mixer, c.pass, c.arrays(), c.steps.get())
                                    : Baseline{.how = "none: linattn-train is not here"};
      std::vector<Job> jobs = {c.MakeJob()};
      if (baseline.run) {
        CheckBaseline(c, baseline);
        jobs.push_back({baseline.run, nullptr, jobs[0].burst});
      }
      printer.Print(RowOf(c, baseline, TimeInTurns(jobs, o.seconds, 3, output.check)));
    }
  }
}

}  // namespace linattn::bench
