#pragma once

#include "base/array.h"

namespace linattn {

// y = silu(a) b for each row [a, b] of x [rows,2m], y [rows,m] (Shazeer 2020, "GLU Variants Improve
// Transformer"); and with s = sigmoid(a): d_a = d_y b s (1 + a (1 - s)), d_b = d_y a s. F32 or BF16
// alike, computed in float32; rows may be strided. y may be the first half of x, d_x may be x. NaN
// stays NaN.
void SwiGluForward(const Array& x, const Array& y);
void SwiGluBackward(const Array& x, const Array& d_y, const Array& d_x);

// The same of one row of n: y = silu(a) b; y may be a.
void SwiGluRow(const float* a, const float* b, int64_t n, float* y);

}  // namespace linattn
