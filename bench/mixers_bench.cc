// Time of every registered mixer's forward, backward and step, against the machine's own peak. Rows
// come from the registry. A row is refused unless the fast function agrees with its float64
// reference on a smaller problem of the same heads. Run nothing beside it: bench/mixers_bench
// --benchmark_repetitions=5
#include <benchmark/benchmark.h>
#include <fmt/format.h>
#include <hwy/aligned_allocator.h>
#include <omp.h>

#include <cmath>
#include <random>
#include <vector>

#include "base/error.h"
#include "bench_main.h"
#include "kernels/mixer.h"

namespace linattn {
namespace {

struct Shape {
  int64_t B, T, H, D;
};

template <class T>
struct Tensors {
  Shape s;
  std::vector<T> q, k, v, g, beta, o, norm, d_o, d_q, d_k, d_v, d_g, d_beta;
  MixerInputs in;
  MixerOutputs out;
  MixerGradients grad;

  Array Make(std::vector<T>& memory, int64_t channels) {
    memory.resize(s.B * s.T * s.H * channels);
    return MakeArray(memory.data(), {s.B, s.T, s.H, channels});
  }
  static void Flatten(Array& a) { a.rank = 3; }  // [B,T,H,1] as [B,T,H]

  Tensors(const Mixer& mixer, Shape shape) : s(shape) {
    in.q = Make(q, s.D), in.k = Make(k, s.D), in.v = Make(v, s.D);
    out.o = Make(o, s.D), out.norm = Make(norm, 1);
    grad.d_o = Make(d_o, s.D), grad.d_q = Make(d_q, s.D), grad.d_k = Make(d_k, s.D);
    grad.d_v = Make(d_v, s.D);
    Flatten(out.norm);
    if (mixer.decay != Decay::kNone) {
      const int64_t channels = mixer.decay == Decay::kScalar ? 1 : s.D;
      in.g = Make(g, channels), grad.d_g = Make(d_g, channels);
      if (channels == 1) Flatten(in.g), Flatten(grad.d_g);
    }
    if (mixer.write == Write::kDelta) {
      in.beta = Make(beta, 1), grad.d_beta = Make(d_beta, 1);
      Flatten(in.beta), Flatten(grad.d_beta);
      in.options.feature_map = &FeatureMapByName("l2");  // keys of norm 1, as layers give them
    }
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    for (auto* x : {&q, &k, &v, &d_o})
      for (T& value : *x) value = normal(random);
    for (T& value : g) value = -std::abs(normal(random)) / 16;
    for (T& value : beta) value = 1 / (1 + std::exp(normal(random)));
  }
};

// Worst difference over the largest value of the reference.
double ErrorOf(const std::vector<float>& fast, const std::vector<double>& reference) {
  double worst = 0, largest = 0;
  for (size_t i = 0; i < fast.size(); ++i) {
    worst = std::max(worst, std::abs(fast[i] - reference[i]));
    largest = std::max(largest, std::abs(reference[i]));
  }
  return largest > 0 ? worst / largest : worst;
}

struct Scratch {
  explicit Scratch(int64_t bytes) : memory(hwy::AllocateAligned<uint8_t>(bytes)) {}
  hwy::AlignedFreeUniquePtr<uint8_t[]> memory;
};

Scratch ScratchFor(const Mixer& mixer, const MixerInputs& in) {
  return Scratch(mixer.scratch_bytes(CheckInputs(mixer, in), omp_get_max_threads()));
}

void CheckRight(const Mixer& mixer, Shape shape) {
  shape.B = 1, shape.T = std::min<int64_t>(shape.T, 200);
  Tensors<float> fast(mixer, shape);
  Tensors<double> reference(mixer, shape);
  const Scratch scratch = ScratchFor(mixer, fast.in);
  mixer.forward(fast.in, fast.out, scratch.memory.get());
  mixer.backward(fast.in, fast.out, fast.grad, scratch.memory.get());
  mixer.forward_ref(reference.in, reference.out);
  mixer.backward_ref(reference.in, reference.out, reference.grad);
  Check(ErrorOf(fast.o, reference.o) <= mixer.tolerance.forward, "bench",
        "{}'s forward must be right before it is timed, but its error is {:.2g}", mixer.name,
        ErrorOf(fast.o, reference.o));
  for (auto [x, y] : {std::pair(&fast.d_q, &reference.d_q),
                      {&fast.d_k, &reference.d_k},
                      {&fast.d_v, &reference.d_v},
                      {&fast.d_g, &reference.d_g},
                      {&fast.d_beta, &reference.d_beta}})
    Check(ErrorOf(*x, *y) <= mixer.tolerance.backward, "bench",
          "{}'s backward must be right before it is timed, but its error is {:.2g}", mixer.name,
          ErrorOf(*x, *y));
}

double Peak() {
  static const double peak = MeasureFmaPeak();
  return peak;
}

void Count(benchmark::State& state, const Shape& s, double flops) {
  using benchmark::Counter;
  const double rounds = static_cast<double>(state.iterations());
  state.counters["tokens/s"] = Counter(rounds * s.B * s.T, Counter::kIsRate);
  state.counters["GFLOP/s"] = Counter(rounds * flops / 1e9, Counter::kIsRate);
  state.counters["of_peak"] = Counter(rounds * flops / 1e9 / Peak(), Counter::kIsRate);
}

void Forward(benchmark::State& state, const Mixer& mixer, Shape shape) {
  CheckRight(mixer, shape);
  Tensors<float> x(mixer, shape);
  const Scratch scratch = ScratchFor(mixer, x.in);
  for (auto _ : state) mixer.forward(x.in, x.out, scratch.memory.get());
  Count(state, shape, mixer.flops(CheckInputs(mixer, x.in), true));
}

// Backward counts 2.5 times forward's operations: the products of forward again, and two gradients
// of each.
void Backward(benchmark::State& state, const Mixer& mixer, Shape shape) {
  CheckRight(mixer, shape);
  Tensors<float> x(mixer, shape);
  const Scratch scratch = ScratchFor(mixer, x.in);
  mixer.forward(x.in, x.out, scratch.memory.get());
  for (auto _ : state) mixer.backward(x.in, x.out, x.grad, scratch.memory.get());
  Count(state, shape, 2.5 * mixer.flops(CheckInputs(mixer, x.in), true));
}

// The state block of a sequence of T tokens.
std::vector<float> StateAfter(const Mixer& mixer, const Shape& shape, int64_t capacity) {
  Tensors<float> prompt(mixer, {1, shape.T, shape.H, shape.D});
  const MixerDims dims = CheckInputs(mixer, prompt.in);
  std::vector<float> block(mixer.state_floats(dims, prompt.in.options, capacity));
  mixer.prefill(prompt.in, prompt.out.o, block.data(), 0, capacity);
  return block;
}

// B sequences, each at positions T to T + 255, over and over.
void Step(benchmark::State& state, const Mixer& mixer, Shape shape) {
  constexpr int64_t kSteps = 256;
  Tensors<float> x(mixer, {shape.B, 1, shape.H, shape.D});
  const int64_t capacity = shape.T + kSteps;
  const std::vector<float> start = StateAfter(mixer, shape, capacity);
  std::vector<std::vector<float>> memory(shape.B, start);
  std::vector<float*> blocks;
  for (auto& block : memory) blocks.push_back(block.data());
  std::vector<int64_t> lengths(shape.B, shape.T);
  const auto rows = [](Array a) {  // [B,1,...] as [B,...]
    for (int i = 1; i + 1 < a.rank; ++i) a.shape[i] = a.shape[i + 1], a.stride[i] = a.stride[i + 1];
    a.rank -= a.rank > 0;
    return a;
  };
  StepInputs in;
  in.q = rows(x.in.q), in.k = rows(x.in.k), in.v = rows(x.in.v), in.g = rows(x.in.g);
  in.beta = rows(x.in.beta), in.o = rows(x.out.o);
  in.state = blocks.data(), in.length = lengths.data(), in.capacity = capacity;
  in.options = x.in.options;
  for (auto _ : state) {
    mixer.step(in);
    for (int64_t& length : lengths) ++length;
    if (lengths[0] < capacity) continue;
    state.PauseTiming();
    for (auto& block : memory) std::copy(start.begin(), start.end(), block.begin());
    std::fill(lengths.begin(), lengths.end(), shape.T);
    state.ResumeTiming();
  }
  // Of caches the whole block, which is what softmax reads; sparse and lsh read a part of it.
  state.SetBytesProcessed(state.iterations() * shape.B * static_cast<int64_t>(start.size()) * 4 *
                          (mixer.family == Family::kState ? 2 : 1));
  state.counters["tokens/s"] =
      benchmark::Counter(state.iterations() * shape.B, benchmark::Counter::kIsRate);
}

void Register() {
  const auto add = [](const Mixer& m, const char* pass, auto run, Shape s) {
    const std::string name = fmt::format("{}/{}/B{}/T{}/H{}/D{}", m.name, pass, s.B, s.T, s.H, s.D);
    benchmark::RegisterBenchmark(name.c_str(), run, m, s)
        ->Unit(benchmark::kMillisecond)
        ->UseRealTime();
  };
  for (const Mixer* mixer : AllMixers()) {
    const auto both = [&](Shape s) {
      add(*mixer, "forward", Forward, s);
      add(*mixer, "backward", Backward, s);
    };
    for (const int64_t D : {32, 64, 128})
      for (const int64_t T : {2048, 8192}) both({1, T, 8, D});
    both({1, 8192, 1, 64});  // fewer heads than threads
    if (mixer->name == "linear") both({1, 65536, 8, 64});
    for (const Shape s : {Shape{1, 3071, 8, 32}, Shape{64, 783, 8, 32}, Shape{64, 783, 8, 64}})
      add(*mixer, "step", Step, s);
  }
}

}  // namespace
}  // namespace linattn

int main(int argc, char** argv) { return linattn::RunBenchmarks(argc, argv, linattn::Register); }
