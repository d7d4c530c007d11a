#pragma once

#include <cstdint>

#include "kernels/packed_matrix.h"
#include "kernels/prepared_rows.h"

namespace linattn {

// y = x W^T + bias for x [M,in], y [M,out]; y must not overlap x. Uses OpenMP threads where the
// work repays them; its scratch belongs to the thread, and grows to the largest call. Each y[m,n]
// is one sum over the inputs in order, so a row's result is bitwise the same whatever M, its place
// and the number of threads are.
void MatMul(int64_t M, ConstRows x, const PackedMatrix& w, Rows y);

// What one thread does of a product.
struct MatMulPart {
  int64_t panel_begin, panel_end;  // outputs [kPanel * panel_begin, kPanel * panel_end)
  int64_t input_begin = 0;         // x is inputs [input_begin, input_begin + x.in()) of W
  bool bias = true;                // adds the bias, if W has one
  bool add = false;                // y += instead of y =
};

// Of `threads` equal shares of the outputs, that of one thread.
inline MatMulPart ThreadPart(const PackedMatrix& w, int64_t thread, int64_t threads) {
  return {.panel_begin = thread * w.panels() / threads,
          .panel_end = (thread + 1) * w.panels() / threads};
}

// The part's columns of y [M,out] = x W^T + bias. Neither threads nor allocation. input_begin must
// be a multiple of InputsPerChunk(w.type()): at most 64. Throws Error if x was prepared for another
// type or does not fit W.
void MatMulPanels(const PreparedRows& x, const PackedMatrix& w, const MatMulPart& part, Rows y);

}  // namespace linattn
