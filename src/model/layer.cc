#include "model/layer.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "base/error.h"
#include "kernels/decay_schedule.h"

namespace linattn {
namespace {

// Rank of gla's gates where the config does not say; Yang et al. 2024, section 4.4.
constexpr int64_t kGateRank = 16;
constexpr int64_t kConvSize = 4;

DecayGate DecayGateOf(const Mixer& mixer) {
  if (mixer.decay == Decay::kNone) return DecayGate::kNone;
  if (mixer.fixed_decay) return DecayGate::kFixed;
  return mixer.write == Write::kDelta ? DecayGate::kSoftplus : DecayGate::kLogSigmoid;
}

OutputGate OutputGateOf(const ModelConfig& c, const Mixer& mixer) {
  if (c.output_gate == "swish") return OutputGate::kSwish;
  if (c.output_gate == "sigmoid") return OutputGate::kSigmoid;
  if (c.output_gate == "none" || c.block == "classic" || mixer.decay == Decay::kNone)
    return OutputGate::kNone;
  const bool both = mixer.decay == Decay::kPerChannel && mixer.write == Write::kDelta;
  return both ? OutputGate::kSigmoid : OutputGate::kSwish;
}

int64_t ConvSizeOf(const ModelConfig& c, const LayerPlan& p) {
  if (c.conv_size >= 0) return c.conv_size;
  return c.block == "modern" && (c.causal || p.directed) ? kConvSize : 0;
}

// Of q and k of a state mixer, by name.
std::string FeatureMapOf(const ModelConfig& c, const Mixer& mixer) {
  if (mixer.feature_map == "favor") return "favor";
  if (mixer.normalised) return c.feature_map;
  const bool l2 = c.qk_norm == "l2" || (c.qk_norm == "auto" && mixer.write == Write::kDelta);
  return l2 ? "l2" : "identity";
}

void PlanState(const ModelConfig& c, LayerPlan& p) {
  const Mixer& mixer = *p.mixer;
  p.heads = c.heads, p.value_heads = c.value_heads;
  p.head_dim = c.head_dim, p.value_dim = c.value_dim;
  p.conv_size = ConvSizeOf(c, p);
  p.decay_gate = DecayGateOf(mixer);
  p.output_gate = OutputGateOf(c, mixer);
  const bool per_channel = mixer.decay == Decay::kPerChannel && !mixer.fixed_decay;
  if (per_channel && mixer.write == Write::kAdd)
    p.decay_rank = c.gate_rank > 0 ? c.gate_rank : kGateRank;
  if (per_channel && mixer.write == Write::kDelta) {
    p.decay_rank = c.gate_rank > 0 ? c.gate_rank : c.value_dim;
    if (p.output_gate != OutputGate::kNone) p.gate_rank = p.decay_rank;
  }
  const bool automatic = c.block == "modern" || !mixer.normalised;
  p.output_norm = c.output_norm == "rms" || (c.output_norm == "auto" && automatic);
  const std::string map = FeatureMapOf(c, mixer);
  if (mixer.normalised && map != "favor") p.map_dim = c.map_dim;
  if (map == "hedgehog" && p.map_dim == 0) p.map_dim = c.head_dim;
  if (map == "favor") p.features = c.features > 0 ? c.features : DefaultFavorFeatures(c.head_dim);
  if (mixer.fixed_decay) p.rope_theta = c.rope_theta;
}

void PlanCache(const ModelConfig& c, LayerPlan& p) {
  p.heads = c.attn_heads > 0 ? c.attn_heads : c.heads;
  p.value_heads = c.kv_heads > 0 ? c.kv_heads : p.heads;
  p.head_dim = c.attn_head_dim > 0 ? c.attn_head_dim : c.head_dim;
  p.value_dim = c.attn_head_dim > 0 ? c.attn_head_dim : c.value_dim;
  p.qkv_bias = p.bias || c.qkv_bias;
  p.conv_size = c.attn_conv_size;
  p.rope_theta = c.rope_theta;
}

}  // namespace

LayerPlan PlanLayer(const ModelConfig& c, int64_t layer) {
  LayerPlan plan;
  plan.mixer = &MixerByName(c.mixers[layer]);
  plan.directed = !c.causal && plan.mixer->causal_only;
  plan.reversed = plan.directed && layer % 2 == 1;
  plan.bias = plan.qkv_bias = c.block == "classic";
  plan.state() ? PlanState(c, plan) : PlanCache(c, plan);
  return plan;
}

MixerOptions OptionsOf(const ModelConfig& c, int64_t layer) {
  const Mixer& mixer = MixerByName(c.mixers[layer]);
  MixerOptions options;
  options.causal = c.causal || mixer.causal_only;
  options.eps = c.attn_eps;
  if (mixer.family == Family::kState) {
    const std::string map = FeatureMapOf(c, mixer);
    if (map != "favor" && map != mixer.feature_map) options.feature_map = &FeatureMapByName(map);
    if (mixer.normalised && !c.attn_normalise) {
      options.normalise = false;
      options.scale = 1 / std::sqrt(static_cast<double>(StateDimsOf(c, layer).F));
    }
    return options;
  }
  options.cache = c.cache_dtype == "bf16" ? DType::kBF16 : DType::kF32;
  options.window = c.window, options.sinks = c.sinks;
  options.sparse.pattern =
      c.sparse_pattern == "fixed" ? SparsePattern::kFixed : SparsePattern::kStrided;
  options.sparse.stride = c.sparse_stride, options.sparse.summary = c.sparse_summary;
  options.lsh.rounds = c.lsh_rounds, options.lsh.buckets = c.lsh_buckets;
  options.lsh.chunk = c.lsh_chunk, options.lsh.seed = static_cast<uint64_t>(c.lsh_seed);
  return options;
}

MixerDims StateDimsOf(const ModelConfig& c, int64_t layer) {
  const LayerPlan p = PlanLayer(c, layer);
  MixerDims d;
  d.B = d.T = d.S = d.N = 1;
  d.H = p.heads, d.HV = p.value_heads, d.K = p.mixed_dim(), d.V = p.value_dim;
  d.F = p.features > 0 ? p.features : d.K;
  if (p.state() && p.features == 0) d.F = FeatureMapByName(FeatureMapOf(c, *p.mixer)).Features(d.K);
  return d;
}

std::vector<float> FixedDecayOf(const ModelConfig& c, int64_t layer) {
  const auto schedule =
      c.decay_schedule == "lightning" ? DecaySchedule::kLightning : DecaySchedule::kOwn;
  return FixedLogDecay(MixerByName(c.mixers[layer]), schedule, c.value_heads, layer, c.layers());
}

std::vector<float> FeaturesOf(const ModelConfig& c, int64_t layer, int64_t draw) {
  const LayerPlan p = PlanLayer(c, layer);
  constexpr uint64_t kDraws = 0x9E3779B97F4A7C15;  // far apart
  const uint64_t seed = static_cast<uint64_t>(c.feature_seed) * 4096 +
                        static_cast<uint64_t>(layer) + static_cast<uint64_t>(draw) * kDraws;
  return OrthogonalProjection(p.features, p.head_dim, seed);
}

int64_t MixerStateFloats(const ModelConfig& c, int64_t layer, int64_t capacity) {
  const Mixer& mixer = MixerByName(c.mixers[layer]);
  return mixer.state_floats(StateDimsOf(c, layer), OptionsOf(c, layer), capacity);
}

int64_t LongestSequence(const ModelConfig& c) {
  constexpr int64_t kWide = int64_t{1} << 31;  // of a window, to be told from none
  if (!c.causal || c.position != "none") return c.max_len;
  const int64_t full = std::min(c.window, kWide) + std::min(c.sinks, kWide) + 1;
  for (int64_t i = 0; i < c.layers(); ++i) {
    if (PlanLayer(c, i).state()) continue;
    if (MixerStateFloats(c, i, full) != MixerStateFloats(c, i, full + 1)) return c.max_len;
  }
  return kEndless;
}

int64_t StateBytes(const ModelConfig& config, int64_t capacity) {
  int64_t floats = 0;
  for (int64_t i = 0; i < config.layers(); ++i) floats += StateFloats(config, i, capacity);
  return floats * static_cast<int64_t>(sizeof(float));
}

int64_t StateFloats(const ModelConfig& c, int64_t layer, int64_t capacity) {
  const LayerPlan p = PlanLayer(c, layer);
  const int64_t conv = p.conv_size > 0 ? (p.conv_size - 1) * p.conv_channels() : 0;
  return MixerStateFloats(c, layer, capacity) + conv;
}

}  // namespace linattn
