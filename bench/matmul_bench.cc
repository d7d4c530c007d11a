// Matrix products of the lean runtime, in the three types of weights, at the shapes of the CIFAR-10
// model. `panels`: the product alone, rows prepared beforehand, every thread its share of the
// outputs, as a step does it. `matmul`: all of MatMul, with the preparation of the rows and
// OpenMP's threads. Up to 4 rows the weights come from L3: as many matrices in turn as fill 6 MB a
// thread. Run nothing beside it.
#include <benchmark/benchmark.h>
#include <fmt/format.h>
#include <omp.h>

#include <cmath>
#include <random>
#include <vector>

#include "base/error.h"
#include "bench_main.h"
#include "kernels/gemm.h"

namespace linattn {
namespace {

struct Shape {
  int64_t rows, out, in;
};

const MachinePeak& Peak() {
  static const MachinePeak peak = MeasureMachinePeak(omp_get_max_threads());
  return peak;
}

double PeakOf(WeightType type) {
  switch (type) {
    case WeightType::kFloat32:
      return Peak().float32_gflops;
    case WeightType::kBFloat16:
      return Peak().bfloat16_gflops;
    case WeightType::kInt8:
      return Peak().int8_gops;
  }
  return 0;
}

std::vector<float> Normal(int64_t n) {
  static std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<size_t>(n));
  for (float& value : x) value = normal(random);
  return x;
}

// Whether the weights are what is waited for.
bool Streams(const Shape& s) { return s.rows <= 4; }

// How many matrices, so that the weights come from where a decoding step finds them.
int64_t Copies(const Shape& s, WeightType type) {
  constexpr int64_t kBytesPerThread = 6 << 20;
  const int64_t bytes = s.out * s.in * 4 / InputsPerWord(type);
  return Streams(s) ? kBytesPerThread * omp_get_max_threads() / bytes : 1;
}

// After so many products in each iteration.
void Count(benchmark::State& state, const Shape& s, WeightType type, int64_t each) {
  const double products = static_cast<double>(state.iterations() * each);
  const double operations = 2.0 * static_cast<double>(s.rows * s.out * s.in);
  const double bytes = static_cast<double>(s.out * s.in * 4 / InputsPerWord(type));
  using benchmark::Counter;
  state.counters["G/s"] = Counter(products * operations / 1e9, Counter::kIsRate);
  state.counters["of_peak"] = Counter(products * operations / 1e9 / PeakOf(type), Counter::kIsRate);
  if (Streams(s))
    state.counters["of_L3"] = Counter(products * bytes / 1e9 / Peak().l3_gbps, Counter::kIsRate);
  state.counters["us"] =
      Counter(products / 1e6, Counter::Flags(Counter::kIsRate | Counter::kInvert));
}

struct Problem {
  Problem(Shape s, WeightType type)
      : x(Normal(s.rows * s.in)), weight(Normal(s.out * s.in)), bias(Normal(s.out)) {
    for (int64_t i = 0; i < Copies(s, type); ++i)
      matrices.push_back(PackedMatrix::Pack(weight.data(), bias.data(), s.out, s.in, type));
    const int64_t threads = omp_get_max_threads();
    std::vector<PanelRange> order;
    for (int64_t t = 0; t < threads; ++t)
      for (PackedMatrix& w : matrices) {
        const MatMulPart part = ThreadPart(w, t, threads);
        order.push_back({&w, part.panel_begin, part.panel_end});
      }
    LayOut(order);
  }
  int64_t copies() const { return static_cast<int64_t>(matrices.size()); }

  std::vector<float> x, weight, bias;
  std::vector<PackedMatrix> matrices;
};

// Rows on cache lines of their own.
struct Output {
  explicit Output(Shape s) : lines(static_cast<size_t>(s.rows * s.out / kChunkWords)), out(s.out) {}
  Rows rows() { return {reinterpret_cast<float*>(lines.data()), out}; }
  std::vector<Chunk> lines;
  int64_t out;
};

// A product must be right before it is timed: the last row against float64. The bounds are eight
// standard deviations of the error of a sum of products of N(0,1): of each product 0.0024 by two
// roundings to 8 bits, 0.01 by two to 1/127 of 3.3.
void CheckLastRow(const Problem& p, const Shape& s, WeightType type, const Rows& y) {
  const double size = 8 * std::sqrt(static_cast<double>(s.in));
  const double bound[] = {1e-6 * size, 0.0024 * size, 0.01 * size};
  const float* x = &p.x[(s.rows - 1) * s.in];
  for (int64_t n = 0; n < s.out; ++n) {
    double sum = p.bias[n];
    for (int64_t k = 0; k < s.in; ++k) sum += double{x[k]} * p.weight[n * s.in + k];
    const double error = std::abs(sum - y.data[(s.rows - 1) * y.stride + n]);
    Check(error <= bound[static_cast<int>(type)], "bench",
          "a product must be right before it is timed, but output {} is off by {:.2g}", n, error);
  }
}

void RunPanels(benchmark::State& state, Shape s, WeightType type) {
  Problem p(s, type);
  const int64_t threads = omp_get_max_threads();
  PreparedRows shared;
  shared.Prepare(type, s.rows, s.in, {p.x.data(), s.in});
  std::vector<PreparedRows> own(static_cast<size_t>(threads), shared);
  Output y(s);
  std::vector<Output> own_y(static_cast<size_t>(threads), y);
  MatMulPanels(shared, p.matrices.back(), ThreadPart(p.matrices.back(), 0, 1), y.rows());
  CheckLastRow(p, s, type, y.rows());
  constexpr int kRepeats = 8;  // to be long against the start of the threads
  for (auto _ : state) {
#pragma omp parallel
    for (int repeat = 0; repeat < kRepeats; ++repeat)
      for (const PackedMatrix& w : p.matrices) {
        const int i = omp_get_thread_num();
        if (Streams(s))
          MatMulPanels(shared, w, ThreadPart(w, i, threads), y.rows());
        else
          MatMulPanels(own[i], w, ThreadPart(w, 0, 1), own_y[i].rows());
      }
  }
  Count(state, s, type, kRepeats * p.copies() * (Streams(s) ? 1 : threads));
}

void RunMatMul(benchmark::State& state, Shape s, WeightType type) {
  Problem p(s, type);
  Output y(s);
  MatMul(s.rows, {p.x.data(), s.in}, p.matrices.back(), y.rows());
  CheckLastRow(p, s, type, y.rows());
  for (auto _ : state)
    for (const PackedMatrix& w : p.matrices) MatMul(s.rows, {p.x.data(), s.in}, w, y.rows());
  Count(state, s, type, p.copies());
}

void Register() {
  const std::pair<const char*, void (*)(benchmark::State&, Shape, WeightType)> kinds[] = {
      {"panels", RunPanels}, {"matmul", RunMatMul}};
  for (const auto& [kind, run] : kinds)
    for (const auto type : {WeightType::kFloat32, WeightType::kBFloat16, WeightType::kInt8})
      for (const int64_t rows : {1, 4, 16, 64, 256})
        for (const auto& [out, in] : {std::pair{768, 256}, {256, 256}, {1024, 256}, {256, 1024}})
          benchmark::RegisterBenchmark(
              fmt::format("{}/{}/{}x{}x{}", kind, WeightTypeName(type), rows, out, in).c_str(), run,
              Shape{rows, out, in}, type)
              ->Unit(benchmark::kMicrosecond)
              ->UseRealTime();
}

}  // namespace
}  // namespace linattn

int main(int argc, char** argv) { return linattn::RunBenchmarks(argc, argv, linattn::Register); }
