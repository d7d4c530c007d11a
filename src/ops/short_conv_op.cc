#include "ops/short_conv_op.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "base/error.h"
#include "kernels/short_conv.h"
#include "ops/torch_array.h"

namespace linattn {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr const char* kWhere = "short_conv";

ShortConv ConvOf(const Tensor& weight) {
  return {weight.data_ptr<float>(), weight.size(0), weight.size(1)};
}

Tensor ChannelsContiguous(const Tensor& x) { return x.stride(2) == 1 ? x : x.contiguous(); }

struct ShortConvFunction : torch::autograd::Function<ShortConvFunction> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& weight) {
    const Tensor from = ChannelsContiguous(x), w = weight.contiguous();
    const Tensor y = at::empty(x.sizes(), x.options());
    ShortConvForward(ConvOf(w), ViewOf(from, kWhere), nullptr, ViewOf(y, kWhere));
    ctx->save_for_backward({from, w});
    return y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const Tensor d_y = ChannelsContiguous(grads[0]);
    const Tensor d_x = at::empty(saved[0].sizes(), saved[0].options());
    const Tensor d_weight = at::empty_like(saved[1]);
    ShortConvBackward(ConvOf(saved[1]), {.x = ViewOf(saved[0], kWhere),
                                         .d_y = ViewOf(d_y, kWhere),
                                         .d_x = ViewOf(d_x, kWhere),
                                         .d_weight = d_weight.data_ptr<float>()});
    return {d_x, d_weight};
  }
};

// The definition.
Tensor Convolved(const Tensor& x, const Tensor& weight) {
  const int64_t W = weight.size(0);
  const Tensor padded = at::constant_pad_nd(x, {0, 0, W - 1, 0});
  Tensor sum = at::zeros_like(x);
  for (int64_t j = 0; j < W; ++j) sum = sum + padded.narrow(1, j, x.size(1)) * weight[j];
  return at::silu(sum);
}

}  // namespace

Tensor ShortConvolution(const Tensor& x, const Tensor& weight) {
  Check(x.dim() == 3 && weight.dim() == 2 && x.size(2) == weight.size(1), kWhere,
        "x must be [B,T,C] and weight [W,C], but they have {} and {} axes and end in {} and {}",
        x.dim(), weight.dim(), x.dim() ? x.size(-1) : 0, weight.dim() ? weight.size(-1) : 0);
  if (x.scalar_type() == at::kDouble) return Convolved(x, weight);
  Check(weight.scalar_type() == at::kFloat, kWhere, "weight must be float32, but is {}",
        c10::toString(weight.scalar_type()));
  return ShortConvFunction::apply(x, weight);
}

}  // namespace linattn
