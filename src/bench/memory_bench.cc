#include "bench/memory_bench.h"

#include <fmt/format.h>
#include <omp.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/plot.h"
#include "bench/machine.h"
#include "bench/mixer_problem.h"
#include "bench/process_memory.h"
#include "bench/timing.h"

namespace linattn::bench {
namespace {

constexpr const char* kExamples = R"(
Examples:
  linattn bench memory                                  2^9 to 2^16 tokens; memory-time.svg, memory-bytes.svg
  linattn bench memory --mixer linear,gla,kda,softmax --out figure --json
  linattn bench memory --quick
Figure 1 of Katharopoulos et al. 2020: time and memory of one sequence against its length, for a forward pass and for
training (forward and backward), one attention layer. bytes: what the process's resident memory grew by, from before
the inputs were made to the largest it was (inputs, outputs, gradients, scratch); arrays and scratch alone are
"array_bytes" and "scratch_bytes". Where all heads would take too long, fewer are run ("heads_run"), and their time and
arrays are scaled. softmax is blocked: unlike the paper's, it never holds the matrix of scores.)";

struct Point {
  int64_t tokens = 0, heads = 0, array_bytes = 0, scratch_bytes = 0;
  double seconds = 0, spread = 0, bytes = 0, gflops = 0;
  bool checked = false;
};

// Runs a pass once and counts what the process grew by; then times it.
class Measurement {
 public:
  Measurement(const Mixer& mixer, bool training, const MemoryOptions& o, const Output& output)
      : mixer_(mixer), pass_(training ? Pass::kBackward : Pass::kForward), o_(o), output_(output) {}

  Point At(int64_t tokens) {
    const Shape all{1, tokens, o_.heads, o_.channels, o_.channels};
    Shape shape = all;
    // More than about two seconds a run: as few heads as keep the threads busy.
    const double most = o_.quick ? 3e10 : 3e11;
    if (Flops(all) > most) shape.H = std::min<int64_t>(o_.heads, omp_get_max_threads());
    const double scale = static_cast<double>(all.H) / static_cast<double>(shape.H);
    Point point{.tokens = tokens, .heads = shape.H};
    ForgetPeakMemory();
    const int64_t before = ResidentBytes();
    MixerProblem<float> problem(mixer_, shape);
    if (pass_ == Pass::kBackward) problem.AddGradients();
    const Scratch scratch(mixer_, problem.in);
    const auto run = [&] {
      mixer_.forward(problem.in, problem.out, scratch.get());
      if (pass_ == Pass::kBackward)
        mixer_.backward(problem.in, problem.out, problem.grad, scratch.get());
    };
    const double first = SecondsOf(run);
    point.array_bytes = BytesOf(problem), point.scratch_bytes = scratch.bytes();
    // Arrays grow with the heads; scratch belongs to a thread.
    point.bytes = static_cast<double>(PeakMemoryBytes() - before) +
                  (scale - 1) * static_cast<double>(point.array_bytes);
    Timing timing{.median_s = first, .spread = 0, .rounds = 1};
    if (first < o_.seconds) timing = TimeInTurns({{run, nullptr}}, o_.seconds, 3, output_.check)[0];
    point.seconds = scale * timing.median_s, point.spread = timing.spread;
    point.gflops = Flops(all) / point.seconds / 1e9;
    Verify(problem);
    return point;
  }

 private:
  double Flops(const Shape& shape) const {
    const double forward = FlopsOf(mixer_, Pass::kForward, shape);
    return forward + (pass_ == Pass::kBackward ? FlopsOf(mixer_, pass_, shape) : 0);
  }
  // Once, on the first sequence that is long, or on the longest.
  void Verify(MixerProblem<float>& problem) {
    const int64_t tokens = problem.shape.T;
    if (verified_ || (tokens < 2048 && 2 * tokens <= o_.longest)) return;
    CheckRight(mixer_, pass_, problem);
    verified_ = true;
  }

