#include "kernels/gemm.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/error.h"
#include "kernels/native_dots.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/gemm.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/dot-inl.h"

HWY_BEFORE_NAMESPACE();
namespace linattn {
namespace HWY_NAMESPACE {

constexpr int64_t kPanel = PackedMatrix::kPanel;
constexpr int64_t kPanelVectors = kPanel / kLanes;

// A tile of sums is rows x vectors of a panel, both as many as the registers hold: beside the sums
// a column of weights and one word of a row, and one register for what the compiler needs.
#if HWY_TARGET <= HWY_AVX3 || HWY_TARGET == HWY_NEON
constexpr int64_t kRegisters = 32;
#else
constexpr int64_t kRegisters = 16;
#endif
template <class Dot>
constexpr bool Fits(int64_t rows, int64_t vectors) {
  return rows * vectors + (vectors + 1) * Dot::kPieces < kRegisters;
}
// Few rows take many vectors: enough sums in flight to hide the latency of a product.
template <class Dot>
constexpr int64_t TileVectors(int64_t rows) {
  int64_t vectors = std::min<int64_t>(8, kPanelVectors);
  while (vectors > 2 && !Fits<Dot>(rows, vectors)) vectors /= 2;
  return vectors;
}
template <class Dot>
constexpr int64_t TileRows() {
  int64_t rows = PreparedRows::kTileRows;
  while (rows > 1 && !Fits<Dot>(rows, 2)) --rows;
  return rows;
}

// Rows of a tile of PreparedRows.
struct LeftRows {
  const uint32_t* words;
  int64_t chunk_words;  // from one chunk to the next
  const float* scale;
  const int32_t* offset;
  Rows y;
};

// Columns of y, from the first of the tile on.
struct RightColumns {
  const uint32_t* words;
  int64_t chunks;
  const float *bias, *scale;
  int64_t width;  // how many exist
  int64_t ahead;  // words from those read to those that come later
  bool add;
};

// Panels of a matrix, as far as they take part.
struct RightPanels {
  const PackedMatrix* matrix;
  int64_t begin = 0, end = 0;
  int64_t skipped, chunks;  // words of a panel before the first input; chunks of inputs
  int64_t block, last;      // panels between two visits of this tile; the end of all panels
  bool bias, add;

