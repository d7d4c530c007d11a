#pragma once

#include <cstdint>
#include <span>

#include "base/array.h"

namespace linattn {

// One tensor of what is trained, with its gradient and two moments: contiguous, of one size, F32 or
// F64 alike.
struct AdamTensor {
  Array x, gradient, m, v;
};

// What the optimisers of Adam's family do to each number, once the step's own factors are known:
//   g = gradient_scale gradient + coupled_decay x
//   m = beta1 m + (1 - beta1) g        v = beta2 v + (1 - beta2) g^2
//   x = keep x - rate m / (v_scale sqrt(v) + eps)         without dividing if not `adaptive`
struct AdamUpdate {
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
  double gradient_scale = 1;
  double coupled_decay = 0;  // Adam's weight decay
  double keep = 1;           // 1 - rate * decay: AdamW's and RAdam's
  double rate = 1e-3, v_scale = 1;
  bool adaptive = true;
};

// All tensors in one pass over memory, by all threads. The same bits for any number of them.
void UpdateTensors(std::span<const AdamTensor> tensors, const AdamUpdate& update);

// The sum of the squares of all numbers, F32 or F64, in float64; NaN or infinity if one is, or if
// the square of a float32 overflows. The same bits for any number of threads.
double SumOfSquares(std::span<const Array> arrays);

}  // namespace linattn
