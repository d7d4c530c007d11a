#pragma once

#include "base/array.h"

namespace linattn {

// GELU for training: y = x Phi(x) and d_x = d_y (Phi(x) + x exp(-x^2/2) / sqrt(2 pi)), exact form
// (Hendrycks & Gimpel 2016). Contiguous arrays of one size, F32 or BF16 alike, computed in float32:
// |error| <= 3e-7 max(1, |x|) before rounding. y may be x, d_x may be x or d_y. NaN stays NaN.
void GeluForward(const Array& x, const Array& y);
void GeluBackward(const Array& x, const Array& d_y, const Array& d_x);

}  // namespace linattn
