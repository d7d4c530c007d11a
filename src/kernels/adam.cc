#include "kernels/adam.h"

#include <algorithm>
#include <vector>

#include "base/error.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/adam.cc"
#include <hwy/foreach_target.h>
// After foreach_target.
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace linattn {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// One vector of each, at element i.
template <class D, class T = hn::TFromD<D>>
HWY_INLINE void UpdateVector(D d, const AdamUpdate& u, const AdamTensor& t, int64_t i) {
  T *x_i = t.x.At<T>() + i, *m_i = t.m.At<T>() + i, *v_i = t.v.At<T>() + i;
  const auto set = [&](double value) HWY_ATTR { return hn::Set(d, static_cast<T>(value)); };
  const auto x = hn::LoadU(d, x_i);
  auto g = hn::Mul(hn::LoadU(d, t.gradient.At<T>() + i), set(u.gradient_scale));
  g = hn::MulAdd(x, set(u.coupled_decay), g);
  const auto m = hn::MulAdd(g, set(1 - u.beta1), hn::Mul(hn::LoadU(d, m_i), set(u.beta1)));
  const auto v =
      hn::MulAdd(hn::Mul(g, g), set(1 - u.beta2), hn::Mul(hn::LoadU(d, v_i), set(u.beta2)));
  auto change = m;
  if (u.adaptive) change = hn::Div(m, hn::MulAdd(hn::Sqrt(v), set(u.v_scale), set(u.eps)));
  hn::StoreU(m, d, m_i);
  hn::StoreU(v, d, v_i);
  hn::StoreU(hn::NegMulAdd(change, set(u.rate), hn::Mul(x, set(u.keep))), d, x_i);
}

// Elements [begin, end).
template <class T>
HWY_INLINE void UpdateRange(const AdamUpdate& u, const AdamTensor& t, int64_t begin, int64_t end) {
  const hn::ScalableTag<T> d;
  const hn::CappedTag<T, 1> one;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = begin;
  for (; i + lanes <= end; i += lanes) UpdateVector(d, u, t, i);
  for (; i < end; ++i) UpdateVector(one, u, t, i);
}

void Update(const AdamUpdate& u, const AdamTensor& t, int64_t begin, int64_t end) {
  t.x.dtype == DType::kF32 ? UpdateRange<float>(u, t, begin, end)
                           : UpdateRange<double>(u, t, begin, end);
}

// Within a lane of a vector the sums are of T, over at most a block; they meet in float64.
template <class T>
HWY_INLINE double SquaresOfRange(const T* x, int64_t begin, int64_t end) {
  const hn::ScalableTag<T> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  auto a = hn::Zero(d), b = hn::Zero(d), c = hn::Zero(d), e = hn::Zero(d);
  const auto add = [x, d](auto sum, int64_t i) HWY_ATTR {
    const auto value = hn::LoadU(d, x + i);
    return hn::MulAdd(value, value, sum);
  };
  int64_t i = begin;
  for (; i + 4 * lanes <= end; i += 4 * lanes) {
    a = add(a, i), b = add(b, i + lanes);
    c = add(c, i + 2 * lanes), e = add(e, i + 3 * lanes);
  }
  for (; i + lanes <= end; i += lanes) a = add(a, i);
  const auto total = hn::SumOfLanes(d, hn::Add(hn::Add(a, b), hn::Add(c, e)));
  double sum = static_cast<double>(hn::GetLane(total));
  for (; i < end; ++i) sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  return sum;
}

double Squares(const Array& x, int64_t begin, int64_t end) {
  return x.dtype == DType::kF32 ? SquaresOfRange(x.At<float>(), begin, end)
                                : SquaresOfRange(x.At<double>(), begin, end);
}

}  // namespace HWY_NAMESPACE
}  // namespace linattn
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace linattn {
namespace {

HWY_EXPORT(Update);
HWY_EXPORT(Squares);

constexpr int64_t kBlock = 1 << 13;  // elements a thread takes at a time

// A run of elements of one of several tensors.
struct Block {
  int64_t tensor, begin, end;
};

// What threads share, whatever the tensors' sizes.
template <class SizeOf>
std::vector<Block> Blocks(size_t tensors, const SizeOf& size_of) {
  std::vector<Block> blocks;
  for (size_t t = 0; t < tensors; ++t) {
    const int64_t size = size_of(t);
    for (int64_t begin = 0; begin < size; begin += kBlock)
      blocks.push_back({static_cast<int64_t>(t), begin, std::min(size, begin + kBlock)});
  }
  return blocks;
}

void CheckReal(const Array& x) {
  Check((x.dtype == DType::kF32 || x.dtype == DType::kF64) && x.contiguous(), "adam",
        "tensors must be F32 or F64 and contiguous, but one is {} {}", NameOf(x.dtype),
        x.ShapeString());
}

}  // namespace

void UpdateTensors(std::span<const AdamTensor> tensors, const AdamUpdate& update) {
  for (const AdamTensor& t : tensors) {
    for (const Array* a : {&t.x, &t.gradient, &t.m, &t.v}) {
      CheckReal(*a);
      Check(a->dtype == t.x.dtype && a->size() == t.x.size(), "adam",
            "a parameter, its gradient and moments must be of one size and dtype, but are {} {} "
            "and {} {}",
            NameOf(t.x.dtype), t.x.ShapeString(), NameOf(a->dtype), a->ShapeString());
    }
  }
  const auto blocks = Blocks(tensors.size(), [&](size_t t) { return tensors[t].x.size(); });
  const auto run = HWY_DYNAMIC_DISPATCH(Update);
#pragma omp parallel for if (blocks.size() > 2)
  for (size_t b = 0; b < blocks.size(); ++b)
    run(update, tensors[blocks[b].tensor], blocks[b].begin, blocks[b].end);
}

double SumOfSquares(std::span<const Array> arrays) {
  for (const Array& array : arrays) CheckReal(array);
  const auto blocks = Blocks(arrays.size(), [&](size_t t) { return arrays[t].size(); });
  std::vector<double> sums(blocks.size());
  const auto run = HWY_DYNAMIC_DISPATCH(Squares);
#pragma omp parallel for if (blocks.size() > 2)
  for (size_t b = 0; b < blocks.size(); ++b)
    sums[b] = run(arrays[blocks[b].tensor], blocks[b].begin, blocks[b].end);
  double sum = 0;
  for (const double part : sums) sum += part;
  return sum;
}

}  // namespace linattn
#endif  // HWY_ONCE
