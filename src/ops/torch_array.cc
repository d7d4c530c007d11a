#include "ops/torch_array.h"

#include <algorithm>

#include "base/error.h"

namespace linattn {

DType DTypeOfTensor(const at::Tensor& tensor, std::string_view where) {
  switch (tensor.scalar_type()) {
    case at::kDouble:
      return DType::kF64;
    case at::kFloat:
      return DType::kF32;
    case at::kHalf:
      return DType::kF16;
    case at::kBFloat16:
      return DType::kBF16;
    case at::kLong:
      return DType::kI64;
    case at::kInt:
      return DType::kI32;
    case at::kByte:
      return DType::kU8;
    case at::kBool:
      return DType::kBool;
    default:
      Fail(where, "a tensor has dtype {}, which is not supported",
           c10::toString(tensor.scalar_type()));
  }
}

Array ViewOf(const at::Tensor& tensor, std::string_view where) {
  if (!tensor.defined()) return {};
  const auto rank = tensor.dim();
  Check(rank >= 1 && rank <= 4, where, "tensors must have 1 to 4 axes, but one has {}", rank);
  Check(tensor.device().is_cpu(), where, "tensors must be on the CPU, but one is on {}",
        tensor.device().str());
  Array view{.data = tensor.data_ptr(), .dtype = DTypeOfTensor(tensor, where), .rank = int(rank)};
  std::copy_n(tensor.sizes().begin(), rank, view.shape.begin());
  std::copy_n(tensor.strides().begin(), rank, view.stride.begin());
  return view;
}

}  // namespace linattn
