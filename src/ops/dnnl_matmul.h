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
  int64_t b_row = 0, b_column = 1;
  int64_t c_row = 0;
  DType in = DType::kF32, out = DType::kF32;
  bool bias = false;
  auto operator<=>(const MatmulSpec&) const = default;
};

// Safe to call from many threads; primitives are made once a spec. Nothing may alias C. Throws
// Error (ours) where oneDNN has no implementation.
void DnnlMatmul(const MatmulSpec& spec, const void* A, const void* B, const float* bias, void* C);

}  // namespace linattn
