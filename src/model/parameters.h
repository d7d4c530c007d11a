#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/config.h"

namespace linattn {

struct ParameterSpec {
  std::string name;
  std::vector<int64_t> shape;
  bool trained = true;  // false: drawn once and kept (a performer's features)
};

// Every tensor of the model, in file order (weights are [out, in]):
//   embed.weight [vocab + max(1,classes), dim]      or, of models that read frames,
//   input.{weight,bias} [dim, row_width]
//   position.{row,column,channel}.weight [height|width|channels, dim]  or  position.weight
//   [max_len, dim] layers.{i}.attn_norm.{weight,bias} [dim]      layers.{i}.mlp_norm.{weight,bias}
//   [dim] layers.{i}.attn. ...                          (below) layers.{i}.mlp.[gate_proj],
//   up_proj, down_proj .{weight,bias}     gate_proj: modern norm.{weight,bias} [dim] head.weight
//   [outputs, dim] (absent if tied)   head.bias [outputs]
// lstm blocks: layers.{i}.norm.weight [dim], layers.{i}.proj.{weight,bias} [dim, 2 mlp_dim], and
// for each direction d in (forward, backward) layers.{i}.{d}.{weight_ih,weight_hh,bias_ih,bias_hh},
// [4 mlp_dim, dim|mlp_dim], gates in LibTorch's order.
// Modern blocks have none of these biases but the head's. Attention, with H, HV heads and K, V
// channels of LayerPlan (state mixers: q, k have H heads, v and o HV; cache mixers: q, o have H, k
// and v HV):
//   A_log [HV]; dt_bias [HV] or [HV*K]            delta rule with decay: g = -exp(A_log) softplus(a
//   + dt_bias) features [M, K]                               performer; not trained q_proj, k_proj,
//   v_proj .{weight,bias}         no k_proj where k is q (lsh) gk_proj.{weight,bias} [HV, dim] g =
//   logsigmoid(gk_proj x) / gate_divisor (simple_gla) gk_proj.0.weight [R, dim],
//   gk_proj.1.{weight,bias} [HV*K, R]      the same, low-rank, per channel (gla) a_proj.weight [HV,
//   dim]                       a of gated_delta f_proj.0.weight [R, dim], f_proj.1.weight [HV*K, R]
//   a of kda b_proj.weight [HV, dim]                       beta = sigmoid(b_proj x) g_proj.weight
//   [HV*V, dim], or g_proj.0.weight [R, dim], g_proj.1.{weight,bias} (kda): output gate
//   o_proj.{weight,bias} [dim, heads of o * V]
//   {q,k,v}_conv1d.weight [channels, 1, W]        the last tap is the current token's
//   feature_map_{q,k}.{weight,bias} [M, K], [M]   M = map_dim, or K of hedgehog; for every head
//   o_norm.weight [V]
// Pre-norm:  h = x + attn(attn_norm(x)), y = h + mlp(mlp_norm(h)).  Post-norm: h = attn_norm(x +
// attn(x)), y = mlp_norm(h + mlp(h)). Both end with norm, then head.
std::vector<ParameterSpec> Parameters(const ModelConfig& config);

int64_t ElementsOf(const ParameterSpec& spec);

}  // namespace linattn
