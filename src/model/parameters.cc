#include "model/parameters.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "model/layer.h"

namespace linattn {
namespace {

// Appends tensors whose names start alike.
class Lister {
 public:
  Lister(std::vector<ParameterSpec>& list, std::string prefix)
      : list_(list), prefix_(std::move(prefix)) {}

  void Add(const std::string& name, std::vector<int64_t> shape, bool trained = true) {
    list_.push_back({prefix_ + name, std::move(shape), trained});
  }
  void Projection(const std::string& name, int64_t out, int64_t in, bool bias) {
    Add(name + ".weight", {out, in});
    if (bias) Add(name + ".bias", {out});
  }
  void Norm(const std::string& name, int64_t dim, bool bias) {
    Add(name + ".weight", {dim});
    if (bias) Add(name + ".bias", {dim});
  }

 private:
  std::vector<ParameterSpec>& list_;
  std::string prefix_;
};

void AddGates(Lister& to, const LayerPlan& p, int64_t dim) {
  switch (p.decay_gate) {
    case DecayGate::kNone:
    case DecayGate::kFixed:
      break;
    case DecayGate::kLogSigmoid:
      if (p.decay_rank == 0) {
        to.Projection("gk_proj", p.decay_channels(), dim, true);
      } else {
        to.Projection("gk_proj.0", p.decay_rank, dim, false);
        to.Projection("gk_proj.1", p.decay_channels(), p.decay_rank, true);
      }
      break;
    case DecayGate::kSoftplus:
      if (p.decay_rank == 0) {
        to.Projection("a_proj", p.decay_channels(), dim, false);
      } else {
        to.Projection("f_proj.0", p.decay_rank, dim, false);
        to.Projection("f_proj.1", p.decay_channels(), p.decay_rank, false);
      }
      break;
  }
  if (p.beta()) to.Projection("b_proj", p.value_heads, dim, false);
  if (p.output_gate == OutputGate::kNone) return;
  if (p.gate_rank == 0) {
    to.Projection("g_proj", p.output_channels(), dim, false);
  } else {
    to.Projection("g_proj.0", p.gate_rank, dim, false);
    to.Projection("g_proj.1", p.output_channels(), p.gate_rank, true);
  }
}

void AddAttention(Lister to, const LayerPlan& p, const ModelConfig& c) {
  if (p.decay_gate == DecayGate::kSoftplus) {
    to.Add("A_log", {p.value_heads});
    to.Add("dt_bias", {p.decay_channels()});
  }
  if (p.features > 0) to.Add("features", {p.features, p.head_dim}, false);
  to.Projection("q_proj", p.query_channels(), c.dim, p.qkv_bias);
  if (p.key_channels() > 0) to.Projection("k_proj", p.key_channels(), c.dim, p.qkv_bias);
  to.Projection("v_proj", p.value_channels(), c.dim, p.qkv_bias);
  AddGates(to, p, c.dim);
  to.Projection("o_proj", c.dim, p.output_channels(), p.bias);
  if (p.conv_size > 0) {
    to.Add("q_conv1d.weight", {p.query_channels(), 1, p.conv_size});
    if (p.key_channels() > 0) to.Add("k_conv1d.weight", {p.key_channels(), 1, p.conv_size});
    to.Add("v_conv1d.weight", {p.value_channels(), 1, p.conv_size});
  }
  if (p.map_dim > 0) {
    to.Projection("feature_map_q", p.map_dim, p.head_dim, true);
    to.Projection("feature_map_k", p.map_dim, p.head_dim, true);
  }
  if (p.output_norm) to.Add("o_norm.weight", {p.value_dim});
}

void AddLayer(std::vector<ParameterSpec>& list, const ModelConfig& c, int64_t layer) {
  const LayerPlan plan = PlanLayer(c, layer);
  const std::string prefix = fmt::format("layers.{}.", layer);
  Lister to(list, prefix);
  to.Norm("attn_norm", c.dim, plan.bias);
  to.Norm("mlp_norm", c.dim, plan.bias);
  AddAttention(Lister(list, prefix + "attn."), plan, c);
  if (c.block == "modern") to.Projection("mlp.gate_proj", c.mlp_dim, c.dim, plan.bias);
  to.Projection("mlp.up_proj", c.mlp_dim, c.dim, plan.bias);
  to.Projection("mlp.down_proj", c.dim, c.mlp_dim, plan.bias);
}

// A direction's gates in LibTorch's order.
void AddLstm(std::vector<ParameterSpec>& list, const ModelConfig& c, int64_t layer) {
  const std::string prefix = fmt::format("layers.{}.", layer);
  for (const char* direction : {"forward.", "backward."}) {
    Lister to(list, prefix + direction);
    to.Add("weight_ih", {4 * c.mlp_dim, c.dim});
    to.Add("weight_hh", {4 * c.mlp_dim, c.mlp_dim});
    to.Add("bias_ih", {4 * c.mlp_dim});
    to.Add("bias_hh", {4 * c.mlp_dim});
  }
  Lister to(list, prefix);
  to.Norm("norm", c.dim, false);
  to.Projection("proj", c.dim, 2 * c.mlp_dim, true);
}

}  // namespace

std::vector<ParameterSpec> Parameters(const ModelConfig& c) {
  std::vector<ParameterSpec> list;
  Lister to(list, "");
  if (c.reads_frames()) {
    to.Projection("input", c.dim, c.row_width(), true);
  } else {
    to.Add("embed.weight", {c.vocab + std::max<int64_t>(1, c.classes), c.dim});
  }
  if (c.position == "image") {
    to.Add("position.row.weight", {c.height, c.dim});
    to.Add("position.column.weight", {c.width, c.dim});
    to.Add("position.channel.weight", {c.channels, c.dim});
  } else if (c.position == "learned") {
    to.Add("position.weight", {c.max_len, c.dim});
  }
  for (int64_t i = 0; i < c.layers(); ++i)
    c.block == "lstm" ? AddLstm(list, c, i) : AddLayer(list, c, i);
  to.Norm("norm", c.dim, c.block == "classic");
  if (!c.tied) to.Add("head.weight", {c.outputs(), c.dim});
  to.Add("head.bias", {c.outputs()});
  return list;
}

int64_t ElementsOf(const ParameterSpec& spec) {
  int64_t size = 1;
  for (const int64_t extent : spec.shape) size *= extent;
  return size;
}

}  // namespace linattn
