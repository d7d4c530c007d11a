// Dense layers: this project's Linear (oneDNN) against LibTorch's at::linear, forward and backward,
// both types. docs/decisions/0002-onednn-linear.md quotes it. Run nothing beside it.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <benchmark/benchmark.h>
#include <fmt/format.h>
#include <omp.h>
#include <torch/csrc/autograd/autograd.h>

#include "base/error.h"
#include "bench_main.h"
#include "ops/linear_op.h"

namespace linattn {
namespace {

using at::Tensor;

Tensor Ours(const Tensor& x, const Tensor& weight) { return Linear(x, weight, Tensor()); }
// What a module under LibTorch's autocast does.
Tensor LibTorchs(const Tensor& x, const Tensor& weight) {
  return at::linear(x, weight.to(x.scalar_type()));
}

struct Shape {
  int64_t rows, in, out;
};

void Run(benchmark::State& state, Tensor (*linear)(const Tensor&, const Tensor&), Shape s,
         at::ScalarType type) {
  at::set_num_threads(omp_get_max_threads());
  const Tensor weight = (at::randn({s.out, s.in}) * 0.05).requires_grad_(true);
  const Tensor x = at::randn({s.rows, s.in}).to(type).requires_grad_(true);
  const Tensor d_y = at::randn({s.rows, s.out}).to(type);
  const Tensor expected = at::linear(x.detach().to(at::kDouble), weight.detach().to(at::kDouble));
  const double error =
      ((linear(x, weight) - expected).abs().max() / expected.abs().max()).item<double>();
  Check(error < (type == at::kFloat ? 1e-5 : 2e-2), "bench",
        "the product must be right before it is timed, but its error is {:.2g}", error);
  for (auto _ : state) {
    const Tensor y = linear(x, weight);
    benchmark::DoNotOptimize(torch::autograd::grad({y}, {x, weight}, {d_y}));
  }
  state.counters["GFLOP/s"] =
      benchmark::Counter(6e-9 * static_cast<double>(state.iterations() * s.rows * s.in * s.out),
                         benchmark::Counter::kIsRate);
}

void Register() {
  for (const Shape s : {Shape{6272, 128, 128}, Shape{6272, 128, 512}, Shape{3072, 256, 256},
                        Shape{3072, 256, 1024}, Shape{3072, 1024, 256}})
    for (const auto type : {at::kFloat, at::kBFloat16})
      for (const bool ours : {false, true}) {
        const std::string name =
            fmt::format("{}x{}x{}/{}/{}", s.rows, s.in, s.out, type == at::kFloat ? "f32" : "bf16",
                        ours ? "linattn" : "libtorch");
        benchmark::RegisterBenchmark(name.c_str(), Run, ours ? Ours : LibTorchs, s, type)
            ->Unit(benchmark::kMillisecond)
            ->UseRealTime();
      }
}

}  // namespace
}  // namespace linattn

int main(int argc, char** argv) { return linattn::RunBenchmarks(argc, argv, linattn::Register); }
