#include "kernels/prepared_rows.h"

#include <bit>
#include <limits>

#include "base/error.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/prepared_rows.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/dot-inl.h"

HWY_BEFORE_NAMESPACE();
namespace linattn {
namespace HWY_NAMESPACE {

// Inputs of a row from some place on.
struct WholeVectors {
  const float* x;
  HWY_INLINE FloatVector operator()(int64_t i) const { return hn::LoadU(FloatTag(), x + i); }
};
struct RaggedVectors {  // zeros from n on
  const float* x;
  int64_t n;
  HWY_INLINE FloatVector operator()(int64_t i) const {
    if (i + kLanes <= n) return hn::LoadU(FloatTag(), x + i);
    return i < n ? LoadPartial(x + i, n - i) : hn::Zero(FloatTag());
  }
};

// Calls body(load, place) for each chunk of a row.
template <int64_t kInputs, class Body>
HWY_INLINE void ForEachChunk(const float* HWY_RESTRICT x, int64_t in, Chunk* to, int64_t step,
                             const Body& body) {
  int64_t i = 0;
  for (; i + kInputs <= in; i += kInputs, to += step) body(WholeVectors{x + i}, to);
  if (i < in) body(RaggedVectors{x + i, in - i}, to);
}

HWY_INLINE void StoreWords(WordVector words, Chunk* chunk, int64_t lane) {
  hn::Store(words, WordTag(), chunk->words + lane);
}

void CopyRow(const float* x, int64_t in, Chunk* to, int64_t step) {
  ForEachChunk<kChunkWords>(x, in, to, step, [](auto load, Chunk* chunk) HWY_ATTR {
#pragma GCC unroll 16
    for (int64_t lane = 0; lane < kChunkWords; lane += kLanes)
      StoreWords(hn::BitCast(WordTag(), load(lane)), chunk, lane);
  });
}

// To bfloat16 in the upper half of each word: to nearest even, NaN stays NaN. What is below is
// noise.
HWY_INLINE WordVector RoundToUpper(FloatVector x) {
  const WordTag d;
  const auto bits = hn::BitCast(d, x);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(d, 1u));
  const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(d, 0x7fffu)));
  const auto nan = hn::Or(bits, hn::Set(d, 0x400000u));
  return hn::IfThenElse(hn::RebindMask(d, hn::IsNaN(x)), nan, rounded);
}

void RoundRow(const float* x, int64_t in, Chunk* to, int64_t step) {
  const auto upper = hn::Set(WordTag(), 0xffff0000u);
  ForEachChunk<2 * kChunkWords>(x, in, to, step, [=](auto load, Chunk* chunk) HWY_ATTR {
#pragma GCC unroll 16
    for (int64_t lane = 0; lane < kChunkWords; lane += kLanes) {
      const auto low = RoundToUpper(load(lane)), high = RoundToUpper(load(lane + kChunkWords));
      StoreWords(hn::Or(hn::ShiftRight<16>(low), hn::And(high, upper)), chunk, lane);
    }
  });
}

// Bits of the largest |x|: as integers these order like the values, and NaN is the largest.
uint32_t LargestBits(const float* x, int64_t in) {
  const IntTag d;
  const auto magnitude = hn::Set(d, 0x7fffffff);
  IntVector largest[2] = {hn::Zero(d), hn::Zero(d)};
  ForEachChunk<2 * kLanes>(x, in, nullptr, 0, [&](auto load, Chunk*) HWY_ATTR {
#pragma GCC unroll 2
    for (int64_t i = 0; i < 2; ++i)
      largest[i] = hn::Max(largest[i], hn::And(hn::BitCast(d, load(i * kLanes)), magnitude));
  });
  return static_cast<uint32_t>(hn::GetLane(hn::MaxOfLanes(d, hn::Max(largest[0], largest[1]))));
}

