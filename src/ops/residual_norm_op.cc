#include "ops/residual_norm_op.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "base/error.h"
#include "kernels/residual_norm.h"
#include "ops/torch_array.h"

namespace linattn {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Optional = c10::optional<Tensor>;

constexpr const char* kWhere = "add_norm";

ResidualNorm NormOf(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps) {
  const int64_t dim = weight.numel();
  return {.rows = dim ? x.numel() / dim : 0,
          .dim = dim,
          .eps = static_cast<float>(eps),
          .weight = weight.data_ptr<float>(),
          .bias = bias.defined() ? bias.data_ptr<float>() : nullptr,
          .centred = bias.defined()};
}

struct AddNormFunction : torch::autograd::Function<AddNormFunction> {
  static variable_list forward(AutogradContext* ctx, const Tensor& x, const Optional& delta,
                               const Tensor& weight, const Optional& given_bias, double eps,
                               at::ScalarType y_type) {
    const Tensor bias = given_bias.value_or(Tensor());
    const Tensor from = x.contiguous(), change = delta ? delta->contiguous() : Tensor();
    const Tensor sum = delta ? at::empty(x.sizes(), x.options()) : from;
    const Tensor y = at::empty(x.sizes(), x.options().dtype(y_type));
    const ResidualNorm norm = NormOf(x, weight, bias, eps);
    const Tensor statistics = at::empty({norm.rows, 2}, x.options());
    ResidualNormForward(norm, {.x = from.data_ptr<float>(),
                               .delta = delta ? ViewOf(change.flatten(), kWhere) : Array(),
                               .sum = sum.data_ptr<float>(),
                               .y = ViewOf(y.flatten(), kWhere),
                               .statistics = statistics.data_ptr<float>()});
    ctx->save_for_backward({sum, statistics, weight, bias});
    ctx->saved_data["eps"] = eps;
    if (delta) ctx->saved_data["delta"] = delta->scalar_type();
    ctx->set_materialize_grads(false);
    return delta ? variable_list{y, sum} : variable_list{y};
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const Tensor &sum = saved[0], &weight = saved[2];
    const auto delta = ctx->saved_data.find("delta");
    const bool has_delta = delta != ctx->saved_data.end();
    grads.resize(2);
    const Tensor d_y = grads[0].defined() ? grads[0].contiguous() : at::zeros_like(sum);
    const Tensor d_sum = grads[1].defined() ? grads[1].contiguous() : Tensor();
    const Tensor d_x = at::empty(sum.sizes(), sum.options());
    Tensor d_delta = d_x, d_weight = at::empty_like(weight), d_bias;
    if (saved[3].defined()) d_bias = at::empty_like(weight);
    const bool narrow = has_delta && delta->second.toScalarType() != at::kFloat;
    if (narrow) d_delta = at::empty(sum.sizes(), sum.options().dtype(delta->second.toScalarType()));
    ResidualNormBackward(NormOf(sum, weight, saved[3], ctx->saved_data["eps"].toDouble()),
                         {.sum = sum.data_ptr<float>(),
                          .statistics = saved[1].data_ptr<float>(),
                          .d_y = ViewOf(d_y.flatten(), kWhere),
                          .d_sum = d_sum.defined() ? d_sum.data_ptr<float>() : nullptr,
                          .d_x = d_x.data_ptr<float>(),
                          .d_delta = narrow ? ViewOf(d_delta.flatten(), kWhere) : Array(),
                          .d_weight = d_weight.data_ptr<float>(),
                          .d_bias = d_bias.defined() ? d_bias.data_ptr<float>() : nullptr});
    return {d_x, has_delta ? d_delta : Tensor(), d_weight, d_bias, Tensor(), Tensor()};
  }
};

void CheckShapes(const Tensor& x, const Tensor& delta, const Tensor& weight, const Tensor& bias) {
  Check(x.dim() >= 1 && weight.dim() == 1 && x.size(-1) == weight.size(0), kWhere,
        "x must end in dim = {}, but ends in {}", weight.numel(), x.dim() ? x.size(-1) : 0);
  Check(!bias.defined() || bias.sizes() == weight.sizes(), kWhere,
        "bias must have {} elements, but has {}", weight.numel(),
        bias.defined() ? bias.numel() : 0);
  Check(!delta.defined() || delta.sizes() == x.sizes(), kWhere,
        "delta must have the shape of x, but has {} elements for its {}",
        delta.defined() ? delta.numel() : 0, x.numel());
}

}  // namespace

NormResult AddNorm(const Tensor& x, const Tensor& delta, const Tensor& weight, const Tensor& bias,
                   double eps, at::ScalarType y_type) {
  CheckShapes(x, delta, weight, bias);
  if (x.scalar_type() == at::kDouble) {
    const Tensor sum = delta.defined() ? x + delta : x;
    if (bias.defined()) return {sum, at::layer_norm(sum, weight.sizes(), weight, bias, eps)};
    return {sum, sum * at::rsqrt(sum.square().mean(-1, true) + eps) * weight};
  }
  for (const Tensor* t : {&x, &weight, &bias})
    Check(!t->defined() || t->scalar_type() == at::kFloat, kWhere,
          "x, weight and bias must be float32, but one is {}", c10::toString(t->scalar_type()));
  const auto optional = [](const Tensor& t) { return t.defined() ? Optional(t) : c10::nullopt; };
  const auto results =
      AddNormFunction::apply(x, optional(delta), weight, optional(bias), eps, y_type);
  return {delta.defined() ? results[1] : x, results[0]};
}

}  // namespace linattn
