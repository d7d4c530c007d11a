#pragma once

#include <ATen/core/Tensor.h>

#include <string_view>

#include "base/array.h"

namespace linattn {

// A view of the tensor's memory (rank <= 4); absent if the tensor is undefined. `where` names the
// caller in the Error for a dtype or rank that Array does not have.
Array ViewOf(const at::Tensor& tensor, std::string_view where);

DType DTypeOfTensor(const at::Tensor& tensor, std::string_view where);

}  // namespace linattn
