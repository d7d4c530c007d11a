// Small dense products in registers, the heart of every chunked kernel. Included once a SIMD
// target, inside foreach_target's loop.
#if defined(LINATTN_KERNELS_GEMM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LINATTN_KERNELS_GEMM_INL_H_
#undef LINATTN_KERNELS_GEMM_INL_H_
#else
#define LINATTN_KERNELS_GEMM_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>

#include "kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace linattn {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// C = A B, or C += A B, with A [M,K], B [K,N], C [M,N]. Rows of B and C are contiguous; A is read
// one element at a time through two strides, so that a transposed A costs nothing. Nothing outside
// the matrices is touched, and C must not overlap A or B.
struct GemmSize {
  int64_t M, N, K;
};
struct GemmA {
  const float* data;
  int64_t row, column;  // strides: A(m,k) = data[m * row + k * column]
};
struct GemmB {
  const float* data;
  int64_t row;
};
struct GemmC {
  float* data;
  int64_t row;
  bool add = false;  // C += instead of C =
};

// A tile of C is kTileRows x kTileVectors registers. AVX-512 has 32 of them, AVX2 and the rest 16;
// the tiles leave room for the row of B and keep enough sums in flight to hide the latency of an
// FMA.
#if HWY_TARGET <= HWY_AVX3
constexpr int kTileRows = 8;
#else
constexpr int kTileRows = 4;
#endif
constexpr int kTileVectors = 2;

// One tile. Each element is summed over k in order and added to C last, so a result does not depend
// on the tile that it falls into. kPartial: only the first `tail` lanes of the one vector exist.
template <int kRows, int kVectors, bool kPartial>
HWY_INLINE void Tile(int64_t K, GemmA a, GemmB b, GemmC c, int64_t tail) {
  static_assert(!kPartial || kVectors == 1);
  const FloatTag d;
  FloatVector sum[kRows][kVectors];
#pragma GCC unroll 8
  for (int m = 0; m < kRows; ++m)
#pragma GCC unroll 4
    for (int n = 0; n < kVectors; ++n) sum[m][n] = hn::Zero(d);
  for (int64_t k = 0; k < K; ++k) {
    const float* HWY_RESTRICT row = b.data + k * b.row;
    const float* HWY_RESTRICT column = a.data + k * a.column;
    FloatVector right[kVectors];
#pragma GCC unroll 4
    for (int n = 0; n < kVectors; ++n) {
      if constexpr (kPartial)
        right[n] = LoadPartial(row, tail);
      else
        right[n] = hn::LoadU(d, row + n * kLanes);
    }
#pragma GCC unroll 8
    for (int m = 0; m < kRows; ++m) {
      const FloatVector left = hn::Set(d, column[m * a.row]);
#pragma GCC unroll 4
      for (int n = 0; n < kVectors; ++n) sum[m][n] = hn::MulAdd(left, right[n], sum[m][n]);
    }
  }
#pragma GCC unroll 8
  for (int m = 0; m < kRows; ++m) {
#pragma GCC unroll 4
    for (int n = 0; n < kVectors; ++n) {
      float* to = c.data + m * c.row + n * kLanes;
      if constexpr (kPartial) {
        if (c.add) sum[m][n] = hn::Add(LoadPartial(to, tail), sum[m][n]);
        StorePartial(sum[m][n], to, tail);
      } else {
        if (c.add) sum[m][n] = hn::Add(hn::LoadU(d, to), sum[m][n]);
        hn::StoreU(sum[m][n], d, to);
      }
    }
  }
}

// One column of tiles, of all M rows.
template <int kVectors, bool kPartial>
HWY_NOINLINE void TileColumn(GemmSize size, GemmA a, GemmB b, GemmC c) {
  const auto down = [&](int64_t rows) HWY_ATTR {
    a.data += rows * a.row;
    c.data += rows * c.row;
    size.M -= rows;
  };
  for (; size.M >= kTileRows; down(kTileRows))
    Tile<kTileRows, kVectors, kPartial>(size.K, a, b, c, size.N);
  if constexpr (kTileRows > 4) {
    if (size.M >= 4) {
      Tile<4, kVectors, kPartial>(size.K, a, b, c, size.N);
      down(4);
    }
  }
  if (size.M >= 2) {
    Tile<2, kVectors, kPartial>(size.K, a, b, c, size.N);
    down(2);
  }
  if (size.M > 0) Tile<1, kVectors, kPartial>(size.K, a, b, c, size.N);
}

HWY_INLINE void Gemm(GemmSize size, GemmA a, GemmB b, GemmC c) {
  const auto right = [&](int64_t columns) HWY_ATTR {
    b.data += columns;
    c.data += columns;
    size.N -= columns;
  };
  for (; size.N >= kTileVectors * kLanes; right(kTileVectors * kLanes))
    TileColumn<kTileVectors, false>(size, a, b, c);
  for (; size.N >= kLanes; right(kLanes)) TileColumn<1, false>(size, a, b, c);
  if (size.N > 0) TileColumn<1, true>(size, a, b, c);
}

}  // namespace HWY_NAMESPACE
}  // namespace linattn
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
