#pragma once

#include <cstdint>

namespace linattn {

// Hands out pieces of a block of floats, each on its own cache lines. A null block only counts.
class Pieces {
 public:
  explicit Pieces(float* block) : block_(block) {}
  float* Take(int64_t floats) {
    float* piece = block_ ? block_ + used_ : nullptr;
    used_ += (floats + 15) / 16 * 16;
    return piece;
  }
  int64_t used() const { return used_; }

 private:
  float* block_;
  int64_t used_ = 0;
};

// `floats` behind a piece; null where pieces are only counted.
inline float* Behind(float* piece, int64_t floats) { return piece ? piece + floats : nullptr; }

}  // namespace linattn
