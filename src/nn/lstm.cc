#include "nn/lstm.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <cmath>

namespace linattn::nn {

using at::Tensor;

LstmDirection::LstmDirection(int64_t in, int64_t hidden) {
  const double bound = 1 / std::sqrt(static_cast<double>(hidden));  // as LibTorch's own
  const auto uniform = [&](at::IntArrayRef shape) { return (at::rand(shape) * 2 - 1) * bound; };
  weight_ih = register_parameter("weight_ih", uniform({4 * hidden, in}));
  weight_hh = register_parameter("weight_hh", uniform({4 * hidden, hidden}));
  bias_ih = register_parameter("bias_ih", uniform({4 * hidden}));
  bias_hh = register_parameter("bias_hh", uniform({4 * hidden}));
}

LstmBlock::LstmBlock(const ModelConfig& c, int64_t layer)
    : name(fmt::format("layers.{}", layer)), dropout(c.dropout) {
  const auto direction = [&] { return std::make_shared<LstmDirection>(c.dim, c.mlp_dim); };
  forward = register_module("forward", direction());
  backward = register_module("backward", direction());
  norm = register_module("norm", std::make_shared<Norm>(c.dim, c.norm_eps, false));
  const double out = OutputDeviation(2 * c.mlp_dim, c.layers());
  proj = register_module("proj", std::make_shared<Projection>(2 * c.mlp_dim, c.dim, out, true));
}

Tensor LstmBlock::Forward(const Tensor& x, const Pass& pass) const {
  const Tensor read = norm->Forward(x, {}, false).y;
  const int64_t B = x.size(0), T = x.size(1), hidden = forward->weight_hh.size(1);
  // Longest first, as packing wants them.
  const Tensor lengths = pass.mask.defined() ? pass.mask.ne(0).sum(1) : at::full({B}, T, at::kLong);
  const Tensor order = lengths.argsort(/*stable=*/true, 0, /*descending=*/true);
  const auto [data, batch_sizes] = at::_pack_padded_sequence(
      read.index_select(0, order), lengths.index_select(0, order).clamp_min(1), true);
  std::vector<Tensor> weights;
  for (const auto& d : {forward, backward})
    weights.insert(weights.end(), {d->weight_ih, d->weight_hh, d->bias_ih, d->bias_hh});
  const Tensor zero = at::zeros({2, B, hidden}, x.options());
  const Tensor packed = std::get<0>(at::lstm(data, batch_sizes, {zero, zero}, weights,
                                             /*has_biases=*/true, /*num_layers=*/1, /*dropout=*/0,
                                             /*train=*/false, /*bidirectional=*/true));
  const Tensor padded = std::get<0>(at::_pad_packed_sequence(packed, batch_sizes, true, 0.0, T));
  Tensor y = proj->Forward(padded.index_select(0, order.argsort(int64_t{0})));
  if (dropout > 0 && is_training()) y = at::dropout(y, dropout, true);
  if (pass.observe) pass.observe(name + ".lstm", read, y);
  return x + y;
}

}  // namespace linattn::nn
