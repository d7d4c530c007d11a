#pragma once

#include <compare>
#include <cstdint>

#include "base/array.h"

namespace linattn {

// C [M,N] = A [M,K] B [K,N] (+ bias [N]), by oneDNN. A and B are F32, BF16 or F16 alike; C is
// theirs or F32; bias is F32. Strides count elements; of each matrix one of the two must be 1.
struct MatmulSpec {
  int64_t M = 0, N = 0, K = 0;
  int64_t a_row = 0, a_column = 1;
  int64_t b_row = 0, b_column = 1;  // packed: of what PackB reads
  int64_t c_row = 0;
  DType in = DType::kF32, out = DType::kF32;
  bool bias = false;
  bool packed = false;  // B is what PackB made for this very spec
  auto operator<=>(const MatmulSpec&) const = default;
};

// d_W [out,in] F32 = d_Y^T X, with X [rows,in] and d_Y [rows,out] of type `type`, rows without
// gaps.
struct WeightGradientSpec {
  int64_t rows = 0, in = 0, out = 0;
  DType type = DType::kF32;
  bool transposed = false;  // d_W is written as [in,out]
  auto operator<=>(const WeightGradientSpec&) const = default;
};

// All are safe to call from many threads; primitives are made once a spec. Nothing may alias what
// is written. They throw Error (ours) where oneDNN has no implementation.
void DnnlMatmul(const MatmulSpec& spec, const void* A, const void* B, const float* bias, void* C);
void DnnlWeightGradient(const WeightGradientSpec& spec, const void* d_Y, const void* X, float* d_W);

// B, rounded from F32 and laid out as the product's kernels read it, in PackedBytes(spec) bytes.
// For one product it costs 1 to 2% of the product's time and saves 5 to 15%.
int64_t PackedBytes(const MatmulSpec& spec);
void PackB(const MatmulSpec& spec, const float* B, void* packed);

}  // namespace linattn
