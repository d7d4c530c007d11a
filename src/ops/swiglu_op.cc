#include "ops/swiglu_op.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "base/error.h"
#include "kernels/swiglu.h"
#include "ops/torch_array.h"

namespace linattn {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

Array Flat(const Tensor& x) { return ViewOf(x.flatten(0, -2), "swiglu"); }

struct SwiGluFunction : torch::autograd::Function<SwiGluFunction> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x) {
    const Tensor from = x.contiguous();
    auto shape = x.sizes().vec();
    shape.back() /= 2;
    const Tensor y = at::empty(shape, x.options());
    SwiGluForward(Flat(from), Flat(y));
    ctx->save_for_backward({from});
    return y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const Tensor x = ctx->get_saved_variables()[0], d_y = grads[0].contiguous();
    const Tensor d_x = at::empty(x.sizes(), x.options());
    SwiGluBackward(Flat(x), Flat(d_y), Flat(d_x));
    return {d_x};
  }
};

}  // namespace

Tensor SwiGlu(const Tensor& x) {
  Check(x.dim() >= 2 && x.size(-1) % 2 == 0, "swiglu",
        "x must be [..., 2m] with two axes or more, but has {} and ends in {}", x.dim(),
        x.dim() ? x.size(-1) : 0);
  if (x.scalar_type() != at::kDouble) return SwiGluFunction::apply(x);
  const auto halves = x.chunk(2, -1);
  return at::silu(halves[0]) * halves[1];
}

}  // namespace linattn
