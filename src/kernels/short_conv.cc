#include "kernels/short_conv.h"

#include <algorithm>
#include <vector>

#include "base/error.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/short_conv.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/narrow-inl.h"
#include "kernels/sigmoid-inl.h"

#ifndef LINATTN_SHORT_CONV_ONCE
#define LINATTN_SHORT_CONV_ONCE
namespace linattn {
namespace {

// Channels that one call walks through all tokens: enough of each row that its cache lines come in
// one stream, and few enough that W of them stay in the nearest cache.
constexpr int64_t kTile = 128;
constexpr int64_t kMostBefore = ShortConv::kMostWidth - 1;

// Channels [begin, begin + n) of row b.
struct ConvTile {
  int64_t b = 0, begin = 0, n = 0;
};

}  // namespace
}  // namespace linattn
#endif

HWY_BEFORE_NAMESPACE();
namespace linattn {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// The W rows of x that token t's sum reads, oldest first: channels [begin, begin + n) of the tile.
// Before the first token stand the rows of `before`, or zeros.
template <class X>
struct Taps {
  const X* row[ShortConv::kMostWidth];
};

template <class X>
HWY_INLINE Taps<X> TapsOf(const Array& x, const ConvTile& tile, int64_t W, int64_t t,
                          const X (*before)[kTile]) {
  static constexpr X kZeros[kTile] = {};
  Taps<X> taps;
  for (int64_t j = 0; j < W; ++j) {
    const int64_t s = t - W + 1 + j;
    taps.row[j] = s >= 0 ? x.At<X>(tile.b, s, tile.begin) : before ? before[s + W - 1] : kZeros;
  }
  return taps;
}

// The sum at channels [k, k + kLanes) of the tile, `left` of them there. w [W,stride].
template <class X>
HWY_INLINE FloatVector SumOf(const Taps<X>& taps, const float* w, int64_t stride, int64_t W,
                             int64_t k, int64_t left) {
  auto sum = hn::Zero(FloatTag());
  for (int64_t j = 0; j < W; ++j)
    sum = hn::MulAdd(LoadRow(w + j * stride + k, left), LoadRow(taps.row[j] + k, left), sum);
  return sum;
}

template <class X>
HWY_INLINE void CopyRow(const float* from, int64_t n, X* to) {
  for (int64_t k = 0; k < n; k += kLanes) StoreRow(LoadRow(from + k, n - k), to + k, n - k);
}

// Keeps the last W-1 rows of [before, x] in history, and what was there in `before`.
template <class X>
HWY_INLINE void ShiftHistory(const ShortConv& c, const Array& x, const ConvTile& tile,
                             float* history, X (*before)[kTile]) {
  const int64_t kept = c.width - 1, T = x.shape[1], n = tile.n;
  for (int64_t i = 0; i < kept; ++i) CopyRow(history + i * c.channels, n, before[i]);
  for (int64_t i = 0; i < kept; ++i) {
    const int64_t t = T - kept + i;  // negative: from before this call
    const X* from = t < 0 ? before[t + kept] : x.At<X>(tile.b, t, tile.begin);
    float* to = history + i * c.channels;
    for (int64_t k = 0; k < n; k += kLanes) StoreRow(LoadRow(from + k, n - k), to + k, n - k);
  }
}

// From the last token to the first, so that y may be x. kWidth: that of conv, or 0 for any.
template <int64_t kWidth, class X>
HWY_INLINE void ForwardTile(const ShortConv& c, const Array& x, float* history, const Array& y,
                            const ConvTile& tile) {
  const int64_t W = kWidth > 0 ? kWidth : c.width, n = tile.n;
  HWY_ALIGN X before[kMostBefore][kTile];
  if (history != nullptr) ShiftHistory<X>(c, x, tile, history + tile.begin, before);
  for (int64_t t = x.shape[1] - 1; t >= 0; --t) {
    const Taps<X> taps = TapsOf<X>(x, tile, W, t, history ? before : nullptr);
    X* out = y.At<X>(tile.b, t, tile.begin);
    for (int64_t k = 0; k < n; k += kLanes) {
      const auto sum = SumOf(taps, c.weight + tile.begin, c.channels, W, k, n - k);
      StoreRow(Silu(sum), out + k, n - k);
    }
  }
}

// With p the sums of forward, d_p = d_y silu'(p):
//   d_x_t = sum_i w_{W-1-i} d_p_{t+i},  d_w_j += d_p_t x_{t-W+1+j}
// From the last token to the first: d_p of the W-1 tokens behind t are kept in a ring.
template <int64_t kWidth, class X>
HWY_INLINE void BackwardTile(const ShortConv& c, const ShortConvGradients& g, const ConvTile& tile,
                             float* d_weight) {
  const int64_t W = kWidth > 0 ? kWidth : c.width, n = tile.n;
  const float* w = c.weight + tile.begin;
  HWY_ALIGN float ring[ShortConv::kMostWidth][kTile];
  HWY_ALIGN float sums[ShortConv::kMostWidth][kTile];  // of d_w
  std::fill_n(ring[0], W * kTile, 0.0f);
  std::fill_n(sums[0], W * kTile, 0.0f);
  for (int64_t t = g.x.shape[1] - 1; t >= 0; --t) {
    const Taps<X> taps = TapsOf<X>(g.x, tile, W, t, nullptr);
    const float* d_p_at[ShortConv::kMostWidth];  // of tokens t, t+1, ...; zeros behind the last
    for (int64_t i = 0; i < W; ++i) d_p_at[i] = ring[(t + i) % W];
    const X* d_y = g.d_y.At<X>(tile.b, t, tile.begin);
    X* d_x = g.d_x.At<X>(tile.b, t, tile.begin);
    for (int64_t k = 0; k < n; k += kLanes) {
      const int64_t left = n - k;
      const auto p = SumOf(taps, w, c.channels, W, k, left);
      const auto d_p = hn::Mul(LoadRow(d_y + k, left), SiluDerivative(p, Sigmoid(p)));
      hn::Store(d_p, FloatTag(), ring[t % W] + k);
      auto sum = hn::Zero(FloatTag());
      for (int64_t i = 0; i < W; ++i)
        sum = hn::MulAdd(LoadRow(w + (W - 1 - i) * c.channels + k, left),
                         hn::Load(FloatTag(), d_p_at[i] + k), sum);
      StoreRow(sum, d_x + k, left);
      for (int64_t j = 0; j < W; ++j) {
        float* to = sums[j] + k;
        const auto old = hn::Load(FloatTag(), to);
        hn::Store(hn::MulAdd(d_p, LoadRow(taps.row[j] + k, left), old), FloatTag(), to);
      }
    }
  }
  for (int64_t j = 0; j < W; ++j) CopyRow(sums[j], n, d_weight + j * c.channels + tile.begin);
}

// The usual width has its loops unrolled.
constexpr int64_t kUsual = 4;

template <class X>
HWY_INLINE void Forward(const ShortConv& c, const Array& x, float* history, const Array& y,
                        const ConvTile& tile) {
  c.width == kUsual ? ForwardTile<kUsual, X>(c, x, history, y, tile)
                    : ForwardTile<0, X>(c, x, history, y, tile);
}

template <class X>
HWY_INLINE void Backward(const ShortConv& c, const ShortConvGradients& g, const ConvTile& tile,
                         float* d_weight) {
  c.width == kUsual ? BackwardTile<kUsual, X>(c, g, tile, d_weight)
                    : BackwardTile<0, X>(c, g, tile, d_weight);
}

void ConvForward(const ShortConv& c, const Array& x, float* history, const Array& y,
                 const ConvTile& tile) {
  x.dtype == DType::kBF16 ? Forward<BF16>(c, x, history, y, tile)
                          : Forward<float>(c, x, history, y, tile);
}

void ConvBackward(const ShortConv& c, const ShortConvGradients& g, const ConvTile& tile,
                  float* d_weight) {
  g.x.dtype == DType::kBF16 ? Backward<BF16>(c, g, tile, d_weight)
                            : Backward<float>(c, g, tile, d_weight);
}

}  // namespace HWY_NAMESPACE
}  // namespace linattn
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace linattn {
namespace {

HWY_EXPORT(ConvForward);
HWY_EXPORT(ConvBackward);

constexpr int64_t kParallelFloats = 1 << 14;  // below, waking threads costs more than the work

void CheckArray(const ShortConv& c, const char* name, const Array& a, const Array& x) {
  const bool shaped = a.rank == 3 && a.shape == x.shape && a.shape[2] == c.channels;
  if (!shaped)  // spelling shapes out allocates, which a step must not
    Fail("short_conv", "{} must be [B,T,{}] like x, but has shape {}", name, c.channels,
         a.ShapeString());
  Check(a.dtype == x.dtype && (a.dtype == DType::kF32 || a.dtype == DType::kBF16), "short_conv",
        "{} must be F32 or BF16 like x, but is {}", name, NameOf(a.dtype));
  Check(a.stride[2] == 1 || c.channels == 1, "short_conv",
        "{} must be contiguous along its channels, but has stride {} there", name, a.stride[2]);
}

void CheckConv(const ShortConv& c) {
  Check(c.width >= 1 && c.width <= ShortConv::kMostWidth && c.channels >= 1, "short_conv",
        "the weight must be [1..{},channels], but is [{},{}]", ShortConv::kMostWidth, c.width,
        c.channels);
}

ConvTile TileOf(const ShortConv& c, int64_t index, int64_t tiles) {
  const int64_t begin = index % tiles * kTile;
  return {index / tiles, begin, std::min(kTile, c.channels - begin)};
}

}  // namespace

void ShortConvForward(const ShortConv& c, const Array& x, float* const* history, const Array& y) {
  CheckConv(c);
  CheckArray(c, "x", x, x), CheckArray(c, "y", y, x);
  const int64_t B = x.shape[0], tiles = (c.channels + kTile - 1) / kTile;
  const auto run = HWY_DYNAMIC_DISPATCH(ConvForward);
#pragma omp parallel for if (x.size() > kParallelFloats)
  for (int64_t i = 0; i < B * tiles; ++i) {
    const ConvTile tile = TileOf(c, i, tiles);
    run(c, x, history ? history[tile.b] : nullptr, y, tile);
  }
}

void ShortConvStep(const ShortConv& c, const Array& x, float* const* history, int64_t begin,
                   int64_t end) {
  const auto run = HWY_DYNAMIC_DISPATCH(ConvForward);
  for (int64_t b = 0; b < x.shape[0]; ++b)
    for (int64_t k = begin; k < end; k += kTile)
      run(c, x, history[b], x, {b, k, std::min(kTile, end - k)});
}

void ShortConvBackward(const ShortConv& c, const ShortConvGradients& g) {
  CheckConv(c);
  CheckArray(c, "x", g.x, g.x), CheckArray(c, "d_y", g.d_y, g.x), CheckArray(c, "d_x", g.d_x, g.x);
  const int64_t B = g.x.shape[0], tiles = (c.channels + kTile - 1) / kTile;
  const int64_t size = c.width * c.channels;
  std::vector<float> partials(B * size);  // [B,W,channels]
  const auto run = HWY_DYNAMIC_DISPATCH(ConvBackward);
#pragma omp parallel for if (g.x.size() > kParallelFloats)
  for (int64_t i = 0; i < B * tiles; ++i) {
    const ConvTile tile = TileOf(c, i, tiles);
    run(c, g, tile, partials.data() + tile.b * size);
  }
  std::fill_n(g.d_weight, size, 0.0f);
  for (int64_t b = 0; b < B; ++b)
    for (int64_t i = 0; i < size; ++i) g.d_weight[i] += partials[b * size + i];
}

}  // namespace linattn
#endif  // HWY_ONCE