// To int8 by the row's largest value. Returns the sum of the integers. A sum with 1.5 * 2^23 is
// rounded to an integer, and its lowest byte is that integer's.
int32_t QuantiseRow(const float* x, int64_t in, Chunk* to, int64_t step, float steps_per_one) {
  constexpr float kRounder = 12582912.0f;
  constexpr uint32_t kRounderBits = 0x4b400000u;
  const WordTag d;
  const auto steps = hn::Set(FloatTag(), steps_per_one), rounder = hn::Set(FloatTag(), kRounder);
  const auto byte = hn::Set(d, 0xffu);
  const auto round = [=](FloatVector v)
                         HWY_ATTR { return hn::BitCast(d, hn::MulAdd(v, steps, rounder)); };
  auto sum = hn::Zero(d);  // modulo 2^32
  ForEachChunk<4 * kChunkWords>(x, in, to, step, [&](auto load, Chunk* chunk) HWY_ATTR {
#pragma GCC unroll 16
    for (int64_t lane = 0; lane < kChunkWords; lane += kLanes) {
      const auto q0 = round(load(lane)), q1 = round(load(lane + kChunkWords));
      const auto q2 = round(load(lane + 2 * kChunkWords)), q3 = round(load(lane + 3 * kChunkWords));
      sum = hn::Add(sum, hn::Add(hn::Add(q0, q1), hn::Add(q2, q3)));
      const auto low = hn::Or(hn::And(q0, byte), hn::ShiftLeft<8>(hn::And(q1, byte)));
      const auto high = hn::Or(hn::And(q2, byte), hn::ShiftLeft<8>(q3));
      StoreWords(hn::Or(low, hn::ShiftLeft<16>(high)), chunk, lane);
    }
  });
  const auto terms = static_cast<uint32_t>(Chunks(WeightType::kInt8, in) * 4 * kChunkWords);
  return static_cast<int32_t>(static_cast<uint32_t>(hn::GetLane(hn::SumOfLanes(d, sum))) -
                              terms * kRounderBits);
}

void PrepareInt8(const float* x, int64_t in, const PreparedRows::Place& place) {
  constexpr uint32_t kInfinity = 0x7f800000;
  const uint32_t bits = LargestBits(x, in);
  const auto largest = std::bit_cast<float>(bits);
  const bool finite = bits < kInfinity;
  // Not infinite for tiny values: their steps are 3e-39 at least.
  const float steps = std::min(127 / largest, std::numeric_limits<float>::max());
  *place.scale = finite ? 1 / steps : std::numeric_limits<float>::quiet_NaN();
  *place.offset = finite ? 128 * QuantiseRow(x, in, place.chunk, place.step, steps) : 0;
}

void PrepareRow(WeightType type, const float* x, int64_t in, const PreparedRows::Place& place) {
  switch (type) {
    case WeightType::kFloat32:
      return CopyRow(x, in, place.chunk, place.step);
    case WeightType::kBFloat16:
      return RoundRow(x, in, place.chunk, place.step);
    case WeightType::kInt8:
      return PrepareInt8(x, in, place);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace linattn
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace linattn {
namespace {

HWY_EXPORT(PrepareRow);

template <class T>
void Grow(std::vector<T>* v, int64_t n) {
  if (static_cast<int64_t>(v->size()) < n) v->resize(static_cast<size_t>(n));
}

}  // namespace

void PreparedRows::Reserve(int64_t max_rows, int64_t max_in) {
  Grow(&lines_, max_rows * Chunks(WeightType::kFloat32, max_in));
  Grow(&scale_, max_rows);
  Grow(&offset_, max_rows);
}

void PreparedRows::Shape(WeightType type, int64_t M, int64_t in) {
  Reserve(M, in);
  type_ = type;
  rows_ = M;
  in_ = in;
  chunks_ = Chunks(type, in);
}

void PreparedRows::Fill(int64_t begin, int64_t end, ConstRows x) {
  const auto prepare = HWY_DYNAMIC_DISPATCH(PrepareRow);
  for (int64_t t = 0; t < tiles(); ++t) {
    const int64_t first = tile_begin(t), last = tile_begin(t + 1);
    for (int64_t m = std::max(begin, first); m < std::min(end, last); ++m)
      prepare(
          type_, x.data + m * x.stride, in_,
          {lines_.data() + first * chunks_ + (m - first), last - first, &scale_[m], &offset_[m]});
  }
}

}  // namespace linattn
#endif  // HWY_ONCE
