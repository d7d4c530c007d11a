#include "kernels/lsh_hash.h"

#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/random.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/lsh_hash.cc"
// clang-format off
#include <hwy/foreach_target.h>  // first, or each target would be compiled twice
#include <hwy/highway.h>
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace linattn {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using DoubleTag = hn::ScalableTag<double>;
constexpr int64_t kDoubles = static_cast<int64_t>(hn::MaxLanes(DoubleTag()));

// The largest entry of [y, -y] so far, the first of equals.
class Largest {
 public:
  HWY_INLINE void Take(double y, int64_t j) {
    if (y > top_) top_ = y, at_ = j;
    if (-y > bottom_) bottom_ = -y, opposite_ = j;
  }
  int32_t Bucket(int64_t half) const {
    return static_cast<int32_t>(bottom_ > top_ ? half + opposite_ : at_);
  }

 private:
  double top_ = -std::numeric_limits<double>::infinity(), bottom_ = top_;
  int64_t at_ = 0, opposite_ = 0;
};

// Columns [j, j + kVectors kDoubles) of x R, for kRows rows x.
template <int kRows, int kVectors>
HWY_INLINE void Project(const float* x, int64_t K, const float* rotation, int64_t half, int64_t j,
                        Largest* largest) {
  const DoubleTag d;
  const hn::Rebind<float, DoubleTag> f;
  hn::Vec<DoubleTag> sum[kRows][kVectors];
  for (int r = 0; r < kRows; ++r)
    for (int i = 0; i < kVectors; ++i) sum[r][i] = hn::Zero(d);
  for (int64_t c = 0; c < K; ++c) {
    hn::Vec<DoubleTag> entries[kVectors];
    for (int i = 0; i < kVectors; ++i)
      entries[i] = hn::PromoteTo(d, hn::LoadU(f, rotation + c * half + j + i * kDoubles));
    for (int r = 0; r < kRows; ++r) {
      const auto channel = hn::Set(d, double{x[r * K + c]});
      for (int i = 0; i < kVectors; ++i) sum[r][i] = hn::MulAdd(channel, entries[i], sum[r][i]);
    }
  }
  HWY_ALIGN double y[kDoubles];
  for (int r = 0; r < kRows; ++r) {
    for (int i = 0; i < kVectors; ++i) {
      hn::Store(sum[r][i], d, y);
      for (int64_t n = 0; n < kDoubles; ++n) largest[r].Take(y[n], j + i * kDoubles + n);
    }
  }
}

template <int kRows>
HWY_INLINE void HashTogether(const float* x, int64_t K, const float* rotation, int64_t buckets,
                             int32_t* bucket) {
  const int64_t half = buckets / 2;
  Largest largest[kRows];
  int64_t j = 0;
  for (; j + 2 * kDoubles <= half; j += 2 * kDoubles)
    Project<kRows, 2>(x, K, rotation, half, j, largest);
  for (; j + kDoubles <= half; j += kDoubles) Project<kRows, 1>(x, K, rotation, half, j, largest);
  for (; j < half; ++j) {
    for (int r = 0; r < kRows; ++r) {
      double y = 0;
      for (int64_t c = 0; c < K; ++c) y += double{x[r * K + c]} * double{rotation[c * half + j]};
      largest[r].Take(y, j);
    }
  }
  for (int r = 0; r < kRows; ++r) bucket[r] = largest[r].Bucket(half);
}

void Hash(const float* x, int64_t rows, int64_t K, const float* rotation, int64_t buckets,
          int32_t* bucket) {
  constexpr int kTogether = 4;  // hides the latency of the products
  int64_t row = 0;
  for (; row + kTogether <= rows; row += kTogether)
    HashTogether<kTogether>(x + row * K, K, rotation, buckets, bucket + row);
  for (; row < rows; ++row) HashTogether<1>(x + row * K, K, rotation, buckets, bucket + row);
}

}  // namespace HWY_NAMESPACE
}  // namespace linattn
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace linattn {

HWY_EXPORT(Hash);

void HashRows(const float* x, int64_t rows, int64_t K, const float* rotation, int64_t buckets,
              int32_t* bucket) {
  HWY_DYNAMIC_DISPATCH(Hash)(x, rows, K, rotation, buckets, bucket);
}

void CheckLshOptions(const MixerOptions& options) {
  const auto& [rounds, buckets, chunk, seed] = options.lsh;
  Check(rounds >= 1 && rounds <= kMaxRounds, "lsh", "rounds must be from 1 to {}, but are {}",
        kMaxRounds, rounds);
  Check(buckets >= 2 && buckets % 2 == 0 && buckets <= 1 << 20, "lsh",
        "buckets must be an even number from 2 to 2^20, but are {}", buckets);
  Check(chunk >= 1, "lsh", "chunk must be >= 1, but is {}", chunk);
  Check(options.window == 0 && options.sinks == 0, "lsh",
        "window and sinks must be 0 (the hash says what is seen), but are {} and {}",
        options.window, options.sinks);
}

int64_t RotationFloats(const MixerOptions& options, int64_t K) {
  return options.lsh.rounds * K * (options.lsh.buckets / 2);
}

void FillRotations(const MixerOptions& options, int64_t K, float* rotations) {
  const int64_t size = K * (options.lsh.buckets / 2);
  for (int64_t r = 0; r < options.lsh.rounds; ++r) {
    Random random(options.lsh.seed, static_cast<uint64_t>(r));
    for (int64_t i = 0; i < size; ++i, ++rotations)
      *rotations = static_cast<float>(std::round(random.Normal() * 4096) / 4096);
  }
}

}  // namespace linattn
#endif  // HWY_ONCE
