// Small dense pieces of the chunk kernels: rows, panels, transposes, lower triangles. Included once
// a SIMD target, inside foreach_target's loop.
#if defined(LINATTN_KERNELS_DENSE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LINATTN_KERNELS_DENSE_INL_H_
#undef LINATTN_KERNELS_DENSE_INL_H_
#else
#define LINATTN_KERNELS_DENSE_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "kernels/gemm-inl.h"
#include "kernels/row-inl.h"
#include "kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace linattn {
namespace HWY_NAMESPACE {

HWY_INLINE void Multiply(int64_t n, const float* x, const float* y, float* product) {
  ForEachVector(n, [=](auto load, auto store, int64_t i)
                       HWY_ATTR { store(hn::Mul(load(x + i), load(y + i)), product + i); });
}

// sum += x y.
HWY_INLINE void AddProduct(int64_t n, const float* x, const float* y, float* sum) {
  ForEachVector(n, [=](auto load, auto store, int64_t i) HWY_ATTR {
    store(hn::MulAdd(load(x + i), load(y + i), load(sum + i)), sum + i);
  });
}

// z += sum of the n rows of x [n,F].
HWY_INLINE void AddRows(const float* x, int64_t n, int64_t F, float* z) {
  ForEachVector(F, [=](auto load, auto store, int64_t i) HWY_ATTR {
    FloatVector sum = hn::Zero(FloatTag());
    for (int64_t r = 0; r < n; ++r) sum = hn::Add(sum, load(x + r * F + i));
    store(hn::Add(load(z + i), sum), z + i);
  });
}

// body(vectors, load, store, i) for elements [i, i + vectors * kLanes): `vectors` is 4, 2 or 1 at
// compile time, to be held in registers; the last one may be partial.
template <class Body>
HWY_INLINE void ForEachPanel(int64_t n, const Body& body) {
  const auto load = [](const float* p) HWY_ATTR { return hn::LoadU(FloatTag(), p); };
  const auto store = [](FloatVector v, float* p) HWY_ATTR { hn::StoreU(v, FloatTag(), p); };
  int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes)
    body(std::integral_constant<int, 4>(), load, store, i);
  for (; i + 2 * kLanes <= n; i += 2 * kLanes)
    body(std::integral_constant<int, 2>(), load, store, i);
  for (; i + kLanes <= n; i += kLanes) body(std::integral_constant<int, 1>(), load, store, i);
  if (const int64_t tail = n - i; tail > 0)
    body(
        std::integral_constant<int, 1>(),
        [tail](const float* p) HWY_ATTR { return LoadPartial(p, tail); },
        [tail](FloatVector v, float* p) HWY_ATTR { StorePartial(v, p, tail); }, i);
}

// Rows are contiguous, `stride` floats apart.
struct Block {
  const float* data;
  int64_t rows, columns, stride;
};

// y [columns,rows] = transpose of x, rows of y `stride` floats apart.
HWY_INLINE void Transpose(Block x, float* HWY_RESTRICT y, int64_t stride) {
  int64_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  const hn::FixedTag<float, 4> d;
  const hn::FixedTag<double, 2> pairs;
  for (; i + 4 <= x.rows; i += 4) {
    const float* HWY_RESTRICT row = x.data + i * x.stride;
    int64_t j = 0;
    for (; j + 4 <= x.columns; j += 4) {
      const auto r0 = hn::LoadU(d, row + j), r1 = hn::LoadU(d, row + x.stride + j);
      const auto r2 = hn::LoadU(d, row + 2 * x.stride + j);
      const auto r3 = hn::LoadU(d, row + 3 * x.stride + j);
      const auto low01 = hn::BitCast(pairs, hn::InterleaveLower(d, r0, r1));
      const auto low23 = hn::BitCast(pairs, hn::InterleaveLower(d, r2, r3));
      const auto high01 = hn::BitCast(pairs, hn::InterleaveUpper(d, r0, r1));
      const auto high23 = hn::BitCast(pairs, hn::InterleaveUpper(d, r2, r3));
      float* HWY_RESTRICT to = y + j * stride + i;
      hn::StoreU(hn::BitCast(d, hn::InterleaveLower(pairs, low01, low23)), d, to);
      hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(pairs, low01, low23)), d, to + stride);
      hn::StoreU(hn::BitCast(d, hn::InterleaveLower(pairs, high01, high23)), d, to + 2 * stride);
      hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(pairs, high01, high23)), d, to + 3 * stride);
    }
    for (; j < x.columns; ++j)
      for (int64_t r = 0; r < 4; ++r) y[j * stride + i + r] = row[r * x.stride + j];
  }
#endif
  for (; i < x.rows; ++i)
    for (int64_t j = 0; j < x.columns; ++j) y[j * stride + i] = x.data[i * x.stride + j];
}

// Rows [i0, i1) of a lower triangle in [C,C] blocks are computed to column `columns(i1)` only.
constexpr int64_t kTriangleRows = 8;

// A (+)= X Y^T at and below the diagonal, for X [n,D] and YT [D,C]; A [n,C] above it is left
// undefined.
HWY_INLINE void LowerProduct(int64_t n, int64_t D, const float* X, const float* YT, int64_t C,
                             float* A, bool add = false) {
  for (int64_t i = 0; i < n; i += kTriangleRows) {
    const int64_t rows = std::min(kTriangleRows, n - i);
    const int64_t columns = std::min(n, (i + rows + kLanes - 1) / kLanes * kLanes);
    Gemm({rows, columns, D}, {X + i * D, D, 1}, {YT, C}, {A + i * C, C, add});
  }
}

// Zeroes what lies above the diagonal, and adds shift[i] to row i below it.
HWY_INLINE void MaskUpper(int64_t n, int64_t C, const float* shift, float* A) {
  for (int64_t i = 0; i < n; ++i) {
    float* row = A + i * C;
    if (shift)
      for (int64_t j = 0; j <= i; ++j) row[j] += shift[i];
    std::fill(row + i + 1, row + n, 0.0f);
  }
}

// Y (+)= A X for a lower triangle A [n,C] and X [n,D].
HWY_INLINE void LowerTimes(int64_t n, int64_t D, const float* A, int64_t C, const float* X,
                           GemmC y) {
  for (int64_t i = 0; i < n; i += kTriangleRows) {
    const int64_t rows = std::min(kTriangleRows, n - i);
    Gemm({rows, D, i + rows}, {A + i * C, C, 1}, {X, D}, {y.data + i * y.row, y.row, y.add});
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace linattn
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
