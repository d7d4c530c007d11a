#include "ops/logistic_mixture_op.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "base/error.h"
#include "kernels/logistic_mixture.h"
#include "ops/torch_array.h"

namespace linattn {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr const char* kWhere = "logistic_mixture";

void Evaluate(const Tensor& params, const Tensor& pixels, const Tensor& loglik,
              const Tensor& d_params) {
  const Array p = ViewOf(params, kWhere), x = ViewOf(pixels, kWhere), l = ViewOf(loglik, kWhere);
  const bool reference = params.scalar_type() == at::kDouble;
  if (reference || !d_params.defined())
    (reference ? LogisticMixtureForwardRef : LogisticMixtureForward)(p, x, l);
  if (!d_params.defined()) return;
  const Tensor ones = at::ones_like(loglik);
  const Array d = ViewOf(ones, kWhere), d_p = ViewOf(d_params, kWhere);
  if (reference)
    LogisticMixtureBackwardRef(p, x, d, d_p);
  else
    LogisticMixtureBackward(p, x, d, d_p, l);
}

// The loss of a position depends on that position alone, so that its derivative is taken in the
// forward pass, at little extra cost, and only scaled in the backward pass.
struct LossFunction : torch::autograd::Function<LossFunction> {
  static Tensor forward(AutogradContext* ctx, const Tensor& params, const Tensor& pixels) {
    const Tensor rows = params.reshape({-1, params.size(-1)});
    const Tensor P = rows.stride(1) == 1 ? rows : rows.contiguous();
    const auto type = P.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    const Tensor loglik = at::empty({P.size(0)}, P.options().dtype(type));
    const Tensor d_P = params.requires_grad() ? at::empty(P.sizes(), P.options()) : Tensor();
    Evaluate(P, pixels.reshape(-1), loglik, d_P);
    if (d_P.defined()) ctx->save_for_backward({d_P.view(params.sizes())});
    return loglik.neg_().view(pixels.sizes());
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const Tensor d_params = ctx->get_saved_variables()[0];
    return {d_params * grads[0].neg().unsqueeze(-1).to(d_params.scalar_type()), Tensor()};
  }
};

}  // namespace

Tensor LogisticMixtureLoss(const Tensor& params, const Tensor& pixels) {
  Check(params.dim() >= 1 && params.size(-1) >= 3 && params.size(-1) % 3 == 0, kWhere,
        "params must end in 3 M numbers, but end in {}", params.dim() ? params.size(-1) : 0);
  Check(pixels.scalar_type() == at::kByte, kWhere, "pixels must be uint8, but are {}",
        c10::toString(pixels.scalar_type()));
  Check(pixels.sizes() == params.sizes().slice(0, params.dim() - 1), kWhere,
        "there must be one pixel a position, but params have {} positions and pixels {}",
        params.numel() / params.size(-1), pixels.numel());
  return LossFunction::apply(params, pixels);
}

}  // namespace linattn
