// Dot products of words, lane by lane: what the one micro-kernel of gemm.cc is told about a type of
// weights. Included once a SIMD target, inside foreach_target's loop.
#if defined(LINATTN_KERNELS_DOT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LINATTN_KERNELS_DOT_INL_H_
#undef LINATTN_KERNELS_DOT_INL_H_
#else
#define LINATTN_KERNELS_DOT_INL_H_
#endif

#include <hwy/highway.h>

#include <cstdint>

#include "kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace linattn {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using IntTag = hn::RebindToSigned<FloatTag>;
using WordTag = hn::RebindToUnsigned<FloatTag>;
using IntVector = hn::Vec<IntTag>;
using WordVector = hn::Vec<WordTag>;

// A Dot is: Left, a word of a row in all lanes; Right, a word of each of kLanes outputs, both in
// kPieces registers; Sum, which Add increases by the products of their 1, 2 or 4 parts. Start and
// Float are a sum's beginning and end.

struct Float32Dot {
  using Left = FloatVector;
  using Right = FloatVector;
  using Sum = FloatVector;
  static constexpr int64_t kPieces = 1;
  static constexpr bool kInteger = false;
  static HWY_INLINE Left SetLeft(uint32_t word) {
    return hn::BitCast(FloatTag(), hn::Set(WordTag(), word));
  }
  static HWY_INLINE Right LoadRight(const uint32_t* HWY_RESTRICT words) {
    return hn::BitCast(FloatTag(), hn::Load(WordTag(), words));
  }
  static HWY_INLINE Sum Start(int32_t) { return hn::Zero(FloatTag()); }
  static HWY_INLINE void Add(Sum& sum, Left x, Right w) { sum = hn::MulAdd(x, w, sum); }
  static HWY_INLINE FloatVector Float(Sum sum) { return sum; }
};

// bfloat16 is the upper half of a float32: two float32 products.
struct BFloat16Dot {
  struct Pair {
    HWY_INLINE Pair() {}  // implicit ones would miss the target's flags
    HWY_INLINE Pair(FloatVector l, FloatVector h) : low(l), high(h) {}
    FloatVector low, high;
  };
  using Left = Pair;
  using Right = Pair;
  using Sum = FloatVector;
  static constexpr int64_t kPieces = 2;
  static constexpr bool kInteger = false;
  static HWY_INLINE Pair Split(WordVector words) {
    const FloatTag d;
    return {hn::BitCast(d, hn::ShiftLeft<16>(words)),
            hn::BitCast(d, hn::And(words, hn::Set(WordTag(), 0xffff0000u)))};
  }
  static HWY_INLINE Left SetLeft(uint32_t word) { return Split(hn::Set(WordTag(), word)); }
  static HWY_INLINE Right LoadRight(const uint32_t* HWY_RESTRICT words) {
    return Split(hn::Load(WordTag(), words));
  }
  static HWY_INLINE Sum Start(int32_t) { return hn::Zero(FloatTag()); }
  static HWY_INLINE void Add(Sum& sum, Left x, Right w) {
    sum = hn::MulAdd(x.high, w.high, hn::MulAdd(x.low, w.low, sum));
  }
  static HWY_INLINE FloatVector Float(Sum sum) { return sum; }
};

