#include "ops/linear_op.h"

#include <torch/csrc/autograd/custom_function.h>

#include "base/error.h"
#include "kernels/residual_norm.h"
#include "ops/dnnl_matmul.h"
#include "ops/torch_array.h"

namespace linattn {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

// One of the strides of a matrix has to be 1, and the other no smaller than a row.
Tensor AsMatrix(const Tensor& x, int64_t columns) {
  const Tensor matrix = x.reshape({-1, columns});
  const bool fits = matrix.stride(1) == 1 && matrix.stride(0) >= columns;
  return fits ? matrix : matrix.contiguous();
}

// C = op(A) op(B) + bias; A and B are matrices of AsMatrix.
void Matmul(const Tensor& A, bool a_transposed, const Tensor& B, bool b_transposed,
            const Tensor& bias, const Tensor& C) {
  MatmulSpec s{.M = C.size(0), .N = C.size(1), .K = A.size(a_transposed ? 0 : 1)};
  s.a_row = A.stride(0), s.b_row = B.stride(0), s.c_row = C.stride(0);
  if (a_transposed) std::swap(s.a_row, s.a_column);
  if (b_transposed) std::swap(s.b_row, s.b_column);
  s.in = DTypeOfTensor(A, "linear"), s.out = DTypeOfTensor(C, "linear");
  s.bias = bias.defined();
  if (s.K == 0) {
    C.zero_();
    if (s.bias) C.add_(bias);
    return;
  }
  DnnlMatmul(s, A.data_ptr(), B.data_ptr(), s.bias ? bias.data_ptr<float>() : nullptr,
             C.data_ptr());
}

struct LinearFunction : torch::autograd::Function<LinearFunction> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& weight,
                        const c10::optional<Tensor>& bias) {
    const Tensor W = AsMatrix(weight.to(x.scalar_type()), weight.size(1));  // [out, in]
    const Tensor X = AsMatrix(x, weight.size(1));                           // [rows, in]
    const Tensor Y = at::empty({X.size(0), W.size(0)}, X.options());
    Matmul(X, false, W, true, bias ? bias->contiguous() : Tensor(), Y);
    ctx->save_for_backward({X, W});
    ctx->saved_data["shape"] = x.sizes();
    ctx->saved_data["needs"] = x.requires_grad();
    ctx->saved_data["bias"] = bias.has_value();
    auto shape = x.sizes().vec();
    shape.back() = W.size(0);
    return Y.view(shape);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const Tensor &X = saved[0], &W = saved[1];
    const Tensor d_Y = AsMatrix(grads[0], W.size(0));
    Tensor d_x, d_bias;
    if (ctx->saved_data["needs"].toBool()) {
      d_x = at::empty(X.sizes(), X.options());
      Matmul(d_Y, false, W, false, {}, d_x);
      d_x = d_x.view(ctx->saved_data["shape"].toIntVector());
    }
    const Tensor d_W = at::empty(W.sizes(), W.options().dtype(at::kFloat));
    Matmul(d_Y, true, X, false, {}, d_W);
    if (ctx->saved_data["bias"].toBool()) {
      d_bias = at::empty({W.size(0)}, d_W.options());
      ColumnSums(ViewOf(d_Y, "linear"), d_bias.data_ptr<float>());
    }
    return {d_x, d_W, d_bias};
  }
};

}  // namespace

Tensor Linear(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  Check(weight.dim() == 2, "linear", "weight must be [out, in], but has {} axes", weight.dim());
  Check(x.dim() >= 1 && x.size(-1) == weight.size(1), "linear",
        "x must end in the weight's {} inputs, but has {}", weight.size(1),
        x.dim() ? x.size(-1) : 0);
  Check(!bias.defined() || (bias.dim() == 1 && bias.size(0) == weight.size(0)), "linear",
        "bias must be [out] = [{}], but has {} elements", weight.size(0),
        bias.defined() ? bias.numel() : 0);
  if (x.scalar_type() == at::kDouble) return at::linear(x, weight, bias);
  Check(x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16, "linear",
        "x must be float32, bfloat16 or float64, but is {}", c10::toString(x.scalar_type()));
  Check(weight.scalar_type() == at::kFloat && (!bias.defined() || bias.scalar_type() == at::kFloat),
        "linear", "weight and bias must be float32, but weight is {}",
        c10::toString(weight.scalar_type()));
  return LinearFunction::apply(x, weight,
                               bias.defined() ? c10::optional<Tensor>(bias) : c10::nullopt);
}

}  // namespace linattn
