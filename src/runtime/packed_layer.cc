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
                        int64_t in, WeightType type = WeightType::kFloat32) {
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
                            static_cast<int64_t>(bias.size()), in, type);
}

// A projection [out,in] cut along its inputs, `channels` of them to each of split's; the bias is
// the first term's.
std::vector<PackedMatrix> PackTerms(const ModelTensors& tensors, const std::string& name,
                                    const TermSplit& split, int64_t channels, WeightType type) {
  const std::vector<float>& weight = Find(tensors, name + ".weight");
  const auto bias = tensors.find(name + ".bias");
  const int64_t in = split.size * channels, out = static_cast<int64_t>(weight.size()) / in;
  std::vector<PackedMatrix> terms;
  for (int64_t t = 0; t < split.count(); ++t) {
    const int64_t begin = split.begin(t) * channels, end = split.begin(t + 1) * channels;
    std::vector<float> part;
    for (int64_t o = 0; o < out; ++o)
      part.insert(part.end(), weight.begin() + o * in + begin, weight.begin() + o * in + end);
    const bool first = t == 0 && bias != tensors.end();
    terms.push_back(PackedMatrix::Pack(part.data(), first ? bias->second.data() : nullptr, out,
                                       end - begin, type));
  }
  return terms;
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

TermSplit::TermSplit(int64_t size, int64_t multiple) : size(size) {
  each = (size + kTerms - 1) / kTerms;
  each = (each + multiple - 1) / multiple * multiple;
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

PackedLayer::PackedLayer(const ModelConfig& c, const ModelTensors& tensors, int64_t layer,
                         WeightType type)
    : plan_(PlanLayer(c, layer)),
      layout_(plan_),
      options_(OptionsOf(c, layer)),
      dim_(c.dim),
      mlp_dim_(c.mlp_dim),
      key_heads_(plan_.key_heads()),
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
  up_ = PackLinear(tensors, up, dim_, type);
  constexpr int64_t kUnits = 64;  // a multiple of panels, and of what a cache line of int8 holds
  units_ = TermSplit(mlp_dim_, kUnits);
  down_ = PackTerms(tensors, at + "mlp.down_proj", units_, 1, type);
  PackAttention(tensors, attn, type);
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

void PackedLayer::PackAttention(const ModelTensors& tensors, const std::string& attn,
                                WeightType type) {
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
  in_ = PackLinear(tensors, in, dim_, type);
  // A mixer that steps all heads at once keeps them in one term.
  heads_ = TermSplit(key_heads_, p.mixer->shares_steps ? 1 : key_heads_);
  out_ = PackTerms(tensors, attn + "o_proj", heads_, p.output_channels() / key_heads_, type);
  PlanSections();
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

// In RowLayout's order.
void PackedLayer::PlanSections() {
  const LayerPlan& p = plan_;
  const auto add = [this](int64_t begin, int64_t width, bool shared = false) {
    sections_.push_back({begin, width, shared});
  };
  add(0, p.query_channels());  // layout_.q and k are behind the learned maps, where there are any
  if (p.key_channels() > 0) add(p.query_channels(), p.key_channels());
  add(layout_.v, p.value_channels());
  if (p.decay_gate == DecayGate::kLogSigmoid || p.decay_gate == DecayGate::kSoftplus)
    add(layout_.decay_in, p.decay_rank > 0 ? p.decay_rank : p.decay_channels(), p.decay_rank > 0);
  if (p.beta()) add(layout_.beta, p.value_heads);
  if (p.output_gate != OutputGate::kNone)
    add(layout_.gate_in, p.gate_rank > 0 ? p.gate_rank : p.output_channels(), p.gate_rank > 0);
}

LayerRows PackedLayer::Part(const LayerRows& r, int64_t begin, int64_t end) const {
  LayerRows part = r;
  part.B = 1, part.T = end - begin;
  part.places += begin;
  for (float** at : {&part.x, &part.y, &part.attention, &part.mlp}) *at += begin * dim_;
  part.row += begin * layout_.width;
  part.o += begin * plan_.output_channels();
  part.up += begin * (swiglu_ ? 2 * mlp_dim_ : mlp_dim_);
  return part;
}

int64_t PackedLayer::products() const {
  return dim_ * (in_.out() + plan_.output_channels() + up_.out() + mlp_dim_);
}

HeadShare PackedLayer::Heads(const LayerShare& share) const {
  return {heads_.begin(share.begin), heads_.begin(share.end)};
}

namespace {

void MatMulRuns(const PreparedRows& x, const PackedMatrix& w, const PanelRuns& panels, Rows y) {
  for (size_t i = 0; i < panels.count; ++i)
    MatMulPanels(x, w, {panels.runs[i].begin, panels.runs[i].end}, y);
}

}  // namespace

void PanelRuns::Add(int64_t begin, int64_t end) {
  constexpr int64_t kPanel = PackedMatrix::kPanel;
  const int64_t last = count > 0 ? runs[count - 1].end : 0;
  begin = std::max(last, begin / kPanel), end = (end + kPanel - 1) / kPanel;
  if (begin >= end) return;
  if (count > 0 && begin == last)
    runs[count - 1].end = end;
  else
    runs[count++] = {begin, end};
}

PanelRuns PackedLayer::ProjectionRuns(const HeadShare& heads) const {
  PanelRuns runs;
  for (const Section& s : sections_) {
    const int64_t each = s.width / key_heads_;
    s.shared ? runs.Add(s.begin, s.begin + s.width)
             : runs.Add(s.begin + heads.begin * each, s.begin + heads.end * each);
  }
  return runs;
}

PanelRuns PackedLayer::MlpRuns(const LayerShare& share) const {
  PanelRuns runs;
  const int64_t begin = units_.begin(share.begin), end = units_.begin(share.end);
  runs.Add(begin, end);
  if (swiglu_) runs.Add(mlp_dim_ + begin, mlp_dim_ + end);
  return runs;
}

void PackedLayer::AddReads(const LayerShare& share, std::vector<PanelRange>* order) {
  const auto add = [&](PackedMatrix& w, const PanelRuns& panels) {
    for (size_t i = 0; i < panels.count; ++i)
      order->push_back({&w, panels.runs[i].begin, panels.runs[i].end});
  };
  const HeadShare heads = Heads(share);
  if (heads.begin < heads.end) add(in_, ProjectionRuns(heads));
  for (int64_t t = share.begin; t < std::min(share.end, heads_.count()); ++t)
    order->push_back({&out_[t], 0, out_[t].panels()});
  add(up_, MlpRuns(share));
  for (int64_t t = share.begin; t < std::min(share.end, units_.count()); ++t)
    order->push_back({&down_[t], 0, down_[t].panels()});
}

void PackedLayer::Project(const LayerRows& r, const LayerShare& share) const {
  const HeadShare heads = Heads(share);
  if (heads.begin == heads.end) return;
  const float* x = r.x;
  if (pre_norm_) {
    LayerNorm(attn_norm_.Parameters(), x, r.rows(), r.y);
    x = r.y;
  }
  r.prepared->Prepare(in_.type(), r.rows(), dim_, {x, dim_});
  MatMulRuns(*r.prepared, in_, ProjectionRuns(heads), {r.row, layout_.width});
  MakeGates(r, heads);
}

void PackedLayer::MakeGates(const LayerRows& r, const HeadShare& heads) const {
  const LayerPlan& p = plan_;
  const RowLayout& at = layout_;
  const auto rows = [&](int64_t offset) { return Rows{r.row + offset, at.width}; };
  const auto low_rank = [&](int64_t from, const PackedMatrix& w, int64_t to) {
    const int64_t each = w.out() / key_heads_;
    r.prepared->Prepare(w.type(), r.rows(), w.in(), {r.row + from, at.width});
    PanelRuns runs;
    runs.Add(heads.begin * each, heads.end * each);
    MatMulRuns(*r.prepared, w, runs, rows(to));
  };
  if (p.decay_rank > 0) low_rank(at.decay_in, decay_, at.decay);
  if (p.gate_rank > 0) low_rank(at.gate_in, gate_, at.gate);
  const int64_t decays = p.decay_channels() / key_heads_, count = heads.end - heads.begin;
  const int64_t first = heads.begin * decays;
  if (p.decay_gate == DecayGate::kLogSigmoid)
    LogSigmoidDecay(rows(at.decay + first), r.rows(), count * decays, gate_divisor_);
  if (p.decay_gate == DecayGate::kSoftplus)
    SoftplusDecay(rows(at.decay + first), r.rows(), count * decays,
                  {rate_.data() + first, dt_bias_.data() + first});
  const int64_t betas = p.value_heads / key_heads_;
  if (p.beta())
    SigmoidGate(rows(at.beta + heads.begin * betas), r.rows(), count * betas, beta_factor_);
}

void PackedLayer::Convolve(const LayerRows& r) const {
  if (plan_.conv_size == 0) return;
  Array qkv = MakeArray(r.row, {r.B, r.T, layout_.convolved});
  qkv.stride = {r.T * layout_.width, layout_.width, 1};
  ShortConvForward({conv_.data(), plan_.conv_size, layout_.convolved}, qkv, r.history, qkv);
}

void PackedLayer::ConvolveToken(const LayerRows& r, const LayerShare& share) const {
  if (plan_.conv_size == 0) return;
  const HeadShare heads = Heads(share);
  Array qkv = MakeArray(r.row, {r.B, 1, layout_.convolved});
  qkv.stride = {layout_.width, layout_.width, 1};
  const ShortConv conv{conv_.data(), plan_.conv_size, layout_.convolved};
  for (const Section& s : sections_) {
    if (s.begin >= layout_.convolved) break;
    const int64_t each = s.width / key_heads_;
    ShortConvStep(conv, qkv, r.history, s.begin + heads.begin * each, s.begin + heads.end * each);
  }
}

void PackedLayer::Turn(const LayerRows& r, const LayerShare& share) const {
  const HeadShare heads = Heads(share);
  const int64_t group = plan_.heads / key_heads_, count = heads.end - heads.begin;
  if (count == 0) return;
  if (plan_.map_dim > 0) {
    MapHeads(r, map_q_, 0, layout_.q, {heads.begin * group, heads.end * group});
    MapHeads(r, map_k_, plan_.query_channels(), layout_.k, heads);
  }
  if (!rotary_) return;
  const Array places = MakeArray(r.places, {r.B, r.T});
  const auto turn = [&](Array a, int64_t first, int64_t n) {
    a.data = a.At<float>(0, 0, first), a.shape[2] = n;
    rotary_->Forward(a, places, a);
  };
  const Views views = ViewsOf(r);
  turn(views.q, heads.begin * group, count * group);
  if (plan_.key_channels() > 0) turn(views.k, heads.begin, count);
}

// A linear map [map_dim,K] of every head: from the channels at `from` of each row to those at `to`.
void PackedLayer::MapHeads(const LayerRows& r, const PackedMatrix& map, int64_t from, int64_t to,
                           const HeadShare& heads) const {
  for (int64_t h = heads.begin; h < heads.end; ++h) {
    r.prepared->Prepare(map.type(), r.rows(), map.in(),
                        {r.row + from + h * plan_.head_dim, layout_.width});
    MatMulPanels(*r.prepared, map, {0, map.panels()},
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

void PackedLayer::Out(const LayerRows& r, const LayerShare& share) const {
  const int64_t width = plan_.output_channels(), each = width / key_heads_;
  const int64_t terms = std::min(share.end, heads_.count());
  for (int64_t t = share.begin; t < terms; ++t) {
    const int64_t begin = heads_.begin(t) * each, end = heads_.begin(t + 1) * each;
    OutputStage stage = output_;
    stage.heads = (end - begin) / plan_.value_dim;
    const Rows o{r.o + begin, width};
    ApplyOutputStage(stage, {r.row + layout_.gate + begin, layout_.width}, r.rows(), o);
    r.prepared->Prepare(out_[t].type(), r.rows(), end - begin, {o.data, o.stride});
    MatMulPanels(*r.prepared, out_[t], {0, out_[t].panels()},
                 {r.attention + t * r.term_stride, dim_});
  }
}

void PackedLayer::Mlp(const LayerRows& r, const LayerShare& share) const {
  const int64_t rows = r.rows(), width = swiglu_ ? 2 * mlp_dim_ : mlp_dim_;
  const Terms attention{r.attention, heads_.count(), r.term_stride};
  const float* from = pre_norm_ ? r.y : r.x;
  pre_norm_ ? AddLayerNorm(mlp_norm_.Parameters(), attention, rows, r.x, r.y)
            : AddLayerNorm(attn_norm_.Parameters(), attention, rows, r.x, r.x);
  const int64_t begin = units_.begin(share.begin), end = units_.begin(share.end);
  if (begin == end) return;
  r.prepared->Prepare(up_.type(), rows, dim_, {from, dim_});
  MatMulRuns(*r.prepared, up_, MlpRuns(share), {r.up, width});
  Activate(r, begin, end);
  for (int64_t t = share.begin; t < std::min(share.end, units_.count()); ++t) {
    const int64_t first = units_.begin(t);
    r.prepared->Prepare(down_[t].type(), rows, down_[t].in(), {r.up + first, width});
    MatMulPanels(*r.prepared, down_[t], {0, down_[t].panels()}, {r.mlp + t * r.term_stride, dim_});
  }
}

void PackedLayer::Activate(const LayerRows& r, int64_t begin, int64_t end) const {
  const int64_t width = swiglu_ ? 2 * mlp_dim_ : mlp_dim_, n = end - begin;
  for (int64_t i = 0; i < r.rows(); ++i) {
    float* up = r.up + i * width + begin;
    if (swiglu_)
      SwiGluRow(up, up + mlp_dim_, n, up);
    else
      gelu_ ? Gelu(up, n, up) : Relu(up, n, up);
  }
}

void PackedLayer::Finish(const LayerRows& r) const {
  const Terms mlp{r.mlp, units_.count(), r.term_stride};
  pre_norm_ ? AddTerms(mlp, r.rows() * dim_, r.x)
            : AddLayerNorm(mlp_norm_.Parameters(), mlp, r.rows(), r.x, r.x);
}

MixerInputs InputsOf(const PackedLayer::Views& views, const MixerOptions& options) {
  MixerInputs in;
  in.q = views.q, in.k = views.k, in.v = views.v, in.g = views.g, in.beta = views.beta;
  in.options = options;
  return in;
}

}  // namespace linattn