// Signed activations, unsigned weights. x86 multiplies and adds pairs of int16; others go by single
// products.
struct Int8Dot {
  struct Quad {
    HWY_INLINE Quad() {}
#if HWY_TARGET <= HWY_AVX2
    HWY_INLINE Quad(IntVector e, IntVector o) : even(e), odd(o) {}
    IntVector even, odd;  // as pairs of int16
#else
    HWY_INLINE Quad(IntVector a, IntVector b, IntVector c, IntVector d) : part{a, b, c, d} {}
    IntVector part[4];
#endif
  };
  using Left = Quad;
  using Right = Quad;
  using Sum = IntVector;
  static constexpr int64_t kPieces = sizeof(Quad) / sizeof(IntVector);
  static constexpr bool kInteger = true;

#if HWY_TARGET <= HWY_AVX2
  using ShortTag = hn::Repartition<int16_t, IntTag>;
  using UShortTag = hn::Repartition<uint16_t, IntTag>;
  static HWY_INLINE IntVector AsInt(hn::Vec<ShortTag> v) { return hn::BitCast(IntTag(), v); }
  static HWY_INLINE Left SetLeft(uint32_t word) {
    const auto v = hn::BitCast(ShortTag(), hn::Set(WordTag(), word));
    return {AsInt(hn::ShiftRight<8>(hn::ShiftLeft<8>(v))), AsInt(hn::ShiftRight<8>(v))};
  }
  static HWY_INLINE Right LoadRight(const uint32_t* HWY_RESTRICT words) {
    const auto v = hn::BitCast(UShortTag(), hn::Load(WordTag(), words));
    return {hn::BitCast(IntTag(), hn::And(v, hn::Set(UShortTag(), 0xff))),
            hn::BitCast(IntTag(), hn::ShiftRight<8>(v))};
  }
  static HWY_INLINE IntVector PairProducts(IntVector a, IntVector b) {
#if HWY_TARGET <= HWY_AVX3
    return IntVector{_mm512_madd_epi16(a.raw, b.raw)};
#else
    return IntVector{_mm256_madd_epi16(a.raw, b.raw)};
#endif
  }
  static HWY_INLINE void Add(Sum& sum, const Left& x, const Right& w) {
    sum = hn::Add(sum, hn::Add(PairProducts(x.even, w.even), PairProducts(x.odd, w.odd)));
  }
#else
  static HWY_INLINE Left SetLeft(uint32_t word) {
    const auto v = hn::BitCast(IntTag(), hn::Set(WordTag(), word));
    return {hn::ShiftRight<24>(hn::ShiftLeft<24>(v)), hn::ShiftRight<24>(hn::ShiftLeft<16>(v)),
            hn::ShiftRight<24>(hn::ShiftLeft<8>(v)), hn::ShiftRight<24>(v)};
  }
  static HWY_INLINE Right LoadRight(const uint32_t* HWY_RESTRICT words) {
    const auto v = hn::Load(WordTag(), words);
    const auto byte = hn::Set(WordTag(), 0xffu);
    const IntTag d;
    return {hn::BitCast(d, hn::And(v, byte)), hn::BitCast(d, hn::And(hn::ShiftRight<8>(v), byte)),
            hn::BitCast(d, hn::And(hn::ShiftRight<16>(v), byte)),
            hn::BitCast(d, hn::ShiftRight<24>(v))};
  }
  static HWY_INLINE void Add(Sum& sum, const Left& x, const Right& w) {
    for (int i = 0; i < 4; ++i) sum = hn::Add(sum, hn::Mul(x.part[i], w.part[i]));
  }
#endif
  static HWY_INLINE Sum Start(int32_t value) { return hn::Set(IntTag(), value); }
  static HWY_INLINE FloatVector Float(Sum sum) { return hn::ConvertTo(FloatTag(), sum); }
};

#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86
// One instruction each; the caller asks MachineDots first. Inline assembly, because g++ 12 spills
// the sums of the int8 intrinsic, and because the target's flags do not name the extension.
struct NativeBFloat16Dot : Float32Dot {
  static HWY_INLINE void Add(Sum& sum, Left x, Right w) {
    asm("vdpbf16ps %2, %1, %0" : "+v"(sum.raw) : "v"(x.raw), "v"(w.raw));
  }
};

struct NativeInt8Dot {
  using Left = IntVector;
  using Right = IntVector;
  using Sum = IntVector;
  static constexpr int64_t kPieces = 1;
  static constexpr bool kInteger = true;
  static HWY_INLINE Left SetLeft(uint32_t word) {
    return hn::Set(IntTag(), static_cast<int32_t>(word));
  }
  static HWY_INLINE Right LoadRight(const uint32_t* HWY_RESTRICT words) {
    return hn::BitCast(IntTag(), hn::Load(WordTag(), words));
  }
  static HWY_INLINE Sum Start(int32_t value) { return hn::Set(IntTag(), value); }
  static HWY_INLINE void Add(Sum& sum, Left x, Right w) {
    asm("vpdpbusd %2, %1, %0" : "+v"(sum.raw) : "v"(w.raw), "v"(x.raw));  // unsigned times signed
  }
  static HWY_INLINE FloatVector Float(Sum sum) { return hn::ConvertTo(FloatTag(), sum); }
};
#endif

}  // namespace HWY_NAMESPACE
}  // namespace linattn
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
