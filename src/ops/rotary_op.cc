#include "ops/rotary_op.h"

#include <torch/csrc/autograd/custom_function.h>

#include <utility>

#include "ops/torch_array.h"

namespace linattn {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr const char* kWhere = "rotary";

Tensor ChannelsContiguous(const Tensor& x) { return x.stride(-1) == 1 ? x : x.contiguous(); }

// Travels in AutogradContext::saved_data, whose values are IValues.
struct RotaryHolder : torch::CustomClassHolder {
  std::shared_ptr<const Rotary> rotary;
};

struct RotaryFunction : torch::autograd::Function<RotaryFunction> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& places,
                        c10::intrusive_ptr<RotaryHolder> holder) {
    const Tensor from = ChannelsContiguous(x), y = at::empty(x.sizes(), x.options());
    holder->rotary->Forward(ViewOf(from, kWhere), ViewOf(places, kWhere), ViewOf(y, kWhere));
    ctx->save_for_backward({places});
    ctx->saved_data["rotary"] = c10::IValue::make_capsule(holder);
    return y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto holder =
        c10::static_intrusive_pointer_cast<RotaryHolder>(ctx->saved_data["rotary"].toCapsule());
    const Tensor d_y = ChannelsContiguous(grads[0]), places = ctx->get_saved_variables()[0];
    const Tensor d_x = at::empty(d_y.sizes(), d_y.options());
    holder->rotary->Backward(ViewOf(d_y, kWhere), ViewOf(places, kWhere), ViewOf(d_x, kWhere));
    return {d_x, Tensor(), Tensor()};
  }
};

}  // namespace

Tensor Rotated(const Tensor& x, const Tensor& places, std::shared_ptr<const Rotary> rotary) {
  auto holder = c10::make_intrusive<RotaryHolder>();
  holder->rotary = std::move(rotary);
  return RotaryFunction::apply(x, places.expand({x.size(0), x.size(1)}), holder);
}

}  // namespace linattn