  RightColumns Columns(int64_t first) const {
    const PackedMatrix& w = *matrix;
    const int64_t p = first / kPanel;
    const uint32_t* words = w.panel(p);
    return {
        words + skipped + first % kPanel,
        chunks,
        bias && w.bias() ? w.bias() + first : nullptr,
        w.scale() ? w.scale() + first : nullptr,
        w.out() - first,
        p + block < last ? w.panel(p + block) - words : block * w.chunks() * kChunkWords * kPanel,
        add};
  }
};

HWY_INLINE void PrefetchToL2(const uint32_t* p) { __builtin_prefetch(p, 0, 2); }

template <class Dot, int64_t kRows, int64_t kVectors>
HWY_INLINE void Products(const LeftRows& left, const RightColumns& right,
                         typename Dot::Sum (&sum)[kRows][kVectors]) {
  const uint32_t* HWY_RESTRICT x = left.words;
  const uint32_t* HWY_RESTRICT w = right.words;
  for (int64_t c = 0; c < right.chunks; ++c, x += left.chunk_words) {
    for (int64_t k = 0; k < kChunkWords; ++k, w += kPanel) {
      typename Dot::Right column[kVectors];
#pragma GCC unroll 8
      for (int64_t n = 0; n < kVectors; ++n) {
        column[n] = Dot::LoadRight(w + n * kLanes);
        // A tile that reads a part of each group of lines is a pattern that prefetchers lose (two
        // threads, 8 rows each, weights from L3: 156 GFLOP/s; into L1 200, into L2 260).
        if constexpr (kVectors < kPanelVectors) PrefetchToL2(w + right.ahead + n * kLanes);
      }
#pragma GCC unroll 12
      for (int64_t m = 0; m < kRows; ++m) {
        const typename Dot::Left row = Dot::SetLeft(x[m * kChunkWords + k]);
#pragma GCC unroll 8
        for (int64_t n = 0; n < kVectors; ++n) Dot::Add(sum[m][n], row, column[n]);
      }
    }
  }
}

template <class Dot>
HWY_INLINE void Finish(typename Dot::Sum sum, float row_scale, const RightColumns& right, int64_t n,
                       float* y) {
  const FloatTag d;
  FloatVector value = Dot::Float(sum);
  if constexpr (Dot::kInteger)
    value = hn::Mul(hn::Mul(value, hn::LoadU(d, right.scale + n)), hn::Set(d, row_scale));
  if (right.bias) value = hn::Add(value, hn::LoadU(d, right.bias + n));
  if (n + kLanes <= right.width) {
    if (right.add) value = hn::Add(value, hn::LoadU(d, y + n));
    hn::StoreU(value, d, y + n);
  } else if (n < right.width) {
    if (right.add) value = hn::Add(value, LoadPartial(y + n, right.width - n));
    StorePartial(value, y + n, right.width - n);
  }
}

// One tile. Each sum takes the inputs in order and all else last, so a result does not depend on
// the tile that it falls into.
template <class Dot, int64_t kRows, int64_t kVectors>
HWY_NOINLINE void Tile(const LeftRows& left, const RightColumns& right) {
  typename Dot::Sum sum[kRows][kVectors];
#pragma GCC unroll 12
  for (int64_t m = 0; m < kRows; ++m)
#pragma GCC unroll 8
    for (int64_t n = 0; n < kVectors; ++n)
      sum[m][n] = Dot::Start(Dot::kInteger ? -left.offset[m] : 0);
  Products<Dot, kRows, kVectors>(left, right, sum);
#pragma GCC unroll 12
  for (int64_t m = 0; m < kRows; ++m) {
    float* y = left.y.data + m * left.y.stride;
#pragma GCC unroll 8
    for (int64_t n = 0; n < kVectors; ++n)
      Finish<Dot>(sum[m][n], Dot::kInteger ? left.scale[m] : 1, right, n * kLanes, y);
  }
}

template <class Dot, int64_t kRows>
void RowsTimesPanels(LeftRows rows, const RightPanels& right) {
  constexpr int64_t kVectors = TileVectors<Dot>(kRows), kWidth = kVectors * kLanes;
  static_assert(kPanelVectors % kVectors == 0);
  rows.y.data += right.begin * kPanel;
  for (int64_t n = right.begin * kPanel; n < right.end * kPanel; n += kWidth) {
    Tile<Dot, kRows, kVectors>(rows, right.Columns(n));
    rows.y.data += kWidth;
  }
}

using RowsFunction = void (*)(LeftRows, const RightPanels&);
template <class Dot, size_t... kIndex>
constexpr std::array<RowsFunction, sizeof...(kIndex)> RowsTable(std::index_sequence<kIndex...>) {
  return {RowsTimesPanels<Dot, static_cast<int64_t>(kIndex) + 1>...};
}

// Tile t of x times panels: in as few pieces of nearly equal size as the registers allow.
template <class Dot>
void TileTimesPanels(const PreparedRows& x, int64_t t, const RightPanels& right, Rows y) {
  constexpr int64_t kTileRows = TileRows<Dot>();
  static constexpr auto kTable = RowsTable<Dot>(std::make_index_sequence<kTileRows>());
  const int64_t first = x.tile_begin(t), rows = x.tile_begin(t + 1) - first;
  const int64_t pieces = (rows + kTileRows - 1) / kTileRows;
  for (int64_t i = 0; i < pieces; ++i) {
    const int64_t m = i * rows / pieces, end = (i + 1) * rows / pieces;
    kTable[end - m - 1]({x.tile(t) + m * kChunkWords,
                         rows * kChunkWords,
                         x.scale() + first + m,
                         x.offset() + first + m,
                         {y.data + (first + m) * y.stride, y.stride}},
                        right);
  }
}

template <class Dot>
void Part(const PreparedRows& x, const PackedMatrix& w, const MatMulPart& part, Rows y) {
  // Panels that all rows meet while they are in the cache.
  constexpr int64_t kPanelBlock = 2;
  const int64_t tiles = x.tiles(), block = tiles > 1 ? kPanelBlock : part.panel_end;
  const int64_t skipped = part.input_begin / InputsPerChunk(w.type()) * kChunkWords * kPanel;
  RightPanels right{.matrix = &w,
                    .skipped = skipped,
                    .chunks = x.chunks(),
                    .block = tiles > 1 ? block : 1,
                    .last = part.panel_end,
                    .bias = part.bias,
                    .add = part.add};
  for (int64_t p = part.panel_begin; p < part.panel_end; p += block) {
    right.begin = p, right.end = std::min(p + block, part.panel_end);
    for (int64_t t = 0; t < tiles; ++t) TileTimesPanels<Dot>(x, t, right, y);
  }
}

void TypedPart(const PreparedRows& x, const PackedMatrix& w, const MatMulPart& part, Rows y) {
#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86
  const NativeDots native = MachineDots();
  if (native.bf16 && w.type() == WeightType::kBFloat16)
    return Part<NativeBFloat16Dot>(x, w, part, y);
  if (native.int8 && w.type() == WeightType::kInt8) return Part<NativeInt8Dot>(x, w, part, y);
#endif
  switch (w.type()) {
    case WeightType::kFloat32:
      return Part<Float32Dot>(x, w, part, y);
    case WeightType::kBFloat16:
      return Part<BFloat16Dot>(x, w, part, y);
    case WeightType::kInt8:
      return Part<Int8Dot>(x, w, part, y);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace linattn
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <omp.h>

namespace linattn {
namespace {

HWY_EXPORT(TypedPart);

// Below this many multiplications starting a thread team (about 1 us) costs more than it saves.
constexpr int64_t kParallelWork = 1 << 17;
// Rows that go through the weights together: they stay in L2.
constexpr int64_t kRowBlock = 8 * PreparedRows::kTileRows;
// From so many rows a thread on, threads share out rows and not columns: no row that one core
// prepared then travels to another.
constexpr int64_t kRowsPerThread = 8;

// Every thread its own rows, block by block.
void MatMulByRows(int64_t M, ConstRows x, const PackedMatrix& w, Rows y) {
#pragma omp parallel if (M * w.in() * w.out() > kParallelWork)
  {
    const int64_t share = kRowBlock * omp_get_num_threads();
    const int64_t blocks = (M + share - 1) / share * omp_get_num_threads();
    thread_local PreparedRows rows;
#pragma omp for schedule(static) nowait
    for (int64_t b = 0; b < blocks; ++b) {
      const int64_t m = b * M / blocks, end = (b + 1) * M / blocks;
      rows.Prepare(w.type(), end - m, w.in(), {x.data + m * x.stride, x.stride});
      MatMulPanels(rows, w, {0, w.panels()}, {y.data + m * y.stride, y.stride});
    }
  }
}

// Every thread its own columns of all rows.
void MatMulByColumns(int64_t M, ConstRows x, const PackedMatrix& w, Rows y) {
  thread_local PreparedRows own;
  PreparedRows& rows = own;
  rows.Shape(w.type(), M, w.in());
#pragma omp parallel if (M * w.in() * w.out() > kParallelWork)
  {
    const int64_t threads = omp_get_num_threads(), i = omp_get_thread_num();
    rows.Fill(i * M / threads, (i + 1) * M / threads, x);
#pragma omp barrier
    MatMulPanels(rows, w, ThreadPart(w, i, threads), y);
  }
}

}  // namespace

void MatMulPanels(const PreparedRows& x, const PackedMatrix& w, const MatMulPart& part, Rows y) {
  Check(x.type() == w.type(), "matmul", "rows must be prepared for {} weights, but are for {}",
        WeightTypeName(w.type()), WeightTypeName(x.type()));
  Check(part.input_begin % InputsPerChunk(w.type()) == 0 && part.input_begin >= 0 &&
            part.input_begin + x.in() <= w.in(),
        "matmul", "inputs must be a part of {} that begins at a multiple of {}, but are [{},{})",
        w.in(), InputsPerChunk(w.type()), part.input_begin, part.input_begin + x.in());
  if (x.rows() > 0 && part.panel_begin < part.panel_end)
    HWY_DYNAMIC_DISPATCH(TypedPart)(x, w, part, y);
}

void MatMul(int64_t M, ConstRows x, const PackedMatrix& w, Rows y) {
  if (M >= kRowsPerThread * omp_get_max_threads())
    MatMulByRows(M, x, w, y);
  else
    MatMulByColumns(M, x, w, y);
}

}  // namespace linattn
#endif  // HWY_ONCE
