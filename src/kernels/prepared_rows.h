#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/packed_matrix.h"

namespace linattn {

// Rows of activations: row m starts at data + m * stride (in floats).
struct ConstRows {
  const float* data;
  int64_t stride;
};
struct Rows {
  float* data;
  int64_t stride;
};

// Activations as the micro-kernels read them, for weights of one type: made once, multiplied with
// any number of matrices by any number of threads.
class PreparedRows {
 public:
  PreparedRows() = default;
  // With room for `max_rows` rows of `max_in` inputs of any type: nothing up to that allocates.
  PreparedRows(int64_t max_rows, int64_t max_in) { Reserve(max_rows, max_in); }
  void Reserve(int64_t max_rows, int64_t max_in);

  // Prepares x [M,in]: Shape, then Fill of all rows.
  void Prepare(WeightType type, int64_t M, int64_t in, ConstRows x) {
    Shape(type, M, in);
    Fill(0, M, x);
  }
  // The same in parts: one thread calls Shape; then any threads fill disjoint rows [begin,end) from
  // the rows of the same number in x. int8: a row that holds NaN or infinity gets the scale NaN.
  void Shape(WeightType type, int64_t M, int64_t in);
  void Fill(int64_t begin, int64_t end, ConstRows x);

  WeightType type() const { return type_; }
  int64_t rows() const { return rows_; }
  int64_t in() const { return in_; }
  int64_t chunks() const { return chunks_; }

  // Rows lie in tiles of nearly equal size, at most kTileRows; a tile of R rows is
  // [chunks,R,kChunkWords].
  static constexpr int64_t kTileRows = 12;
  int64_t tiles() const { return (rows_ + kTileRows - 1) / kTileRows; }
  int64_t tile_begin(int64_t t) const { return t * rows_ / tiles(); }
  const uint32_t* tile(int64_t t) const {
    return lines_[static_cast<size_t>(tile_begin(t) * chunks_)].words;
  }
  // Where a row's chunks go, and what int8 says of it.
  struct Place {
    Chunk* chunk;
    int64_t step;  // from one chunk of the row to the next
    float* scale;
    int32_t* offset;
  };
  // int8, each [rows]: what one step of the row's integers means, and 128 times their sum, which
  // the unsigned weights add to each product.
  const float* scale() const { return scale_.data(); }
  const int32_t* offset() const { return offset_.data(); }

 private:
  WeightType type_ = WeightType::kFloat32;
  int64_t rows_ = 0, in_ = 0, chunks_ = 0;
  std::vector<Chunk> lines_;
  std::vector<float> scale_;
  std::vector<int32_t> offset_;
};

}  // namespace linattn
