#include "ops/gelu_op.h"

#include <torch/csrc/autograd/custom_function.h>

#include "kernels/gelu.h"
#include "ops/torch_array.h"

namespace linattn {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

Array Flat(const Tensor& x) { return ViewOf(x.flatten(), "gelu"); }

struct GeluFunction : torch::autograd::Function<GeluFunction> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x) {
    const Tensor from = x.contiguous(), y = at::empty(x.sizes(), x.options());
    GeluForward(Flat(from), Flat(y));
    ctx->save_for_backward({from});
    return y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const Tensor x = ctx->get_saved_variables()[0], d_y = grads[0].contiguous();
    const Tensor d_x = at::empty(x.sizes(), x.options());
    GeluBackward(Flat(x), Flat(d_y), Flat(d_x));
    return {d_x};
  }
};

}  // namespace

Tensor Gelu(const Tensor& x) {
  return x.scalar_type() == at::kDouble ? at::gelu(x) : GeluFunction::apply(x);
}

}  // namespace linattn
