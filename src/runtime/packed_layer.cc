#include "runtime/packed_layer.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "kernels/activation.h"
#include "kernels/swiglu.h"

namespace linattn {
namespace {

const std::vector<float>& Find(const ModelTensors& tensors, const std::string& name) {
  return tensors.find(name)->second;
}

// Projections of one input, stacked as one matrix [sum of their outs, in]. A bias that a projection
// does not have is zero beside those of others.
PackedMatrix PackLinear(const ModelTensors& tensors, const std::vector<std::string>& names,
                        int64_t in) {
  std::vector<float> weight, bias;
  bool any_bias = false;
  for (const std::string& name : names) {
    const std::vector<float>& w = Find(tensors, name + ".weight");
    weight.insert(weight.end(), w.begin(), w.end());
    if (const auto b = tensors.find(name + ".bias"); b != tensors.end()) {
      any_bias = true;
      bias.insert(bias.end(), b->second.begin(), b->second.end());
    }
    bias.resize(weight.size() / in);
  }
  return PackedMatrix::Pack(weight.data(), any_bias ? bias.data() : nullptr,
                            static_cast<int64_t>(bias.size()), in);
}

}  // namespace

LayerNormParameters PackedNorm::Parameters() const {
  return {weight.data(), bias.data(), static_cast<int64_t>(weight.size()), eps, !bias.empty()};
}

PackedNorm PackNorm(const ModelConfig& c, const ModelTensors& tensors, const std::string& name) {
  PackedNorm norm{Find(tensors, name + ".weight"), {}, static_cast<float>(c.norm_eps)};
  if (c.block == "classic") norm.bias = Find(tensors, name + ".bias");
  return norm;
}

RowLayout::RowLayout(const LayerPlan& p) {
  const auto take = [this](int64_t channels) { return std::exchange(width, width + channels); };
  const bool gated = p.output_gate != OutputGate::kNone;
  q = take(p.query_channels());
  k = p.key_channels() > 0 ? take(p.key_channels()) : q;
  v = take(p.value_channels());
  convolved = width;
  const bool logits =
      p.decay_gate == DecayGate::kLogSigmoid || p.decay_gate == DecayGate::kSoftplus;
  if (logits) decay = decay_in = take(p.decay_rank > 0 ? p.decay_rank : p.decay_channels());
  if (p.beta()) beta = take(p.value_heads);
  if (gated) gate = gate_in = take(p.gate_rank > 0 ? p.gate_rank : p.output_channels());
  product = width;
  if (logits && p.decay_rank > 0) decay = take(p.decay_channels());
  if (gated && p.gate_rank > 0) gate = take(p.output_channels());
  if (p.map_dim > 0) {
    q = take(p.heads * p.map_dim);
    k = take(p.key_heads() * p.map_dim);
  }
}

int64_t PackedLayer::MlpWidth(const ModelConfig& c) {
  return c.block == "modern" ? 2 * c.mlp_dim : c.mlp_dim;
}

PackedLayer::PackedLayer(const ModelConfig& c, const ModelTensors& tensors, int64_t layer)
    : plan_(PlanLayer(c, layer)),
      layout_(plan_),
      options_(OptionsOf(c, layer)),
      dim_(c.dim),
      mlp_dim_(c.mlp_dim),
      pre_norm_(c.pre_norm),
      swiglu_(c.block == "modern"),
      gelu_(c.activation == "gelu"),
      gate_divisor_(c.gate_divisor),
      beta_factor_(c.negative_eigenvalues ? 2 : 1) {
  const std::string at = fmt::format("layers.{}.", layer), attn = at + "attn.";
  attn_norm_ = PackNorm(c, tensors, at + "attn_norm");
  mlp_norm_ = PackNorm(c, tensors, at + "mlp_norm");
  std::vector<std::string> up = {at + "mlp.up_proj"};
  if (swiglu_) up.insert(up.begin(), at + "mlp.gate_proj");
  up_ = PackLinear(tensors, up, dim_);
  down_ = PackLinear(tensors, {at + "mlp.down_proj"}, mlp_dim_);
  PackAttention(tensors, attn);
  PackGates(tensors, attn);
  if (plan_.conv_size > 0) PackConvolution(tensors, attn);
  if (plan_.rope_theta > 0)
    rotary_ = std::make_unique<const Rotary>(plan_.head_dim, plan_.rope_theta);
  if (plan_.decay_gate == DecayGate::kFixed) fixed_decay_ = FixedDecayOf(c, layer);
  output_.gate = plan_.output_gate, output_.heads = plan_.output_heads();
  output_.norm.dim = plan_.value_dim, output_.norm.eps = static_cast<float>(c.norm_eps);
  output_.norm.centred = false;
  if (plan_.output_norm) o_norm_ = Find(tensors, attn + "o_norm.weight");
  output_.norm.weight = plan_.output_norm ? o_norm_.data() : nullptr;
}

void PackedLayer::PackAttention(const ModelTensors& tensors, const std::string& attn) {
  const LayerPlan& p = plan_;
  std::vector<std::string> in = {attn + "q_proj"};
  if (p.key_channels() > 0) in.push_back(attn + "k_proj");
  in.push_back(attn + "v_proj");
  // In RowLayout's order.
  const bool low_rank = p.decay_rank > 0;
  if (p.decay_gate == DecayGate::kLogSigmoid)
    in.push_back(attn + (low_rank ? "gk_proj.0" : "gk_proj"));
  if (p.decay_gate == DecayGate::kSoftplus) in.push_back(attn + (low_rank ? "f_proj.0" : "a_proj"));
  if (p.beta()) in.push_back(attn + "b_proj");
  if (p.output_gate != OutputGate::kNone)
    in.push_back(attn + (p.gate_rank > 0 ? "g_proj.0" : "g_proj"));
  in_ = PackLinear(tensors, in, dim_);
  out_ = PackLinear(tensors, {attn + "o_proj"}, p.output_channels());
  if (p.map_dim > 0) {
    map_q_ = PackLinear(tensors, {attn + "feature_map_q"}, p.head_dim);
    map_k_ = PackLinear(tensors, {attn + "feature_map_k"}, p.head_dim);
  }
  if (p.features > 0) {
    random_features_ =
        std::make_unique<RandomFeatures>(Find(tensors, attn + "features"), p.head_dim);
    random_features_->UseIn(options_);
  }
}

void PackedLayer::PackGates(const ModelTensors& tensors, const std::string& attn) {
  const LayerPlan& p = plan_;
  if (p.gate_rank > 0) gate_ = PackLinear(tensors, {attn + "g_proj.1"}, p.gate_rank);
  const bool softplus = p.decay_gate == DecayGate::kSoftplus;
  if (p.decay_rank > 0)
    decay_ = PackLinear(tensors, {attn + (softplus ? "f_proj.1" : "gk_proj.1")}, p.decay_rank);
  if (!softplus) return;
  dt_bias_ = Find(tensors, attn + "dt_bias");
  const int64_t channels = p.decay_channels() / p.value_heads;
  for (const float a : Find(tensors, attn + "A_log"))
    rate_.insert(rate_.end(), channels, std::exp(a));
}

// From [channels,1,W] of q, k and v to [W, their channels].
void PackedLayer::PackConvolution(const ModelTensors& tensors, const std::string& attn) {
  const int64_t W = plan_.conv_size, C = layout_.convolved;
  conv_.resize(W * C);
  int64_t channel = 0;
  for (const char* name : {"q_conv1d.weight", "k_conv1d.weight", "v_conv1d.weight"}) {
    const auto found = tensors.find(attn + name);
    if (found == tensors.end()) continue;  // k is q
    const std::vector<float>& filter = found->second;
    for (size_t i = 0; i < filter.size(); i += W, ++channel)
      for (int64_t j = 0; j < W; ++j) conv_[j * C + channel] = filter[i + j];
  }
}

PackedLayer::Views PackedLayer::Before(const LayerRows& r) const {
  const float* x = r.x;
  if (pre_norm_) {
    LayerNorm(attn_norm_.Parameters(), x, r.rows(), r.y);
    x = r.y;
  }
  const int64_t width = layout_.width;
  MatMul(r.rows(), {x, dim_}, in_, {r.row, width});
  MakeGates(r);
  if (plan_.conv_size > 0) {
    Array qkv = MakeArray(r.row, {r.B, r.T, layout_.convolved});
    qkv.stride = {r.T * width, width, 1};
    ShortConvForward({conv_.data(), plan_.conv_size, layout_.convolved}, qkv, r.history, qkv);
  }
  if (plan_.map_dim > 0) {
    MapHeads(r, map_q_, 0, layout_.q, plan_.heads);
    MapHeads(r, map_k_, plan_.query_channels(), layout_.k, plan_.key_heads());
  }
  const Views views = ViewsOf(r);
  if (rotary_) {
    const Array places = MakeArray(r.places, {r.B, r.T});
    rotary_->Forward(views.q, places, views.q);
    if (plan_.key_channels() > 0) rotary_->Forward(views.k, places, views.k);
  }
  return views;
}

void PackedLayer::MakeGates(const LayerRows& r) const {
  const LayerPlan& p = plan_;
  const RowLayout& at = layout_;
  const auto rows = [&](int64_t offset) { return Rows{r.row + offset, at.width}; };
  const auto from = [&](int64_t offset) { return ConstRows{r.row + offset, at.width}; };
  if (p.decay_rank > 0) MatMul(r.rows(), from(at.decay_in), decay_, rows(at.decay));
  if (p.gate_rank > 0) MatMul(r.rows(), from(at.gate_in), gate_, rows(at.gate));
  if (p.decay_gate == DecayGate::kLogSigmoid)
    LogSigmoidDecay(rows(at.decay), r.rows(), p.decay_channels(), gate_divisor_);
  if (p.decay_gate == DecayGate::kSoftplus)
    SoftplusDecay(rows(at.decay), r.rows(), p.decay_channels(), {rate_.data(), dt_bias_.data()});
  if (p.beta()) SigmoidGate(rows(at.beta), r.rows(), p.value_heads, beta_factor_);
}

// A linear map [map_dim,K] of every head: from the channels at `from` of each row to those at `to`.
void PackedLayer::MapHeads(const LayerRows& r, const PackedMatrix& map, int64_t from, int64_t to,
                           int64_t heads) const {
  for (int64_t h = 0; h < heads; ++h) {
    MatMul(r.rows(), {r.row + from + h * plan_.head_dim, layout_.width}, map,
           {r.row + to + h * plan_.map_dim, layout_.width});
  }
}

PackedLayer::Views PackedLayer::ViewsOf(const LayerRows& r) const {
  const LayerPlan& p = plan_;
  const auto view = [&](float* data, int64_t width, int64_t heads, int64_t channels) {
    Array a = MakeArray(data, {r.B, r.T, heads, channels});
    a.stride = {r.T * width, width, channels, 1};
    return a;
  };
  const auto scalar = [&](float* data, int64_t width) {
    Array a = MakeArray(data, {r.B, r.T, p.value_heads});
    a.stride = {r.T * width, width, 1, 0};
    return a;
  };
  const int64_t width = layout_.width;
  Views views;
  views.q = view(r.row + layout_.q, width, p.heads, p.mixed_dim());
  views.k = view(r.row + layout_.k, width, p.key_heads(), p.mixed_dim());
  views.v = view(r.row + layout_.v, width, p.value_heads, p.value_dim);
  views.o = view(r.o, p.output_channels(), p.output_heads(), p.value_dim);
  if (p.beta()) views.beta = scalar(r.row + layout_.beta, width);
  if (p.decay_gate == DecayGate::kFixed) {
    views.g = scalar(const_cast<float*>(fixed_decay_.data()), 0);  // only read
  } else if (p.decay_gate != DecayGate::kNone) {
    views.g = p.mixer->decay == Decay::kScalar
                  ? scalar(r.row + layout_.decay, width)
                  : view(r.row + layout_.decay, width, p.value_heads, p.head_dim);
  }
  return views;
}

void PackedLayer::After(const LayerRows& r) const {
  const int64_t rows = r.rows(), values = plan_.output_channels();
  ApplyOutputStage(output_, {r.row + layout_.gate, layout_.width}, rows, r.o);
  MatMul(rows, {r.o, values}, out_, {r.y, dim_});
  if (pre_norm_) {
    AddLayerNorm(mlp_norm_.Parameters(), r.y, rows, r.x, r.y);
    Mlp(r, r.y);
    AddTo(r.y, rows * dim_, r.x);
  } else {
    AddLayerNorm(attn_norm_.Parameters(), r.y, rows, r.x, r.x);
    Mlp(r, r.x);
    AddLayerNorm(mlp_norm_.Parameters(), r.y, rows, r.x, r.x);
  }
}

// from [rows,dim] -> y
void PackedLayer::Mlp(const LayerRows& r, const float* from) const {
  const int64_t rows = r.rows(), width = swiglu_ ? 2 * mlp_dim_ : mlp_dim_;
  MatMul(rows, {from, dim_}, up_, {r.up, width});
  if (swiglu_) {
    Array first = MakeArray(r.up, {rows, mlp_dim_});
    first.stride[0] = width;
    SwiGluForward(MakeArray(r.up, {rows, width}), first);
  } else {
    gelu_ ? Gelu(r.up, rows * mlp_dim_, r.up) : Relu(r.up, rows * mlp_dim_, r.up);
  }
  MatMul(rows, {r.up, width}, down_, {r.y, dim_});
}

MixerInputs InputsOf(const PackedLayer::Views& views, const MixerOptions& options) {
  MixerInputs in;
  in.q = views.q, in.k = views.k, in.v = views.v, in.g = views.g, in.beta = views.beta;
  in.options = options;
  return in;
}

}  // namespace linattn
