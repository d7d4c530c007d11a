// Dense layers against LibTorch's at::linear. Training: this project's Linear (oneDNN), forward and
// backward, both types; docs/decisions/0002-onednn-linear.md quotes it. Inference: the lean
// runtime's MatMul, few rows, weights in the caches; int8 has no peer there. Run nothing beside it.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <benchmark/benchmark.h>
#include <fmt/format.h>
#include <omp.h>
#include <torch/csrc/autograd/autograd.h>

#include "base/error.h"
#include "bench_main.h"
#include "kernels/gemm.h"
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

void CountForward(benchmark::State& state, Shape s) {
  state.counters["GFLOP/s"] =
      benchmark::Counter(2e-9 * static_cast<double>(state.iterations() * s.rows * s.in * s.out),
                         benchmark::Counter::kIsRate);
}

void LinearForward(benchmark::State& state, Shape s, at::ScalarType type) {
  const at::NoGradGuard inference;
  at::set_num_threads(omp_get_max_threads());
  const Tensor x = at::randn({s.rows, s.in}).to(type), bias = at::randn({s.out}).to(type);
  const Tensor weight = at::randn({s.out, s.in}).to(type);
  for (auto _ : state) benchmark::DoNotOptimize(at::linear(x, weight, bias));
  CountForward(state, s);
}

void MatMulForward(benchmark::State& state, Shape s, WeightType type) {
  const Tensor x = at::randn({s.rows, s.in}), bias = at::randn({s.out});
  const Tensor weight = at::randn({s.out, s.in}), y = at::empty({s.rows, s.out});
  const PackedMatrix packed =
      PackedMatrix::Pack(weight.data_ptr<float>(), bias.data_ptr<float>(), s.out, s.in, type);
  for (auto _ : state)
    MatMul(s.rows, {x.data_ptr<float>(), s.in}, packed, {y.data_ptr<float>(), s.out});
  CountForward(state, s);
}

void RegisterInference() {
  const auto add = [](const std::string& name, auto run, Shape s, auto type) {
    benchmark::RegisterBenchmark(name.c_str(), run, s, type)
        ->Unit(benchmark::kMicrosecond)
        ->UseRealTime();
  };
  for (const int64_t rows : {1, 4, 16, 64, 256})
    for (const auto& [in, out] : {std::pair{256, 768}, {256, 256}, {256, 1024}, {1024, 256}}) {
      const Shape s{rows, in, out};
      const std::string name = fmt::format("inference/{}x{}x{}", rows, in, out);
      add(name + "/f32/libtorch", LinearForward, s, at::kFloat);
      add(name + "/f32/linattn", MatMulForward, s, WeightType::kFloat32);
      add(name + "/bf16/libtorch", LinearForward, s, at::kBFloat16);
      add(name + "/bf16/linattn", MatMulForward, s, WeightType::kBFloat16);
      add(name + "/int8/linattn", MatMulForward, s, WeightType::kInt8);
    }
}

void Register() {
  RegisterInference();
  for (const Shape s : {Shape{6272, 128, 128}, Shape{6272, 128, 512}, Shape{3072, 256, 256},
                        Shape{3072, 256, 1024}, Shape{3072, 1024, 256}})
    for (const auto type : {at::kFloat, at::kBFloat16})
      for (const bool ours : {false, true}) {
        const std::string name =
            fmt::format("training/{}x{}x{}/{}/{}", s.rows, s.in, s.out,
                        type == at::kFloat ? "f32" : "bf16", ours ? "linattn" : "libtorch");
        benchmark::RegisterBenchmark(name.c_str(), Run, ours ? Ours : LibTorchs, s, type)
            ->Unit(benchmark::kMillisecond)
            ->UseRealTime();
      }
}

}  // namespace
}  // namespace linattn

int main(int argc, char** argv) { return linattn::RunBenchmarks(argc, argv, linattn::Register); }