  const Mixer& mixer_;
  Pass pass_;
  const MemoryOptions& o_;
  const Output& output_;
  bool verified_ = false;
};

nlohmann::ordered_json RowOf(const Mixer& mixer, bool training, const MemoryOptions& o,
                             const Point& p) {
  const double tokens = static_cast<double>(p.tokens);
  return {{"bench", "memory"},
          {"mixer", mixer.name},
          {"pass", training ? "training" : "forward"},
          {"T", p.tokens},
          {"H", o.heads},
          {"K", o.channels},
          {"V", o.channels},
          {"heads_run", p.heads},
          {"threads", omp_get_max_threads()},
          {"median_ms", p.seconds * 1e3},
          {"spread", p.spread},
          {"us_per_token", p.seconds / tokens * 1e6},
          {"bytes", p.bytes},
          {"bytes_per_token", p.bytes / tokens},
          {"array_bytes", p.array_bytes},
          {"scratch_bytes", p.scratch_bytes},
          {"gflops", p.gflops},
          {"fraction_of_peak", p.gflops / ThisMachine().peak.float32_gflops}};
}

void Draw(const MemoryOptions& o, const std::vector<Series>& time, const std::vector<Series>& bytes,
          const Output& output) {
  const auto write = [&](const char* what, const char* title, const char* y,
                         const std::vector<Series>& series) {
    const std::string path = fmt::format("{}-{}.svg", o.out, what);
    const std::string heads = fmt::format(" ({} heads of {}, one sequence)", o.heads, o.channels);
    WriteFileAtomic(
        path,
        SvgPlot({.title = title + heads, .x = {"tokens", true}, .y = {y, true}, .series = series}));
    output.note("wrote " + path);
  };
  write("time", "Time of an attention layer", "milliseconds", time);
  write("bytes", "Memory of an attention layer", "megabytes", bytes);
}

}  // namespace

void AddMemoryOptions(CLI::App& verb, MemoryOptions& o) {
  verb.footer(kExamples);
  verb.add_option("--mixer", o.mixers, "names (linear,softmax,lsh)")
      ->delimiter(',')
      ->type_name("LIST");
  const CLI::Range tokens(int64_t{16}, int64_t{1} << 22);
  verb.add_option("--shortest", o.shortest, "tokens of the shortest sequence (512)")->check(tokens);
  verb.add_option("--longest", o.longest, "tokens of the longest one (65536)")->check(tokens);
  verb.add_option("--H", o.heads, "heads (8)")->check(CLI::Range(1, 1024));
  verb.add_option("--K", o.channels, "channels of a head (64)")->check(CLI::Range(1, 1024));
  verb.add_option("--out", o.out, "beginning of the pictures' names (memory); '' for none");
  verb.add_flag("--quick", o.quick, "up to 8192 tokens, an eighth of the time");
}

void BenchMemory(const MemoryOptions& given, const Output& output) {
  MemoryOptions o = given;
  if (o.quick) MeasureMachineQuickly();
  if (o.quick) o.longest = std::min<int64_t>(o.longest, 8192), o.seconds /= 8;
  Check(o.shortest <= o.longest, "bench", "--shortest must be at most --longest = {}, but is {}",
        o.longest, o.shortest);
  output.note(Describe(ThisMachine()));
  RowPrinter printer(output, {{"mixer", "mixer", -11},
                              {"pass", "pass", -8},
                              {"tokens", "T", 6},
                              {"ms", "median_ms", 8},
                              {"spread", "spread", 6, 100, "%"},
                              {"us/token", "us_per_token", 8},
                              {"MB", "bytes", 7, 1e-6},
                              {"bytes/token", "bytes_per_token", 11},
                              {"GFLOP/s", "gflops", 7},
                              {"of peak", "fraction_of_peak", 7, 100, "%"},
                              {"heads run", "heads_run", 9}});
  std::vector<Series> time, bytes;
  for (const bool training : {false, true}) {
    for (const std::string& name : o.mixers) {
      const Mixer& mixer = MixerByName(name);
      Measurement measurement(mixer, training, o, output);
      Series times{name + (training ? ", training" : ", forward"), {}, true}, sizes = times;
      for (int64_t tokens = o.shortest; tokens <= o.longest; tokens *= 2) {
        output.check();
        const Point point = measurement.At(tokens);
        printer.Print(RowOf(mixer, training, o, point));
        times.points.emplace_back(tokens, point.seconds * 1e3);
        sizes.points.emplace_back(tokens, point.bytes / 1e6);
      }
      time.push_back(std::move(times)), bytes.push_back(std::move(sizes));
    }
  }
  if (!o.out.empty()) Draw(o, time, bytes, output);
}

}  // namespace linattn::bench
