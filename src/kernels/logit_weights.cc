#include "kernels/logit_weights.h"

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/logit_weights.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/exp-inl.h"

HWY_BEFORE_NAMESPACE();
namespace linattn {
namespace HWY_NAMESPACE {

float Largest(const float* x, int64_t n) {
  const FloatTag d;
  FloatVector largest = hn::Set(d, x[0]), zeros = hn::Zero(d);
  ForEachVector(n, [&](auto load, auto, int64_t i) HWY_ATTR {
    FloatVector v = load(x + i);
    zeros = hn::MulAdd(v, hn::Zero(d), zeros);  // NaN from what is not finite
    if (i + kLanes > n) v = hn::IfThenElse(hn::FirstN(d, static_cast<size_t>(n - i)), v, largest);
    largest = hn::Max(largest, v);
  });
  return hn::GetLane(hn::Add(hn::MaxOfLanes(d, largest), hn::SumOfLanes(d, zeros)));
}

void Weights(const float* x, int64_t n, float top, float factor, float* y) {
  const FloatTag d;
  const FloatVector t = hn::Set(d, top), f = hn::Set(d, factor), least = hn::Set(d, -104.0f);
  ForEachVector(n, [&](auto load, auto store, int64_t i) HWY_ATTR {
    const FloatVector v = hn::Max(least, hn::Mul(hn::Sub(load(x + i), t), f));
    store(ExpOrNaN(v), y + i);
  });
}

// At most so many that float32 sums are within 1e-6.
WeightMass BlockMass(const float* x, int64_t n, float least) {
  const FloatTag d;
  const FloatVector bound = hn::Set(d, least);
  FloatVector sum = hn::Zero(d);
  WeightMass mass;
  ForEachVector(n, [&](auto load, auto, int64_t i) HWY_ATTR {
    const FloatVector v = load(x + i);
    auto in = hn::Ge(v, bound);
    if (i + kLanes > n) in = hn::And(in, hn::FirstN(d, static_cast<size_t>(n - i)));
    sum = hn::Add(sum, hn::IfThenElseZero(in, v));
    mass.count += static_cast<int64_t>(hn::CountTrue(d, in));
  });
  mass.mass = hn::GetLane(hn::SumOfLanes(d, sum));
  return mass;
}

int64_t Between(std::span<const float> x, float least, float end, float* y) {
  const FloatTag d;
  const FloatVector low = hn::Set(d, least), high = hn::Set(d, end);
  const auto n = std::ssize(x);
  const float* to = y;
  ForEachVector(n, [&](auto load, auto, int64_t i) HWY_ATTR {
    const FloatVector v = load(&x[i]);
    auto in = hn::And(hn::Ge(v, low), hn::Lt(v, high));
    if (i + kLanes > n) in = hn::And(in, hn::FirstN(d, static_cast<size_t>(n - i)));
    hn::StoreU(hn::Compress(v, in), d, y);  // CompressStore takes 100 cycles on Zen 4
    y += hn::CountTrue(d, in);
  });
  return y - to;
}

}  // namespace HWY_NAMESPACE
}  // namespace linattn
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace linattn {
namespace {

HWY_EXPORT(Largest);
HWY_EXPORT(Weights);
HWY_EXPORT(BlockMass);
HWY_EXPORT(Between);

}  // namespace

float LargestOrNaN(std::span<const float> x) {
  return HWY_DYNAMIC_DISPATCH(Largest)(x.data(), std::ssize(x));
}

void LogitWeights(std::span<const float> x, float top, float factor, float* weights) {
  HWY_DYNAMIC_DISPATCH(Weights)(x.data(), std::ssize(x), top, factor, weights);
}

WeightMass MassFrom(std::span<const float> x, float least) {
  constexpr size_t kBlock = 1024;
  const auto block = HWY_DYNAMIC_DISPATCH(BlockMass);
  WeightMass all;
  for (size_t i = 0; i < x.size(); i += kBlock) {
    const auto part = x.subspan(i, std::min(kBlock, x.size() - i));
    const WeightMass mass = block(part.data(), std::ssize(part), least);
    all.mass += mass.mass, all.count += mass.count;
  }
  return all;
}

int64_t WeightsBetween(std::span<const float> x, float least, float end, float* some) {
  return HWY_DYNAMIC_DISPATCH(Between)(x, least, end, some);
}

}  // namespace linattn
#endif  // HWY_ONCE
