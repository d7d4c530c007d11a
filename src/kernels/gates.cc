#include "kernels/gates.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/gates.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/sigmoid-inl.h"

HWY_BEFORE_NAMESPACE();
namespace linattn {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

void LogSigmoidRow(float* x, int64_t n, float factor) {
  const auto minus_factor = hn::Set(FloatTag(), -factor);
  ForEachVector(n, [=](auto load, auto store, int64_t i) HWY_ATTR {
    store(hn::Mul(minus_factor, Softplus(hn::Neg(load(x + i)))), x + i);
  });
}

void SoftplusRow(float* x, int64_t n, const SoftplusRate& r) {
  ForEachVector(n, [=](auto load, auto store, int64_t i) HWY_ATTR {
    const auto y = Softplus(hn::Add(load(x + i), load(r.bias + i)));
    store(hn::Neg(hn::Mul(load(r.rate + i), y)), x + i);
  });
}

void SigmoidRow(float* x, int64_t n, float factor) {
  const auto f = hn::Set(FloatTag(), factor);
  ForEachVector(n, [=](auto load, auto store, int64_t i)
                       HWY_ATTR { store(hn::Mul(f, Sigmoid(load(x + i))), x + i); });
}

}  // namespace HWY_NAMESPACE
}  // namespace linattn
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace linattn {
namespace {

HWY_EXPORT(LogSigmoidRow);
HWY_EXPORT(SoftplusRow);
HWY_EXPORT(SigmoidRow);

template <class Run>
void EachRow(Rows x, int64_t rows, const Run& run) {
  for (int64_t r = 0; r < rows; ++r) run(x.data + r * x.stride);
}

}  // namespace

void LogSigmoidDecay(Rows x, int64_t rows, int64_t n, double divisor) {
  const auto run = HWY_DYNAMIC_DISPATCH(LogSigmoidRow);
  const float factor = static_cast<float>(1 / divisor);
  EachRow(x, rows, [=](float* row) { run(row, n, factor); });
}

void SoftplusDecay(Rows x, int64_t rows, int64_t n, const SoftplusRate& rate) {
  const auto run = HWY_DYNAMIC_DISPATCH(SoftplusRow);
  EachRow(x, rows, [=](float* row) { run(row, n, rate); });
}

void SigmoidGate(Rows x, int64_t rows, int64_t n, double factor) {
  const auto run = HWY_DYNAMIC_DISPATCH(SigmoidRow);
  EachRow(x, rows, [=](float* row) { run(row, n, static_cast<float>(factor)); });
}

}  // namespace linattn
#endif  // HWY_ONCE
