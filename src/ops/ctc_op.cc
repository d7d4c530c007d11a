#include "ops/ctc_op.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "kernels/ctc.h"
#include "ops/torch_array.h"

namespace linattn {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr const char* kWhere = "ctc";

// The gradient comes with the loss nearly free, so the backward pass only scales it.
struct CtcFunction : torch::autograd::Function<CtcFunction> {
  static Tensor forward(AutogradContext* ctx, const Tensor& logits, const Tensor& loss,
                        const Tensor& d_logits) {
    (void)logits;
    if (d_logits.defined()) ctx->save_for_backward({d_logits});
    return loss.clone();
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const Tensor d = ctx->get_saved_variables()[0];
    // A loss that is infinite has no gradient, whatever its cotangent is.
    const Tensor factor = grads[0].to(d.scalar_type()).view({-1, 1, 1});
    return {at::where(d.eq(0), d, d * factor), Tensor(), Tensor()};
  }
};

}  // namespace

Tensor CtcLossOp(const Tensor& logits, std::span<const int64_t> lengths,
                 std::span<const std::vector<int32_t>> labels, int64_t blank) {
  const Tensor x = logits.detach().contiguous();
  const Tensor loss = at::empty({static_cast<int64_t>(lengths.size())}, at::kDouble);
  const Tensor d = logits.requires_grad() ? at::empty_like(x) : Tensor();
  const CtcInputs in{ViewOf(x, kWhere), lengths, labels, blank};
  CtcOutputs out{{loss.data_ptr<double>(), lengths.size()}, ViewOf(d, kWhere)};
  x.scalar_type() == at::kDouble ? CtcLossRef(in, out) : CtcLoss(in, out);
  return d.defined() ? CtcFunction::apply(logits, loss, d) : loss;
}

}  // namespace linattn
