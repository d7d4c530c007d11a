#include "nn/attention.h"

#include <torch/nn/module.h>
#include <torch/utils.h>

#include <cmath>

#include "base/error.h"
#include "ops/mix_op.h"
#include "ops/rotary_op.h"
#include "ops/short_conv_op.h"

namespace linattn::nn {
namespace {

using at::Tensor;

// Gates are computed in float32 also under autocast.
Tensor Wide(const Tensor& x) { return x.scalar_type() == at::kDouble ? x : x.to(at::kFloat); }

Tensor ByHeads(const Tensor& x, int64_t heads) {  // [B,T,H*K] -> [B,T,H,K]
  return x.view({x.size(0), x.size(1), heads, x.size(2) / heads});
}

// Tokens that are masked out stand after all others while the convolution runs, so that none of
// them is anybody's past.
Tensor ConvolvedAmongThere(const Tensor& x, const Tensor& weight, const Tensor& mask) {
  if (!mask.defined()) return ShortConvolution(x, weight);
  const Tensor order = at::argsort(mask.eq(0).to(at::kInt), /*stable=*/true, /*dim=*/1, false);
  const auto moved = [&](const Tensor& from, const Tensor& index) {
    return from.gather(1, index.unsqueeze(-1).expand_as(from));
  };
  return moved(ShortConvolution(moved(x, order), weight), order.argsort(int64_t{1}));
}

// dt log-uniform in [1e-3, 1e-1], dt_bias = softplus^-1(dt): the decay's time scales at the start
// (Gu & Dao 2023, "Mamba"; the same in Gated DeltaNet and KDA).
Tensor InitialDtBias(int64_t n) {
  const Tensor dt = at::exp(at::rand({n}) * (std::log(0.1) - std::log(0.001)) + std::log(0.001));
  return dt + at::log(-at::expm1(-dt));
}

// A learned feature map begins as [I], or [I; -I; ...] if it gives more channels.
Tensor InitialMap(int64_t out, int64_t in) {
  const Tensor rows = at::arange(out, at::kLong);
  const Tensor sign = 1 - 2 * rows.floor_divide(in).remainder(2);
  return at::eye(in).index_select(0, rows.remainder(in)) * sign.unsqueeze(1);
}

}  // namespace

Tensor Places(int64_t T, const Pass& pass) {
  const int64_t first = pass.carry ? pass.carry->tokens : 0;
  if (!pass.mask.defined()) return at::arange(first, first + T, at::kLong);
  return (pass.mask.ne(0).cumsum(1) - 1).clamp_min(0);
}

Filter::Filter(int64_t channels, int64_t width) {
  const double bound = 1 / std::sqrt(static_cast<double>(width));  // as LibTorch's Conv1d
  weight = register_parameter("weight", (at::rand({channels, 1, width}) * 2 - 1) * bound);
}

Attention::Attention(const ModelConfig& c, int64_t layer)
    : plan_(PlanLayer(c, layer)),
      options_(OptionsOf(c, layer)),
      layer_(layer),
      dim_(c.dim),
      gate_divisor_(c.gate_divisor),
      beta_factor_(c.negative_eigenvalues ? 2 : 1) {
  const LayerPlan& p = plan_;
  if (p.rope_theta > 0) rotary_ = std::make_shared<const Rotary>(p.head_dim, p.rope_theta);
  const double in = InputDeviation(dim_);
  const auto projection = [&](const char* name, int64_t out, bool bias) {
    return register_module(name, std::make_shared<Projection>(dim_, out, in, bias));
  };
  if (p.decay_gate == DecayGate::kSoftplus) AddSoftplusParameters(c.initial_decay);
  if (p.features > 0) {
    const Tensor drawn = at::tensor(FeaturesOf(c, layer));
    features_ = register_parameter("features", drawn.view({p.features, p.head_dim}), false);
    FeaturesChanged();
  }
  q_proj_ = projection("q_proj", p.query_channels(), p.qkv_bias);
  if (p.key_channels() > 0) k_proj_ = projection("k_proj", p.key_channels(), p.qkv_bias);
  v_proj_ = projection("v_proj", p.value_channels(), p.qkv_bias);
  AddGates(c);
  const double out = OutputDeviation(p.output_channels(), c.layers());
  o_proj_ = register_module("o_proj",
                            std::make_shared<Projection>(p.output_channels(), dim_, out, p.bias));
  if (p.conv_size > 0) AddFilters();
  if (p.map_dim > 0) AddFeatureMaps();
  if (p.output_norm)
    o_norm_ = register_module("o_norm", std::make_shared<Norm>(p.value_dim, c.norm_eps, false));
}

void Attention::AddFilters() {
  const auto filter = [&](const char* name, int64_t channels) {
    return register_module(name, std::make_shared<Filter>(channels, plan_.conv_size));
  };
  q_conv_ = filter("q_conv1d", plan_.query_channels());
  if (plan_.key_channels() > 0) k_conv_ = filter("k_conv1d", plan_.key_channels());
  v_conv_ = filter("v_conv1d", plan_.value_channels());
}

void Attention::AddFeatureMaps() {
  const auto map = [&](const char* name) {
    const auto made = std::make_shared<Projection>(plan_.head_dim, plan_.map_dim, 0.0, true);
    made->weight.set_data(InitialMap(plan_.map_dim, plan_.head_dim));
    return register_module(name, made);
  };
  feature_map_q_ = map("feature_map_q"), feature_map_k_ = map("feature_map_k");
}

void Attention::AddSoftplusParameters(double initial_decay) {
  // A ~ U(0,16), of kda U(1,16): their papers' code, here scaled. The lowest is kept off log(0).
  const double least = plan_.mixer->decay == Decay::kPerChannel ? 1 : 1e-3;
  const Tensor A = at::rand({plan_.value_heads}) * (16 - least) + least;
  A_log_ = register_parameter("A_log", (A * (initial_decay / 16)).log());
  dt_bias_ = register_parameter("dt_bias", InitialDtBias(plan_.decay_channels()));
}

GatePath Attention::AddGate(const std::string& name, int64_t out, int64_t rank, bool with_bias) {
  GatePath path;
  if (rank == 0) {
    path.first = register_module(
        name, std::make_shared<Projection>(dim_, out, InputDeviation(dim_), with_bias));
    return path;
  }
  const auto pair = register_module(name, std::make_shared<torch::nn::Module>());
  path.first = pair->register_module(
      "0", std::make_shared<Projection>(dim_, rank, InputDeviation(dim_), false));
  path.second = pair->register_module(
      "1", std::make_shared<Projection>(rank, out, InputDeviation(rank), with_bias));
  return path;
}

void Attention::AddGates(const ModelConfig& c) {
  const LayerPlan& p = plan_;
  if (p.decay_gate == DecayGate::kFixed) fixed_decay_ = at::tensor(FixedDecayOf(c, layer_));
  if (p.decay_gate == DecayGate::kLogSigmoid)
    decay_ = AddGate("gk_proj", p.decay_channels(), p.decay_rank, true);
  if (p.decay_gate == DecayGate::kSoftplus)
    decay_ =
        AddGate(p.decay_rank > 0 ? "f_proj" : "a_proj", p.decay_channels(), p.decay_rank, false);
  if (p.beta()) b_proj_ = AddGate("b_proj", p.value_heads, 0, false).first;
  if (p.output_gate != OutputGate::kNone)
    gate_ = AddGate("g_proj", p.output_channels(), p.gate_rank, p.gate_rank > 0);
}

void Attention::RedrawFeatures(const ModelConfig& c, int64_t draw) {
  if (!features_.defined()) return;
  torch::NoGradGuard no_grad;
  features_.copy_(at::tensor(FeaturesOf(c, layer_, draw)).view(features_.sizes()));
  FeaturesChanged();
}

void Attention::FeaturesChanged() {
  if (!features_.defined()) return;
  const Tensor flat = features_.detach().to(at::kFloat).contiguous();
  const std::span values(flat.data_ptr<float>(), static_cast<size_t>(flat.numel()));
  random_features_ = std::make_unique<RandomFeatures>(values, plan_.head_dim);
  random_features_->UseIn(options_);
}

Attention::Projected Attention::Project(const Tensor& x) const {
  const auto rows = [](const auto& projection) {
    return projection ? projection->weight.size(0) : int64_t{0};
  };
  const Tensor all =
      ForwardTogether(x, {q_proj_, k_proj_, v_proj_, decay_.first, b_proj_, gate_.first});
  const int64_t qkv = rows(q_proj_) + rows(k_proj_) + rows(v_proj_);
  if (all.size(-1) == qkv) return {.qkv = all};
  const auto parts =
      all.split_with_sizes({qkv, rows(decay_.first), rows(b_proj_), rows(gate_.first)}, -1);
  return {parts[0], decay_.Finish(parts[1]), parts[2], gate_.Finish(parts[3])};
}

Tensor Attention::Convolved(const Tensor& qkv, const Pass& pass) const {
  std::vector<Tensor> filters;
  for (const auto& filter : {q_conv_, k_conv_, v_conv_})
    if (filter) filters.push_back(filter->weight.squeeze(1));
  const Tensor weight = at::cat(filters).t();
  if (pass.carry == nullptr) return ConvolvedAmongThere(qkv, weight, pass.mask);
  const int64_t past = plan_.conv_size - 1;
  Tensor& conv = pass.carry->layers[layer_].conv;
  if (!conv.defined()) conv = at::zeros({qkv.size(0), past, qkv.size(2)}, qkv.options());
  const Tensor x = at::cat({conv, qkv}, 1);
  conv = x.narrow(1, qkv.size(1), past);
  return ShortConvolution(x, weight).narrow(1, past, qkv.size(1));
}

Attention::Heads Attention::ByHead(const Tensor& qkv, const Pass& pass) const {
  const LayerPlan& p = plan_;
  const Tensor x = p.conv_size > 0 ? Convolved(qkv, pass) : qkv;
  const int64_t keys = p.key_channels();
  if (keys > 0 && p.map_dim == 0 && p.rope_theta == 0) {
    return {.packed = {x, p.heads, p.key_heads(), p.value_heads, p.head_dim, p.value_dim}};
  }
  const auto parts = x.split_with_sizes({p.query_channels(), keys, p.value_channels()}, -1);
  Heads heads{.q = ByHeads(parts[0], p.heads), .v = ByHeads(parts[2], p.value_heads)};
  if (keys > 0) heads.k = ByHeads(parts[1], p.key_heads());
  if (p.map_dim > 0) {
    heads.q = feature_map_q_->Forward(heads.q);
    heads.k = feature_map_k_->Forward(heads.k);
  }
  if (p.rope_theta > 0) {
    const Tensor places = Places(qkv.size(1), pass);
    heads.q = Rotated(heads.q, places, rotary_);
    if (keys > 0) heads.k = Rotated(heads.k, places, rotary_);
  }
  if (keys == 0) heads.k = heads.q;
  return heads;
}

// [B,T,HV] or [B,T,HV,K], in float32; undefined without a decay.
Tensor Attention::LogDecay(const Tensor& logits, const Tensor& x) const {
  const LayerPlan& p = plan_;
  const int64_t B = x.size(0), T = x.size(1);
  std::vector<int64_t> shape{B, T, p.value_heads};
  if (p.mixer->decay == Decay::kPerChannel) shape.push_back(p.head_dim);
  switch (p.decay_gate) {
    case DecayGate::kNone:
      return {};
    case DecayGate::kFixed:
      return fixed_decay_.to(x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat)
          .expand(shape);
    case DecayGate::kLogSigmoid:
      return (at::log_sigmoid(Wide(logits)) / gate_divisor_).view(shape);
    case DecayGate::kSoftplus:
      break;
  }
  const Tensor rate = shape.size() == 4 ? A_log_.exp().unsqueeze(-1) : A_log_.exp();
  return -rate * at::softplus(Wide(logits) + dt_bias_).view(shape);
}

// RMSNorm of each head of o [B,T,H,V], then the gate [B,T,H*V]; [B,T,H*V].
Tensor Attention::Output(const Tensor& o, const Tensor& gate) const {
  Tensor y = o;
  if (o_norm_) y = o_norm_->Forward(Wide(o), {}, o.scalar_type() == at::kBFloat16).y;
  y = y.flatten(2);
  if (plan_.output_gate == OutputGate::kNone) return y;
  return y * (plan_.output_gate == OutputGate::kSwish ? at::silu(gate) : at::sigmoid(gate));
}

Tensor Attention::Forward(const Tensor& x, const Pass& pass) const {
  const auto [qkv, decay, beta, gate] = Project(x);
  const Heads heads = ByHead(qkv, pass);
  MixTensors in;
  in.q = heads.q, in.k = heads.k, in.v = heads.v, in.packed = heads.packed;
  in.g = LogDecay(decay, x);
  if (plan_.beta()) in.beta = at::sigmoid(Wide(beta)) * beta_factor_;
  in.mask = pass.mask;
  in.options = options_;
  in.final_state = pass.carry != nullptr;
  if (pass.carry) {
    in.S0 = pass.carry->layers[layer_].S, in.z0 = pass.carry->layers[layer_].z;
  }
  const MixResult out = Mix(*plan_.mixer, in);
  if (pass.carry) {
    pass.carry->layers[layer_].S = out.ST, pass.carry->layers[layer_].z = out.zT;
  }
  return o_proj_->Forward(Output(out.o, gate));
}

}  // namespace linattn::nn
