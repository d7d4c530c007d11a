#include "base/array.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include <fmt/ranges.h>

#include "base/error.h"

namespace linattn {

int64_t SizeOf(DType dtype) {
  switch (dtype) {
    case DType::kF64:
    case DType::kI64:
      return 8;
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kF16:
    case DType::kBF16:
    case DType::kI16:
      return 2;
    default:
      return 1;
  }
}

std::string_view NameOf(DType dtype) {
  static constexpr std::string_view kNames[] = {"F64", "F32", "F16", "BF16", "I64",
                                                "I32", "I16", "I8",  "U8",   "BOOL"};
  return kNames[static_cast<int>(dtype)];
}

BF16 ToBF16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  if (std::isnan(x)) return {static_cast<uint16_t>((bits >> 16) | 0x40)};
  return {static_cast<uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16)};
}

float ToFloat(BF16 x) { return std::bit_cast<float>(static_cast<uint32_t>(x.bits) << 16); }

// By bits: clang 14 has no _Float16 on x86-64 without AVX-512 FP16.
F16 ToF16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x), magnitude = bits & 0x7FFFFFFF;
  const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
  const auto signed_half = [&](uint32_t half) {
    return F16{static_cast<uint16_t>(sign | half)};
  };
  if (std::isnan(x)) return signed_half(0x7E00 | (magnitude >> 13 & 0x3FF));
  if (magnitude >= 0x477FF000) return signed_half(0x7C00);  // 65520 and more: infinity
  if (magnitude < 0x38800000) {  // below 2^-14: a multiple of 2^-24, the last place of 0.5
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return signed_half(std::bit_cast<uint32_t>(shifted) - std::bit_cast<uint32_t>(0.5f));
  }
  const uint32_t rounded = magnitude + 0xFFF + (magnitude >> 13 & 1);
  return signed_half((rounded - (112u << 23)) >> 13);  // exponent bias 127 -> 15
}

float ToFloat(F16 x) {
  const uint32_t sign = (x.bits & 0x8000u) << 16, exponent = x.bits >> 10 & 31;
  const uint32_t mantissa = x.bits & 0x3FF;
  if (exponent == 0) {
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | sign);
  }
  const uint32_t wide = exponent == 31 ? 255 : exponent + 112;
  return std::bit_cast<float>(sign | wide << 23 | mantissa << 13);
}

int64_t Array::size() const {
  if (!present()) return 0;
  int64_t n = 1;
  for (int i = 0; i < rank; ++i) n *= shape[i];
  return n;
}

bool Array::contiguous() const {
  int64_t expected = 1;
  for (int i = rank - 1; i >= 0; --i) {
    if (shape[i] != 1 && stride[i] != expected) return false;
    expected *= shape[i];
  }
  return true;
}

std::string Array::ShapeString() const {
  return fmt::format("[{}]", fmt::join(shape.begin(), shape.begin() + rank, ","));
}

Array MakeArray(void* data, DType dtype, std::initializer_list<int64_t> shape) {
  Array a;
  a.data = data;
  a.dtype = dtype;
  a.rank = static_cast<int>(shape.size());
  std::copy(shape.begin(), shape.end(), a.shape.begin());
  int64_t stride = 1;
  for (int i = a.rank - 1; i >= 0; --i) {
    a.stride[i] = stride;
    stride *= a.shape[i];
  }
  return a;
}

}  // namespace linattn
