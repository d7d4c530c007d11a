#pragma once

#include <cstdint>
#include <vector>

#include "base/array.h"

namespace linattn {

// The weight of a linear layer, copied once into the order in which the micro-kernel reads it.
// Immutable, and shared by any number of threads. Stored as float32; shorter weights will be
// further dtypes of Pack.
class PackedMatrix {
 public:
  PackedMatrix() = default;
  // weight [out,in] row-major F32; bias [out] or null. Both are copied.
  static PackedMatrix Pack(const float* weight, const float* bias, int64_t out, int64_t in);

  int64_t in() const { return in_; }
  int64_t out() const { return out_; }
  int64_t bytes() const {
    return static_cast<int64_t>(sizeof(float) * (panels_.size() + bias_.size()));
  }

  // Outputs are grouped in panels of kPanel; panel p is [in,kPanel] with the outputs of one input
  // side by side, and zeros beyond `out`.
  static constexpr int64_t kPanel = 32;
  int64_t panels() const { return (out_ + kPanel - 1) / kPanel; }
  const float* panel(int64_t p) const { return panels_.data() + p * in_ * kPanel; }
  const float* bias() const { return bias_.empty() ? nullptr : bias_.data(); }

 private:
  int64_t in_ = 0, out_ = 0;
  std::vector<float> panels_, bias_;
};

// Rows of activations: row m starts at data + m * stride (in floats).
struct ConstRows {
  const float* data;
  int64_t stride;
};
struct Rows {
  float* data;
  int64_t stride;
};

// y = x W^T + bias for x [M,in], y [M,out]; y must not overlap x. Uses OpenMP threads where the
// work repays them. Each y[m,n] is one sum over the inputs in order, so a row's result is bitwise
// the same whatever M, its place and the number of threads are.
void MatMul(int64_t M, ConstRows x, const PackedMatrix& w, Rows y);

}  // namespace linattn
