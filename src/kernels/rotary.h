#pragma once

#include <cstdint>
#include <vector>

#include "base/array.h"

namespace linattn {

// Rotary positions: with theta_i = base^(-2i/C) and halves of the C channels paired (GPT-NeoX's
// order),
//
//     y_i       = x_i cos(t theta_i) - x_{i+C/2} sin(t theta_i)        i < C/2
//     y_{i+C/2} = x_{i+C/2} cos(t theta_i) + x_i sin(t theta_i)
//
// for the row of a token at position t, so that q . k depends on the distance of the two alone.
// Su et al. 2021, "RoFormer: enhanced transformer with rotary position embedding", eq. 34.
//
// Arrays are [B,T,heads,C] of F64, F32, BF16 or F16, strided except along C; in and out have one
// shape and type and may be the same memory. positions: [B,T] I64; stride 0 along B shares a row.
// Angles are reduced in float64: the error of a result does not grow with the position (F32: 5e-7
// of |x| up to 2^40 / theta). Constructed once; calls are const, never allocate and may run in
// several threads. Throws Error for shapes, types and strides that it would misread.
class Rotary {
 public:
  explicit Rotary(int64_t channels, double base = 10000);
  int64_t channels() const { return 2 * static_cast<int64_t>(turns_.size()); }

  void Forward(const Array& x, const Array& positions, const Array& y) const;
  // The gradient, which is the rotation back: d_x of d_y.
  void Backward(const Array& d_y, const Array& positions, const Array& d_x) const;

 private:
  void Run(const Array& x, const Array& positions, const Array& y, double direction) const;
  std::vector<double> turns_;  // theta_i / 2 pi
};

}  // namespace linattn
