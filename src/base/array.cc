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

F16 ToF16(float x) { return {std::bit_cast<uint16_t>(static_cast<_Float16>(x))}; }

float ToFloat(F16 x) { return static_cast<float>(std::bit_cast<_Float16>(x.bits)); }

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
