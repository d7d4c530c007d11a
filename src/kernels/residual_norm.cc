#include "kernels/residual_norm.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/error.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/residual_norm.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/narrow-inl.h"

HWY_BEFORE_NAMESPACE();
namespace linattn {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

HWY_INLINE float Sum(FloatVector v) { return hn::GetLane(hn::SumOfLanes(FloatTag(), v)); }

// sum (over x + delta) and the mean and 1/deviation of its rows; y.
template <class Delta, class Y>
HWY_INLINE void ForwardRow(const ResidualNorm& p, const ResidualNormTensors& t, int64_t row) {
  const FloatTag d;
  const int64_t dim = p.dim;
  const float* x = t.x + row * dim;
  const float* s = x;
  auto total = hn::Zero(d);
  if (t.delta.present()) {
    const Delta* delta = static_cast<const Delta*>(t.delta.data) + row * dim;
    float* sum = t.sum + row * dim;
    for (int64_t i = 0; i < dim; i += kLanes) {
      const auto v = hn::Add(LoadRow(x + i, dim - i), LoadRow(delta + i, dim - i));
      StoreRow(v, sum + i, dim - i);
      total = hn::Add(total, v);
    }
    s = sum;
  } else {
    for (int64_t i = 0; i < dim; i += kLanes) total = hn::Add(total, LoadRow(x + i, dim - i));
  }
  const float mean = p.centred ? Sum(total) / static_cast<float>(dim) : 0.0f;
  const auto m = hn::Set(d, mean);
  auto squares = hn::Zero(d);
  for (int64_t i = 0; i < dim; i += kLanes) {
    auto c = hn::Sub(LoadRow(s + i, dim - i), m);
    if (dim - i < kLanes) c = hn::IfThenElseZero(hn::FirstN(d, static_cast<size_t>(dim - i)), c);
    squares = hn::MulAdd(c, c, squares);
  }
  const float scale = 1 / std::sqrt(Sum(squares) / static_cast<float>(dim) + p.eps);
  t.statistics[2 * row] = mean, t.statistics[2 * row + 1] = scale;
  Y* y = static_cast<Y*>(t.y.data) + row * dim;
  for (int64_t i = 0; i < dim; i += kLanes) {
    const int64_t n = dim - i;
    const auto c = hn::Mul(hn::Sub(LoadRow(s + i, n), m), hn::Set(d, scale));
    const auto bias = p.centred ? LoadRow(p.bias + i, n) : hn::Zero(d);
    StoreRow(hn::MulAdd(c, LoadRow(p.weight + i, n), bias), y + i, n);
  }
}

// With h = (sum - mean) scale and e = d_y weight:
//   d_x = scale (e - mean(e) - h mean(e h)) + d_sum      (mean(e) only if centred)
// `partial` [2,dim] gains d_y h and d_y.
template <class Delta, class Y>
HWY_INLINE void BackwardRow(const ResidualNorm& p, const ResidualNormGradients& g, int64_t row,
                            float* HWY_RESTRICT partial) {
  const FloatTag d;
  const int64_t dim = p.dim;
  const float* s = g.sum + row * dim;
  const Y* d_y = static_cast<const Y*>(g.d_y.data) + row * dim;
  const auto mean = hn::Set(d, g.statistics[2 * row]);
  const auto scale = hn::Set(d, g.statistics[2 * row + 1]);
  auto sum_e = hn::Zero(d), sum_eh = hn::Zero(d);
  for (int64_t i = 0; i < dim; i += kLanes) {
    const int64_t n = dim - i;
    const auto dy = LoadRow(d_y + i, n), e = hn::Mul(dy, LoadRow(p.weight + i, n));
    const auto h = hn::Mul(hn::Sub(LoadRow(s + i, n), mean), scale);
    sum_e = hn::Add(sum_e, e);
    sum_eh = hn::MulAdd(e, h, sum_eh);  // e is 0 behind the row's end
    float *w = partial + i, *b = partial + dim + i;
    StoreRow(hn::MulAdd(dy, h, LoadRow(w, n)), w, n);
    StoreRow(hn::Add(dy, LoadRow(b, n)), b, n);
  }
  const auto mean_e = hn::Set(d, p.centred ? Sum(sum_e) / static_cast<float>(dim) : 0.0f);
  const auto mean_eh = hn::Set(d, Sum(sum_eh) / static_cast<float>(dim));
  Delta* d_delta = static_cast<Delta*>(g.d_delta.data) + (g.d_delta.present() ? row * dim : 0);
  for (int64_t i = 0; i < dim; i += kLanes) {
    const int64_t n = dim - i, at = row * dim + i;
    const auto e = hn::Mul(LoadRow(d_y + i, n), LoadRow(p.weight + i, n));
    const auto h = hn::Mul(hn::Sub(LoadRow(s + i, n), mean), scale);
    auto d_x = hn::Mul(hn::NegMulAdd(h, mean_eh, hn::Sub(e, mean_e)), scale);
    if (g.d_sum != nullptr) d_x = hn::Add(d_x, LoadRow(g.d_sum + at, n));
    StoreRow(d_x, g.d_x + at, n);
    if (g.d_delta.present()) StoreRow(d_x, d_delta + i, n);
  }
}

template <class Run>
HWY_INLINE void WithTypes(DType delta, DType y, const Run& run) {
  if (delta == DType::kBF16) {
    y == DType::kBF16 ? run(BF16(), BF16()) : run(BF16(), float());
  } else {
    y == DType::kBF16 ? run(float(), BF16()) : run(float(), float());
  }
}

void ForwardRows(const ResidualNorm& p, const ResidualNormTensors& t, int64_t begin, int64_t end) {
  WithTypes(t.delta.dtype, t.y.dtype, [&](auto delta, auto y) HWY_ATTR {
    for (int64_t row = begin; row < end; ++row) ForwardRow<decltype(delta), decltype(y)>(p, t, row);
  });
}

void BackwardRows(const ResidualNorm& p, const ResidualNormGradients& g, int64_t begin, int64_t end,
                  float* partial) {
  WithTypes(g.d_delta.dtype, g.d_y.dtype, [&](auto delta, auto y) HWY_ATTR {
    for (int64_t row = begin; row < end; ++row)
      BackwardRow<decltype(delta), decltype(y)>(p, g, row, partial);
  });
}

// Adds the columns [first, first + kVectors vectors) of rows [begin, stop) to sums; `end`: of the
// row. Several sums run side by side, because one alone waits for its own additions.
template <int kVectors, class T>
HWY_INLINE void AddRows(const Array& x, int64_t begin, int64_t stop, int64_t first, int64_t end,
                        float* sums) {
  FloatVector run[kVectors];
  for (auto& sum : run) sum = hn::Zero(FloatTag());
  for (int64_t row = begin; row < stop; ++row) {
    const T* from = x.At<T>(row, first);
    for (int j = 0; j < kVectors; ++j)
      run[j] = hn::Add(run[j], LoadRow(from + j * kLanes, end - first - j * kLanes));
  }
  for (int j = 0; j < kVectors; ++j) {
    const int64_t i = first + j * kLanes;
    StoreRow(hn::Add(run[j], LoadRow(sums + i, end - i)), sums + i, end - i);
  }
}

template <class T>
HWY_INLINE void AddBlock(const Array& x, int64_t begin, int64_t stop, int64_t first, int64_t end,
                         float* sums) {
  constexpr int kVectors = 4;
  for (; first + kVectors * kLanes <= end; first += kVectors * kLanes)
    AddRows<kVectors, T>(x, begin, stop, first, end, sums);
  for (; first < end; first += kLanes) AddRows<1, T>(x, begin, stop, first, end, sums);
}

// Runs of rows are summed apart, so that rounding grows with their number, not with the rows'; and
// a run of a block of columns stays in the nearest cache.
void SumColumnBlock(const Array& x, int64_t first, int64_t end, float* sums) {
  constexpr int64_t kRun = 128;
  std::fill(sums + first, sums + end, 0.0f);
  for (int64_t begin = 0; begin < x.shape[0]; begin += kRun) {
    const int64_t stop = std::min(x.shape[0], begin + kRun);
    x.dtype == DType::kBF16 ? AddBlock<BF16>(x, begin, stop, first, end, sums)
                            : AddBlock<float>(x, begin, stop, first, end, sums);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace linattn
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace linattn {
namespace {

HWY_EXPORT(ForwardRows);
HWY_EXPORT(BackwardRows);
HWY_EXPORT(SumColumnBlock);

constexpr int64_t kRows = 128;  // a thread takes at a time; the sums over rows are cut the same way

void CheckDType(const Array& x, const char* name) {
  Check(!x.present() || x.dtype == DType::kF32 || x.dtype == DType::kBF16, "residual_norm",
        "{} must be F32 or BF16, but is {}", name, NameOf(x.dtype));
}

}  // namespace

void ResidualNormForward(const ResidualNorm& norm, const ResidualNormTensors& t) {
  CheckDType(t.delta, "delta"), CheckDType(t.y, "y");
  const auto run = HWY_DYNAMIC_DISPATCH(ForwardRows);
#pragma omp parallel for if (norm.rows > kRows)
  for (int64_t begin = 0; begin < norm.rows; begin += kRows)
    run(norm, t, begin, std::min(norm.rows, begin + kRows));
}

void ResidualNormBackward(const ResidualNorm& norm, const ResidualNormGradients& g) {
  CheckDType(g.d_y, "d_y"), CheckDType(g.d_delta, "d_delta");
  const int64_t blocks = (norm.rows + kRows - 1) / kRows, dim = norm.dim;
  std::vector<float> partials(blocks * 2 * dim);  // [blocks,2,dim]
  const auto run = HWY_DYNAMIC_DISPATCH(BackwardRows);
#pragma omp parallel for if (blocks > 1)
  for (int64_t b = 0; b < blocks; ++b)
    run(norm, g, b * kRows, std::min(norm.rows, (b + 1) * kRows), &partials[b * 2 * dim]);
  std::fill_n(g.d_weight, dim, 0.0f);
  if (norm.centred) std::fill_n(g.d_bias, dim, 0.0f);
  for (int64_t b = 0; b < blocks; ++b) {
    const float* partial = &partials[b * 2 * dim];
    for (int64_t i = 0; i < dim; ++i) g.d_weight[i] += partial[i];
    for (int64_t i = 0; norm.centred && i < dim; ++i) g.d_bias[i] += partial[dim + i];
  }
}

void ColumnSums(const Array& x, float* sums) {
  CheckDType(x, "x");
  constexpr int64_t kColumns = 64;  // 128 bytes and more of each row
  const int64_t columns = x.shape[1];
  const auto run = HWY_DYNAMIC_DISPATCH(SumColumnBlock);
#pragma omp parallel for if (x.size() > (1 << 15))
  for (int64_t first = 0; first < columns; first += kColumns)
    run(x, first, std::min(columns, first + kColumns), sums);
}

}  // namespace linattn
#endif  // HWY_ONCE
