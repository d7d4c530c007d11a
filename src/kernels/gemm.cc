#include "kernels/gemm.h"

#include <algorithm>

#include "base/error.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/gemm.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/gemm-inl.h"

HWY_BEFORE_NAMESPACE();
namespace linattn {
namespace HWY_NAMESPACE {

constexpr int64_t kPanel = PackedMatrix::kPanel;
constexpr int64_t kPanelVectors = kPanel / kLanes;
// Panels that one row meets at a time: enough independent sums to hide the latency of an FMA, and
// as many streams for the prefetcher.
constexpr int64_t kRowPanels = std::max<int64_t>(1, 8 / kPanelVectors);

void AddBias(const PackedMatrix& w, int64_t p, int64_t M, Rows y) {
  const float* bias = w.bias();
  if (!bias) return;
  const int64_t begin = p * kPanel, width = std::min(kPanel, w.out() - begin);
  for (int64_t m = 0; m < M; ++m) {
    float* row = y.data + m * y.stride + begin;
    ForEachVector(width, [=](auto load, auto store, int64_t i) HWY_ATTR {
      store(hn::Add(load(row + i), load(bias + begin + i)), row + i);
    });
  }
}

// A block of rows times panel p.
void BlockTimesPanel(int64_t M, ConstRows x, const PackedMatrix& w, int64_t p, Rows y) {
  const int64_t width = std::min(kPanel, w.out() - p * kPanel);
  Gemm({M, width, w.in()}, {x.data, x.stride, 1}, {w.panel(p), kPanel},
       {y.data + p * kPanel, y.stride});
  AddBias(w, p, M, y);
}

// One row times kRowPanels panels from p on, all within `out`.
void RowTimesPanels(const float* HWY_RESTRICT x, const PackedMatrix& w, int64_t p, Rows y) {
  const FloatTag d;
  const int64_t in = w.in();
  const float* HWY_RESTRICT panel = w.panel(p);
  FloatVector sum[kRowPanels][kPanelVectors];
#pragma GCC unroll 8
  for (int64_t j = 0; j < kRowPanels; ++j)
#pragma GCC unroll 8
    for (int64_t n = 0; n < kPanelVectors; ++n) sum[j][n] = hn::Zero(d);
  for (int64_t k = 0; k < in; ++k) {
    const FloatVector left = hn::Set(d, x[k]);
#pragma GCC unroll 8
    for (int64_t j = 0; j < kRowPanels; ++j)
#pragma GCC unroll 8
      for (int64_t n = 0; n < kPanelVectors; ++n)
        sum[j][n] =
            hn::MulAdd(left, hn::LoadU(d, panel + (j * in + k) * kPanel + n * kLanes), sum[j][n]);
  }
#pragma GCC unroll 8
  for (int64_t j = 0; j < kRowPanels; ++j) {
#pragma GCC unroll 8
    for (int64_t n = 0; n < kPanelVectors; ++n)
      hn::StoreU(sum[j][n], d, y.data + (p + j) * kPanel + n * kLanes);
    AddBias(w, p + j, 1, y);
  }
}

// Rows times the panels [begin, end).
void MatMulPanels(int64_t M, ConstRows x, const PackedMatrix& w, int64_t begin, int64_t end,
                  Rows y) {
  int64_t p = begin;
  if (M == 1) {
    const int64_t whole = std::min(end, w.out() / kPanel);
    for (; p + kRowPanels <= whole; p += kRowPanels) RowTimesPanels(x.data, w, p, y);
  }
  for (; p < end; ++p) BlockTimesPanel(M, x, w, p, y);
}

}  // namespace HWY_NAMESPACE
}  // namespace linattn
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace linattn {
namespace {

HWY_EXPORT(MatMulPanels);

// Below this many multiplications starting a thread team (about 1 us) costs more than it saves.
constexpr int64_t kParallelWork = 1 << 17;
// Rows that go through a panel while it is in the cache.
constexpr int64_t kRowBlock = 64;
constexpr int64_t kPanelBlock = 4;

}  // namespace

PackedMatrix PackedMatrix::Pack(const float* weight, const float* bias, int64_t out, int64_t in) {
  Check(out >= 1 && in >= 1, "matmul",
        "a weight must be [out,in] with both at least 1, but is [{},{}]", out, in);
  PackedMatrix w;
  w.in_ = in;
  w.out_ = out;
  w.panels_.assign(w.panels() * in * kPanel, 0.0f);
  for (int64_t o = 0; o < out; ++o) {
    float* to = w.panels_.data() + o / kPanel * in * kPanel + o % kPanel;
    for (int64_t i = 0; i < in; ++i) to[i * kPanel] = weight[o * in + i];
  }
  if (bias) w.bias_.assign(bias, bias + out);
  return w;
}

void MatMul(int64_t M, ConstRows x, const PackedMatrix& w, Rows y) {
  const int64_t panel_blocks = (w.panels() + kPanelBlock - 1) / kPanelBlock;
  const int64_t row_blocks = (M + kRowBlock - 1) / kRowBlock;
#pragma omp parallel for schedule(static) if (M * w.in() * w.out() > kParallelWork)
  for (int64_t i = 0; i < panel_blocks * row_blocks; ++i) {
    const int64_t p = i / row_blocks * kPanelBlock, m = i % row_blocks * kRowBlock;
    HWY_DYNAMIC_DISPATCH(MatMulPanels)
    (std::min(kRowBlock, M - m), {x.data + m * x.stride, x.stride}, w, p,
     std::min(p + kPanelBlock, w.panels()), {y.data + m * y.stride, y.stride});
  }
}

}  // namespace linattn
#endif  // HWY_ONCE
