#include "kernels/short_conv.h"

#include <algorithm>
#include <cstring>
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

// Channels that one call walks through all tokens: a few cache lines of each row.
constexpr int64_t kTile = 64;
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

// Keeps the last W-1 rows of [before, x] in history, and what was there in `before`.
template <class X>
HWY_INLINE void ShiftHistory(const ShortConv& c, const Array& x, const ConvTile& tile,
                             float* history, float (*before)[kTile]) {
  const int64_t kept = c.width - 1, T = x.shape[1];
  for (int64_t i = 0; i < kept; ++i)
    std::memcpy(before[i], history + i * c.channels, tile.n * sizeof(float));
  for (int64_t i = 0; i < kept; ++i) {
    const int64_t t = T - kept + i;  // negative: from before this call
    float* to = history + i * c.channels;
    if (t < 0) {
      std::memcpy(to, before[t + kept], tile.n * sizeof(float));
      continue;
    }
    const X* from = x.At<X>(tile.b, t, tile.begin);
    for (int64_t k = 0; k < tile.n; k += kLanes)
      StoreRow(LoadRow(from + k, tile.n - k), to + k, tile.n - k);
  }
}

// The convolution's sum at channels [k, k + kLanes) of the tile.
template <class X>
HWY_INLINE FloatVector TapsAt(const ShortConv& c, const Array& x, const ConvTile& tile, int64_t t,
                              int64_t k, const float (*before)[kTile]) {
  const int64_t left = tile.n - k;
  auto sum = hn::Zero(FloatTag());
  for (int64_t j = 0; j < c.width; ++j) {
    const int64_t s = t - c.width + 1 + j;
    if (s < 0 && before == nullptr) continue;
    const auto value = s < 0 ? LoadRow(before[s + c.width - 1] + k, left)
                             : LoadRow(x.At<X>(tile.b, s, tile.begin) + k, left);
    sum = hn::MulAdd(LoadRow(c.weight + j * c.channels + tile.begin + k, left), value, sum);
  }
  return sum;
}

// From the last token to the first, so that y may be x.
template <class X>
HWY_INLINE void ForwardTile(const ShortConv& c, const Array& x, float* history, const Array& y,
                            const ConvTile& tile) {
  HWY_ALIGN float before[kMostBefore][kTile];
  if (history != nullptr) ShiftHistory<X>(c, x, tile, history + tile.begin, before);
  for (int64_t t = x.shape[1] - 1; t >= 0; --t) {
    X* out = y.At<X>(tile.b, t, tile.begin);
    for (int64_t k = 0; k < tile.n; k += kLanes) {
      const auto sum = TapsAt<X>(c, x, tile, t, k, history ? before : nullptr);
      StoreRow(Silu(sum), out + k, tile.n - k);
    }
  }
}

// With p the sums of forward, d_p = d_y silu'(p):
//   d_x_t = sum_i w_{W-1-i} d_p_{t+i},  d_w_j += d_p_t x_{t-W+1+j}
// From the last token to the first: d_p of the W-1 tokens behind t are kept in a ring.
template <class X>
HWY_INLINE void BackwardTile(const ShortConv& c, const ShortConvGradients& g, const ConvTile& tile,
                             float* d_weight) {
  const int64_t T = g.x.shape[1], W = c.width;
  HWY_ALIGN float ring[ShortConv::kMostWidth][kTile];
  for (int64_t t = T - 1; t >= 0; --t) {
    for (int64_t k = 0; k < tile.n; k += kLanes) {
      const int64_t left = tile.n - k;
      const auto p = TapsAt<X>(c, g.x, tile, t, k, nullptr), s = Sigmoid(p);
      const auto d_y = LoadRow(g.d_y.At<X>(tile.b, t, tile.begin) + k, left);
      const auto d_p = hn::Mul(d_y, SiluDerivative(p, s));
      StoreRow(d_p, ring[t % W] + k, left);
      auto d_x = hn::Zero(FloatTag());
      for (int64_t i = 0; i < std::min(W, T - t); ++i)
        d_x = hn::MulAdd(LoadRow(c.weight + (W - 1 - i) * c.channels + tile.begin + k, left),
                         LoadRow(ring[(t + i) % W] + k, left), d_x);
      for (int64_t j = std::max<int64_t>(0, W - 1 - t); j < W; ++j) {
        float* sum = d_weight + j * c.channels + tile.begin + k;
        const auto value = LoadRow(g.x.At<X>(tile.b, t - W + 1 + j, tile.begin) + k, left);
        StoreRow(hn::MulAdd(d_p, value, LoadRow(sum, left)), sum, left);
      }
      StoreRow(d_x, g.d_x.At<X>(tile.b, t, tile.begin) + k, left);
    }
  }
}

void ConvForward(const ShortConv& c, const Array& x, float* history, const Array& y,
                 const ConvTile& tile) {
  x.dtype == DType::kBF16 ? ForwardTile<BF16>(c, x, history, y, tile)
                          : ForwardTile<float>(c, x, history, y, tile);
}

void ConvBackward(const ShortConv& c, const ShortConvGradients& g, const ConvTile& tile,
                  float* d_weight) {
  g.x.dtype == DType::kBF16 ? BackwardTile<BF16>(c, g, tile, d_weight)
                            : BackwardTile<float>(c, g, tile, d_weight);
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
