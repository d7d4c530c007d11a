#include "kernels/gelu.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <numbers>

#include "base/error.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/gelu.cc"
#include <hwy/foreach_target.h>
// After foreach_target.
#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

#include "kernels/gelu-inl.h"
#include "kernels/narrow-inl.h"

HWY_BEFORE_NAMESPACE();
namespace linattn {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

void ForwardBlock(const float* x, int64_t n, float* y) {
  const FloatTag d;
  for (int64_t i = 0; i < n; i += kLanes) {
    const auto v = LoadRow(x + i, n - i);
    StoreRow(hn::Mul(v, NormalDistribution(d, v)), y + i, n - i);
  }
}

void BackwardBlock(const float* x, const float* d_y, int64_t n, float* d_x) {
  const FloatTag d;
  const auto density_at_0 = hn::Set(d, 0.3989422804014327f);
  for (int64_t i = 0; i < n; i += kLanes) {
    const auto v = LoadRow(x + i, n - i);
    // Beyond 13 the density is 0 in float32, and an infinite x times it would be NaN.
    const auto c = hn::Clamp(v, hn::Set(d, -13.5f), hn::Set(d, 13.5f));
    const auto density =
        hn::Mul(hn::Exp(d, hn::Mul(hn::Mul(c, c), hn::Set(d, -0.5f))), density_at_0);
    auto slope = hn::MulAdd(c, density, NormalDistribution(d, v));
    slope = hn::IfThenElse(hn::IsNaN(v), v, slope);
    StoreRow(hn::Mul(slope, LoadRow(d_y + i, n - i)), d_x + i, n - i);
  }
}

// d_x = slope d_y
void ScaleBlock(const float* slope, const BF16* d_y, int64_t n, BF16* d_x) {
  for (int64_t i = 0; i < n; i += kLanes)
    StoreRow(hn::Mul(LoadRow(slope + i, n - i), LoadRow(d_y + i, n - i)), d_x + i, n - i);
}

}  // namespace HWY_NAMESPACE
}  // namespace linattn
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace linattn {
namespace {

HWY_EXPORT(ForwardBlock);
HWY_EXPORT(BackwardBlock);
HWY_EXPORT(ScaleBlock);

constexpr int64_t kBlock = 1 << 13;  // elements a thread takes at a time

// Of every bfloat16 x, by its bits: y and dy/dx. A lookup costs a cycle, the formula four; and the
// values that occur, of a dozen exponents, stay in the nearest cache.
struct Tables {
  std::array<BF16, 1 << 16> y;
  std::array<float, 1 << 16> slope;
};

std::unique_ptr<const Tables> MakeTables() {
  auto tables = std::make_unique<Tables>();
  for (uint32_t bits = 0; bits < (1 << 16); ++bits) {
    const double x = ToFloat(BF16{static_cast<uint16_t>(bits)});
    const double phi = 0.5 * std::erfc(-x / std::numbers::sqrt2);
    const double density = std::exp(-0.5 * x * x) / std::sqrt(2 * std::numbers::pi);
    tables->y[bits] = ToBF16(static_cast<float>(phi == 0 ? -0.0 : x * phi));
    tables->slope[bits] = static_cast<float>(density == 0 ? phi : phi + x * density);
  }
  return tables;
}

const Tables& BF16Tables() {
  static const auto tables = MakeTables();
  return *tables;
}

void LookUp(const BF16* x, int64_t n, BF16* y) {
  const auto& table = BF16Tables().y;
  for (int64_t i = 0; i < n; ++i) y[i] = table[x[i].bits];
}

void LookUpBackward(const BF16* x, const BF16* d_y, int64_t n, BF16* d_x) {
  constexpr int64_t kPiece = 512;
  const auto& table = BF16Tables().slope;
  const auto scale = HWY_DYNAMIC_DISPATCH(ScaleBlock);
  float slope[kPiece];
  for (int64_t begin = 0; begin < n; begin += kPiece) {
    const int64_t m = std::min(kPiece, n - begin);
    for (int64_t i = 0; i < m; ++i) slope[i] = table[x[begin + i].bits];
    scale(slope, d_y + begin, m, d_x + begin);
  }
}

void CheckAlike(const Array& x, const Array& y) {
  Check(x.dtype == y.dtype && (x.dtype == DType::kF32 || x.dtype == DType::kBF16), "gelu",
        "arrays must be F32 or BF16 alike, but are {} and {}", NameOf(x.dtype), NameOf(y.dtype));
  Check(x.size() == y.size() && x.contiguous() && y.contiguous(), "gelu",
        "arrays must be contiguous and of one size, but are {} and {}", x.ShapeString(),
        y.ShapeString());
}

template <class T, class Run>
void Forward(Run run, const Array& x, const Array& y) {
  const int64_t n = x.size();
#pragma omp parallel for if (n > 2 * kBlock)
  for (int64_t i = 0; i < n; i += kBlock)
    run(static_cast<const T*>(x.data) + i, std::min(kBlock, n - i), static_cast<T*>(y.data) + i);
}

template <class T, class Run>
void Backward(Run run, const Array& x, const Array& d_y, const Array& d_x) {
  const int64_t n = x.size();
#pragma omp parallel for if (n > 2 * kBlock)
  for (int64_t i = 0; i < n; i += kBlock)
    run(static_cast<const T*>(x.data) + i, static_cast<const T*>(d_y.data) + i,
        std::min(kBlock, n - i), static_cast<T*>(d_x.data) + i);
}

}  // namespace

void GeluForward(const Array& x, const Array& y) {
  CheckAlike(x, y);
  if (x.dtype == DType::kF32)
    Forward<float>(HWY_DYNAMIC_DISPATCH(ForwardBlock), x, y);
  else
    Forward<BF16>(LookUp, x, y);
}

void GeluBackward(const Array& x, const Array& d_y, const Array& d_x) {
  CheckAlike(x, d_y), CheckAlike(x, d_x);
  if (x.dtype == DType::kF32)
    Backward<float>(HWY_DYNAMIC_DISPATCH(BackwardBlock), x, d_y, d_x);
  else
    Backward<BF16>(LookUpBackward, x, d_y, d_x);
}

}  // namespace linattn
#endif  // HWY_ONCE
