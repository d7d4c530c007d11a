#include "kernels/rotary.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/error.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/rotary.cc"
// clang-format off
#include <hwy/foreach_target.h>  // first, or each target would be compiled twice
#include <hwy/highway.h>
#include <hwy/contrib/math/math-inl.h>
// clang-format on

#include "kernels/narrow-inl.h"

HWY_BEFORE_NAMESPACE();
namespace linattn {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Channels [i, i + kLanes) of both halves, those of them that exist, in every head.
template <class T>
HWY_INLINE void RotateLanes(const Array& x, const Array& y, int64_t i, FloatVector cos,
                            FloatVector sin) {
  const int64_t half = x.shape[3] / 2, left = half - i;
  for (int64_t h = 0; h < x.shape[2]; ++h) {
    const T* from = x.At<T>(0, 0, h, i);
    T* to = y.At<T>(0, 0, h, i);
    const auto low = LoadRow(from, left), high = LoadRow(from + half, left);
    StoreRow(hn::NegMulAdd(high, sin, hn::Mul(low, cos)), to, left);
    StoreRow(hn::MulAdd(low, sin, hn::Mul(high, cos)), to + half, left);
  }
}

// One token, x and y [1,1,heads,C].
void RotateToken(const std::vector<double>& turns, double position, const Array& x,
                 const Array& y) {
  const FloatTag d;
  const int64_t half = static_cast<int64_t>(turns.size());
  HWY_ALIGN float angle[kLanes] = {};
  for (int64_t i = 0; i < half; i += kLanes) {
    for (int64_t j = 0; j < std::min(kLanes, half - i); ++j) {
      const double turn = position * turns[i + j];
      angle[j] = static_cast<float>((turn - std::floor(turn + 0.5)) * (2 * std::numbers::pi));
    }
    const auto a = hn::Load(d, angle), cos = hn::Cos(d, a), sin = hn::Sin(d, a);
    if (x.dtype == DType::kF32) RotateLanes<float>(x, y, i, cos, sin);
    if (x.dtype == DType::kBF16) RotateLanes<BF16>(x, y, i, cos, sin);
    if (x.dtype == DType::kF16) RotateLanes<F16>(x, y, i, cos, sin);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace linattn
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace linattn {
namespace {

HWY_EXPORT(RotateToken);

void RotateDoubles(const std::vector<double>& turns, double position, const Array& x,
                   const Array& y) {
  const int64_t half = static_cast<int64_t>(turns.size());
  for (int64_t i = 0; i < half; ++i) {
    const double turn = position * turns[i];
    const double angle = (turn - std::floor(turn + 0.5)) * (2 * std::numbers::pi);
    const double cos = std::cos(angle), sin = std::sin(angle);
    for (int64_t h = 0; h < x.shape[2]; ++h) {
      const double low = *x.At<double>(0, 0, h, i), high = *x.At<double>(0, 0, h, i + half);
      *y.At<double>(0, 0, h, i) = low * cos - high * sin;
      *y.At<double>(0, 0, h, i + half) = high * cos + low * sin;
    }
  }
}

// Row t of row b, [1,1,heads,C].
Array Token(Array a, int64_t b, int64_t t) {
  a.data = static_cast<char*>(a.data) + (b * a.stride[0] + t * a.stride[1]) * SizeOf(a.dtype);
  a.shape[0] = a.shape[1] = 1;
  return a;
}

void CheckArrays(const Array& x, const Array& positions, const Array& y, int64_t C) {
  if (x.rank != 4 || x.shape[3] != C || x.shape != y.shape || y.rank != 4)
    Fail("rotary", "x and y must be [B,T,heads,{}], but have shapes {} and {}", C, x.ShapeString(),
         y.ShapeString());
  Check(x.dtype == y.dtype && (x.dtype == DType::kF64 || x.dtype == DType::kF32 ||
                               x.dtype == DType::kBF16 || x.dtype == DType::kF16),
        "rotary", "x and y must be of one float type, but are {} and {}", NameOf(x.dtype),
        NameOf(y.dtype));
  Check(x.stride[3] == 1 && y.stride[3] == 1, "rotary",
        "x and y must be contiguous along their last axis, but have strides {} and {}", x.stride[3],
        y.stride[3]);
  if (positions.rank != 2 || positions.dtype != DType::kI64 || positions.shape[0] != x.shape[0] ||
      positions.shape[1] != x.shape[1])
    Fail("rotary", "positions must be [B,T] = [{},{}] of I64, but are {} of {}", x.shape[0],
         x.shape[1], positions.ShapeString(), NameOf(positions.dtype));
}

}  // namespace

Rotary::Rotary(int64_t channels, double base) {
  Check(channels >= 2 && channels % 2 == 0, "rotary",
        "a head must have an even number of channels, but has {}", channels);
  Check(base > 0, "rotary", "base must be above 0, but is {}", base);
  for (int64_t i = 0; i < channels; i += 2)
    turns_.push_back(std::pow(base, -static_cast<double>(i) / static_cast<double>(channels)) /
                     (2 * std::numbers::pi));
}

void Rotary::Run(const Array& x, const Array& positions, const Array& y, double direction) const {
  CheckArrays(x, positions, y, channels());
  const int64_t B = x.shape[0], T = x.shape[1];
  constexpr int64_t kElementsWorthAThread = 1 << 15;
#pragma omp parallel for schedule(static) if (x.size() > 2 * kElementsWorthAThread)
  for (int64_t i = 0; i < B * T; ++i) {
    const int64_t b = i / T, t = i % T;
    const double position = direction * static_cast<double>(*positions.At<int64_t>(b, t));
    if (x.dtype == DType::kF64)
      RotateDoubles(turns_, position, Token(x, b, t), Token(y, b, t));
    else
      HWY_DYNAMIC_DISPATCH(RotateToken)(turns_, position, Token(x, b, t), Token(y, b, t));
  }
}

void Rotary::Forward(const Array& x, const Array& positions, const Array& y) const {
  Run(x, positions, y, 1);
}

void Rotary::Backward(const Array& d_y, const Array& positions, const Array& d_x) const {
  Run(d_y, positions, d_x, -1);
}

}  // namespace linattn
#endif  // HWY_ONCE
