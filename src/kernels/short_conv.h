#pragma once

#include <cstdint>

#include "base/array.h"

namespace linattn {

// A short causal convolution along the tokens, one filter a channel, then silu:
//   y_t = silu(sum_j w_j x_{t-W+1+j}),  j = 0..W-1: the last tap is the current token's
// (Fu et al. 2023, "Hungry Hungry Hippos"; Gu & Dao 2023, "Mamba"). Sums are float32.
struct ShortConv {
  const float* weight = nullptr;  // [W, channels]
  int64_t width = 0, channels = 0;

  static constexpr int64_t kMostWidth = 64;
};

// x [B,T,channels] -> y, F32 or BF16 alike; channels contiguous. y may be x. history: of each row b
// the W-1 inputs before its first, [W-1, channels], oldest first; afterwards the last W-1. Null:
// zeros, and nothing is kept. A row's result depends neither on how its tokens are cut into calls
// nor on the thread count, bit for bit. Does not allocate.
void ShortConvForward(const ShortConv& conv, const Array& x, float* const* history, const Array& y);

// One token a row, in place: channels [begin, end) of y = x, [B,1,channels] F32. Starts no threads.
void ShortConvStep(const ShortConv& conv, const Array& x, float* const* history, int64_t begin,
                   int64_t end);

// Gradients of ShortConvForward without history, from its input: d_x (may be d_y) in their dtype,
// d_weight [W, channels] float32. Same for any thread count.
struct ShortConvGradients {
  Array x, d_y;               // in
  Array d_x;                  // out
  float* d_weight = nullptr;  // out
};
void ShortConvBackward(const ShortConv& conv, const ShortConvGradients& g);

}  // namespace linattn
