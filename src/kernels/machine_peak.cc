#include "kernels/machine_peak.h"

#include <algorithm>
#include <chrono>
#include <cstdint>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/machine_peak.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace linattn {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Does `rounds` of multiply-adds; returns how many operations that were. `sink` keeps the compiler
// from leaving them out.
double MultiplyAdds(int64_t rounds, float* sink) {
  const hn::ScalableTag<float> d;
  // Ten chains cover the latency of two units. They start apart: the compiler merges equal ones.
  auto a = hn::Set(d, 1.0f), b = hn::Set(d, 1.1f), c = hn::Set(d, 1.2f), e = hn::Set(d, 1.3f);
  auto f = hn::Set(d, 1.4f), g = hn::Set(d, 1.5f), h = hn::Set(d, 1.6f), i = hn::Set(d, 1.7f);
  auto j = hn::Set(d, 1.8f), k = hn::Set(d, 1.9f);
  const auto m = hn::Set(d, 0.999f), n = hn::Set(d, 0.001f);
  for (int64_t r = 0; r < rounds; ++r) {
    a = hn::MulAdd(a, m, n), b = hn::MulAdd(b, m, n), c = hn::MulAdd(c, m, n);
    e = hn::MulAdd(e, m, n), f = hn::MulAdd(f, m, n), g = hn::MulAdd(g, m, n);
    h = hn::MulAdd(h, m, n), i = hn::MulAdd(i, m, n), j = hn::MulAdd(j, m, n);
    k = hn::MulAdd(k, m, n);
  }
  const auto sum = hn::Add(hn::Add(hn::Add(a, b), hn::Add(c, e)),
                           hn::Add(hn::Add(f, g), hn::Add(hn::Add(h, i), hn::Add(j, k))));
  *sink += hn::GetLane(hn::SumOfLanes(d, sum));
  return static_cast<double>(rounds) * 10 * 2 * static_cast<double>(hn::Lanes(d));
}

}  // namespace HWY_NAMESPACE
}  // namespace linattn
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace linattn {
namespace {

HWY_EXPORT(MultiplyAdds);

}  // namespace

double MeasureFmaPeak() {
  using Clock = std::chrono::steady_clock;
  constexpr int64_t kRounds = 1 << 21;  // about 5 ms
  const auto run = HWY_DYNAMIC_DISPATCH(MultiplyAdds);
  double best = 0, sink = 0;
  const auto end = Clock::now() + std::chrono::milliseconds(300);
  while (Clock::now() < end) {
    double operations = 0;
    const auto start = Clock::now();
#pragma omp parallel reduction(+ : operations, sink)
    {
      float own = 0;
      operations += run(kRounds, &own);
      sink += static_cast<double>(own);
    }
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    best = std::max(best, operations / seconds / 1e9);
  }
  return sink == 0 ? 0 : best;
}

}  // namespace linattn
#endif  // HWY_ONCE
