#include "kernels/swiglu.h"

#include "base/error.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/swiglu.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/narrow-inl.h"
#include "kernels/sigmoid-inl.h"

HWY_BEFORE_NAMESPACE();
namespace linattn {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class X>
HWY_INLINE void Forward(const X* a, const X* b, int64_t m, X* y) {
  for (int64_t i = 0; i < m; i += kLanes) {
    const int64_t n = m - i;
    StoreRow(hn::Mul(Silu(LoadRow(a + i, n)), LoadRow(b + i, n)), y + i, n);
  }
}

template <class X>
HWY_INLINE void Backward(const X* x, const X* d_y, int64_t m, X* d_x) {
  for (int64_t i = 0; i < m; i += kLanes) {
    const int64_t n = m - i;
    const auto a = LoadRow(x + i, n), b = LoadRow(x + m + i, n), d = LoadRow(d_y + i, n);
    const auto s = Sigmoid(a);
    StoreRow(hn::Mul(hn::Mul(d, b), SiluDerivative(a, s)), d_x + i, n);
    StoreRow(hn::Mul(d, hn::Mul(a, s)), d_x + m + i, n);
  }
}

void ForwardRow(const Array& x, const Array& y, int64_t row) {
  const int64_t m = y.shape[1];
  if (x.dtype == DType::kBF16)
    Forward(x.At<BF16>(row), x.At<BF16>(row, m), m, y.At<BF16>(row));
  else
    Forward(x.At<float>(row), x.At<float>(row, m), m, y.At<float>(row));
}

void ForwardFloats(const float* a, const float* b, int64_t n, float* y) { Forward(a, b, n, y); }

void BackwardRow(const Array& x, const Array& d_y, const Array& d_x, int64_t row) {
  const int64_t m = d_y.shape[1];
  x.dtype == DType::kBF16 ? Backward(x.At<BF16>(row), d_y.At<BF16>(row), m, d_x.At<BF16>(row))
                          : Backward(x.At<float>(row), d_y.At<float>(row), m, d_x.At<float>(row));
}

}  // namespace HWY_NAMESPACE
}  // namespace linattn
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace linattn {
namespace {

HWY_EXPORT(ForwardRow);
HWY_EXPORT(ForwardFloats);
HWY_EXPORT(BackwardRow);

constexpr int64_t kParallelFloats = 1 << 15;  // below, waking threads costs more than the work

void CheckRows(const char* name, const Array& a, int64_t width, const Array& x) {
  const bool shaped = a.rank == 2 && a.shape[0] == x.shape[0] && a.shape[1] == width;
  if (!shaped)  // spelling shapes out allocates, which a step must not
    Fail("swiglu", "{} must be [{},{}], but has shape {}", name, x.shape[0], width,
         a.ShapeString());
  Check(a.dtype == x.dtype && (a.dtype == DType::kF32 || a.dtype == DType::kBF16), "swiglu",
        "{} must be F32 or BF16 like x, but is {}", name, NameOf(a.dtype));
  Check(a.stride[1] == 1 || width <= 1, "swiglu",
        "{} must be contiguous along its rows, but has stride {}", name, a.stride[1]);
}

}  // namespace

void SwiGluForward(const Array& x, const Array& y) {
  CheckRows("y", y, x.shape[1] / 2, x), CheckRows("x", x, 2 * y.shape[1], x);
  const auto run = HWY_DYNAMIC_DISPATCH(ForwardRow);
#pragma omp parallel for if (x.size() > kParallelFloats)
  for (int64_t r = 0; r < x.shape[0]; ++r) run(x, y, r);
}

void SwiGluRow(const float* a, const float* b, int64_t n, float* y) {
  HWY_DYNAMIC_DISPATCH(ForwardFloats)(a, b, n, y);
}

void SwiGluBackward(const Array& x, const Array& d_y, const Array& d_x) {
  CheckRows("d_y", d_y, x.shape[1] / 2, x), CheckRows("d_x", d_x, x.shape[1], x);
  CheckRows("x", x, 2 * d_y.shape[1], x);
  const auto run = HWY_DYNAMIC_DISPATCH(BackwardRow);
#pragma omp parallel for if (x.size() > kParallelFloats)
  for (int64_t r = 0; r < x.shape[0]; ++r) run(x, d_y, d_x, r);
}

}  // namespace linattn
#endif  // HWY_ONCE
