#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

namespace linattn {

enum class DType : uint8_t { kF64, kF32, kF16, kBF16, kI64, kI32, kI16, kI8, kU8, kBool };

int64_t SizeOf(DType dtype);          // bytes an element
std::string_view NameOf(DType dtype);  // as safetensors spells it: "F64", "BF16", ...

template <class T>
constexpr DType DTypeOf();
struct BF16 {
  uint16_t bits;
};
struct F16 {
  uint16_t bits;
};
template <> constexpr DType DTypeOf<double>() { return DType::kF64; }
template <> constexpr DType DTypeOf<float>() { return DType::kF32; }
template <> constexpr DType DTypeOf<F16>() { return DType::kF16; }
template <> constexpr DType DTypeOf<BF16>() { return DType::kBF16; }
template <> constexpr DType DTypeOf<int64_t>() { return DType::kI64; }
template <> constexpr DType DTypeOf<int32_t>() { return DType::kI32; }
template <> constexpr DType DTypeOf<uint8_t>() { return DType::kU8; }

// Round to nearest, ties to even; NaN stays NaN.
BF16 ToBF16(float x);
F16 ToF16(float x);
float ToFloat(BF16 x);
float ToFloat(F16 x);

// A strided view, of an element type known at run time, on memory that somebody else owns. Strides count
// elements. rank 0 means "absent": optional inputs and unwanted outputs.
struct Array {
  void* data = nullptr;
  DType dtype = DType::kF32;
  int rank = 0;
  std::array<int64_t, 4> shape{};
  std::array<int64_t, 4> stride{};

  bool present() const { return rank > 0; }
  int64_t size() const;         // elements; 0 if absent
  bool contiguous() const;      // row-major without gaps (absent arrays are)
  std::string ShapeString() const;  // "[2,16,4,32]"

  // Address of element (i,j,k,l); trailing indices of a lower rank stay 0. T must be the dtype's type.
  template <class T>
  T* At(int64_t i = 0, int64_t j = 0, int64_t k = 0, int64_t l = 0) const {
    return static_cast<T*>(data) + i * stride[0] + j * stride[1] + k * stride[2] + l * stride[3];
  }
};

// A contiguous row-major view of `data`.
Array MakeArray(void* data, DType dtype, std::initializer_list<int64_t> shape);
template <class T>
Array MakeArray(T* data, std::initializer_list<int64_t> shape) {
  return MakeArray(const_cast<std::remove_const_t<T>*>(data), DTypeOf<std::remove_const_t<T>>(), shape);
}

}  // namespace linattn
