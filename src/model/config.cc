#include "model/config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "model/layer.h"

namespace linattn {
namespace {

using Json = nlohmann::json;

// One place that knows every field's key: what is written, what is read and what is refused follow
// from it.
template <class Config, class Visit>
void VisitFields(Config& c, Visit&& visit) {
  visit("task", c.task);
  visit("height", c.height);
  visit("width", c.width);
  visit("channels", c.channels);
  visit("vocab", c.vocab);
  visit("classes", c.classes);
  visit("class_names", c.class_names);
  visit("max_len", c.max_len);
  visit("input_features", c.input_features);
  visit("subsample", c.subsample);
  visit("sample_rate", c.sample_rate);
  visit("input_mean", c.input_mean);
  visit("input_deviation", c.input_deviation);
  visit("units", c.units);
  visit("unit_kind", c.unit_kind);
  visit("blank", c.blank);
  visit("dim", c.dim);
  visit("heads", c.heads);
  visit("value_heads", c.value_heads);
  visit("head_dim", c.head_dim);
  visit("value_dim", c.value_dim);
  visit("mlp_dim", c.mlp_dim);
  visit("mixers", c.mixers);
  visit("causal", c.causal);
  visit("feature_map", c.feature_map);
  visit("attn_eps", c.attn_eps);
  visit("attn_normalise", c.attn_normalise);
  visit("map_dim", c.map_dim);
  visit("pre_norm", c.pre_norm);
  visit("norm_eps", c.norm_eps);
  visit("activation", c.activation);
  visit("dropout", c.dropout);
  visit("position", c.position);
  visit("head", c.head);
  visit("mixtures", c.mixtures);
  visit("tied", c.tied);
  visit("block", c.block);
  visit("conv_size", c.conv_size);
  visit("output_norm", c.output_norm);
  visit("output_gate", c.output_gate);
  visit("qk_norm", c.qk_norm);
  visit("negative_eigenvalues", c.negative_eigenvalues);
  visit("gate_rank", c.gate_rank);
  visit("gate_divisor", c.gate_divisor);
  visit("initial_decay", c.initial_decay);
  visit("decay_schedule", c.decay_schedule);
  visit("features", c.features);
  visit("feature_seed", c.feature_seed);
  visit("attn_heads", c.attn_heads);
  visit("attn_head_dim", c.attn_head_dim);
  visit("kv_heads", c.kv_heads);
  visit("qkv_bias", c.qkv_bias);
  visit("attn_conv_size", c.attn_conv_size);
  visit("rope_theta", c.rope_theta);
  visit("window", c.window);
  visit("sinks", c.sinks);
  visit("cache_dtype", c.cache_dtype);
  visit("sparse_pattern", c.sparse_pattern);
  visit("sparse_stride", c.sparse_stride);
  visit("sparse_summary", c.sparse_summary);
  visit("lsh_rounds", c.lsh_rounds);
  visit("lsh_buckets", c.lsh_buckets);
  visit("lsh_chunk", c.lsh_chunk);
  visit("lsh_seed", c.lsh_seed);
}

bool HasType(const Json& json, const std::string&) { return json.is_string(); }
bool HasType(const Json& json, bool) { return json.is_boolean(); }
bool HasType(const Json& json, double) { return json.is_number(); }
bool HasType(const Json& json, int64_t) {
  return json.is_number_integer() &&
         (!json.is_number_unsigned() || json.get<uint64_t>() <= uint64_t{INT64_MAX});
}
bool HasType(const Json& json, const std::vector<std::string>&) {
  if (!json.is_array()) return false;
  for (const Json& item : json) {
    if (!item.is_string()) return false;
  }
  return true;
}

bool HasType(const Json& json, const std::vector<double>&) {
  return json.is_array() &&
         std::all_of(json.begin(), json.end(), [](const Json& item) { return item.is_number(); });
}

const char* TypeName(const std::string&) { return "a string"; }
const char* TypeName(bool) { return "true or false"; }
const char* TypeName(double) { return "a number"; }
const char* TypeName(int64_t) { return "an integer"; }
const char* TypeName(const std::vector<std::string>&) { return "a list of strings"; }
const char* TypeName(const std::vector<double>&) { return "a list of numbers"; }

// `json`, short enough for a message; invalid UTF-8 is replaced.
std::string Show(const Json& json) {
  std::string text = json.dump(-1, ' ', false, Json::error_handler_t::replace);
  return text.size() <= 60 ? text : text.substr(0, 57) + "...";
}

void CheckRange(const char* field, int64_t value, int64_t low, int64_t high) {
  Check(low <= value && value <= high, "config", "{} must be from {} to {}, but is {}", field, low,
        high, value);
}

void CheckChoice(const char* field, const std::string& value,
                 std::initializer_list<const char*> known) {
  for (const char* name : known) {
    if (value == name) return;
  }
  Fail("config", "{} must be one of {}, but is '{}'", field, fmt::join(known, ", "), value);
}

// Far above any real model, and low enough that no product of two sizes overflows.
constexpr int64_t kMaxSize = int64_t{1} << 24;

void CheckSpeech(const ModelConfig& c) {
  CheckRange("input_features", c.input_features, 1, 4096);
  CheckRange("subsample", c.subsample, 1, 64);
  CheckRange("sample_rate", c.sample_rate, 1000, 384000);
  CheckRange("blank", c.blank, 0, c.vocab - 1);
  CheckChoice("unit_kind", c.unit_kind, {"characters", "phonemes"});
  Check(c.head == "categorical" && !c.tied && c.classes == 0, "config",
        "a model of speech must have a categorical head, not tied, and no classes, but has '{}'{} "
        "and {}",
        c.head, c.tied ? ", tied" : "", c.classes);
  const auto list = [](const char* field, size_t size, int64_t wanted) {
    Check(size == 0 || static_cast<int64_t>(size) == wanted, "config",
          "{} must have {} entries, or none, but has {}", field, wanted, size);
  };
  list("units", c.units.size(), c.vocab);
  list("input_mean", c.input_mean.size(), c.input_features);
  list("input_deviation", c.input_deviation.size(), c.input_features);
  for (const double x : c.input_deviation)
    Check(x > 0, "config", "input_deviation must be above 0, but one is {}", x);
}

void CheckTask(const ModelConfig& c) {
  CheckChoice("task", c.task, {"images", "text", "speech", "copy", "recall"});
  CheckChoice("position", c.position, {"image", "learned", "sinusoidal", "none"});
  CheckChoice("head", c.head, {"logistic_mixture", "categorical"});
  CheckRange("max_len", c.max_len, 1, int64_t{1} << 31);
  Check(c.position != "image" || c.task == "images", "config",
        "position must be learned, sinusoidal or none for {}, but is '{}'", c.task, c.position);
  Check(c.reads_frames() == (c.task == "speech"), "config",
        "input_features must be above 0 for speech and 0 for all else, but is {}",
        c.input_features);
  if (c.task == "speech") return CheckSpeech(c);
  if (c.task != "images") {
    Check(c.head == "categorical", "config", "head must be categorical for {}, but is '{}'", c.task,
          c.head);
    return;
  }
  CheckRange("height", c.height, 1, 1 << 14);
  CheckRange("width", c.width, 1, 1 << 14);
  Check(c.channels == 1 || c.channels == 3, "config", "channels must be 1 or 3, but is {}",
        c.channels);
  Check(c.max_len == c.height * c.width * c.channels, "config",
        "max_len must be height * width * channels = {} for images, but is {}",
        c.height * c.width * c.channels, c.max_len);
  Check(c.vocab == 256, "config", "vocab must be 256 (8-bit sub-pixels) for images, but is {}",
        c.vocab);
}

void CheckBlocks(const ModelConfig& c) {
  CheckChoice("block", c.block, {"classic", "modern", "lstm"});
  Check(c.block == "classic" || c.pre_norm, "config",
        "pre_norm must be true in {} blocks, but is false", c.block);
  Check(c.block != "lstm" || !c.causal, "config",
        "causal must be false in lstm blocks (they are bidirectional), but is true");
}

void CheckStateLayers(const ModelConfig& c) {
  CheckRange("conv_size", c.conv_size, -1, 64);
  CheckChoice("output_norm", c.output_norm, {"auto", "rms", "none"});
  CheckChoice("output_gate", c.output_gate, {"auto", "none", "swish", "sigmoid"});
  CheckChoice("qk_norm", c.qk_norm, {"auto", "none", "l2"});
  CheckRange("gate_rank", c.gate_rank, 0, 1 << 16);
  Check(c.gate_divisor > 0 && c.gate_divisor < 1e9, "config",
        "gate_divisor must be above 0, but is {}", c.gate_divisor);
  Check(c.initial_decay > 0 && c.initial_decay < 1e9, "config",
        "initial_decay must be above 0, but is {}", c.initial_decay);
  CheckChoice("decay_schedule", c.decay_schedule, {"own", "lightning"});
  CheckRange("map_dim", c.map_dim, 0, 1 << 13);
  CheckRange("features", c.features, 0, 1 << 16);
  CheckRange("feature_seed", c.feature_seed, 0, INT64_MAX);
}

void CheckCacheLayers(const ModelConfig& c) {
  CheckRange("attn_heads", c.attn_heads, 0, 1 << 12);
  CheckRange("attn_head_dim", c.attn_head_dim, 0, 1 << 12);
  CheckRange("kv_heads", c.kv_heads, 0, 1 << 12);
  Check(c.rope_theta >= 0 && c.rope_theta < 1e30, "config",
        "rope_theta must be at least 0 (0: no rotary positions), but is {}", c.rope_theta);
  CheckRange("attn_conv_size", c.attn_conv_size, 0, 64);
  CheckRange("window", c.window, 0, INT64_MAX);
  CheckRange("sinks", c.sinks, 0, INT64_MAX);
  Check(c.sinks == 0 || c.window > 0, "config", "sinks must be 0 without a window, but are {}",
        c.sinks);
  Check(c.window == 0 || c.causal, "config", "window must be 0 in an encoder, but is {}", c.window);
  CheckChoice("cache_dtype", c.cache_dtype, {"f32", "bf16"});
  CheckChoice("sparse_pattern", c.sparse_pattern, {"strided", "fixed"});
  CheckRange("sparse_stride", c.sparse_stride, 1, kMaxSize);
  CheckRange("sparse_summary", c.sparse_summary, 1, kMaxSize);
  CheckRange("lsh_rounds", c.lsh_rounds, 1, 256);
  CheckRange("lsh_buckets", c.lsh_buckets, 2, kMaxSize);
  Check(c.lsh_buckets % 2 == 0, "config", "lsh_buckets must be even, but is {}", c.lsh_buckets);
  CheckRange("lsh_chunk", c.lsh_chunk, 1, kMaxSize);
  CheckRange("lsh_seed", c.lsh_seed, 0, INT64_MAX);
}

void CheckLayer(const ModelConfig& c, int64_t layer) {
  const LayerPlan p = PlanLayer(c, layer);
  const std::string_view name = p.mixer->name;
  Check(p.rope_theta == 0 || p.head_dim % 2 == 0, "config",
        "layer {}: {} must have an even head dimension for rotary positions, but has {}", layer,
        name, p.head_dim);
  Check(p.conv_size == 0 || c.causal || p.directed, "config",
        "layer {}: conv_size must be 0 for {} in an encoder (the convolution is causal), but is {}",
        layer, name, p.conv_size);
  if (p.state()) return;
  Check(c.attn_heads > 0 || c.value_heads == c.heads, "config",
        "layer {}: {} must have as many value heads as heads = {}, but value_heads is {} "
        "(kv_heads groups the keys and values of such layers, attn_heads sets their heads apart)",
        layer, name, c.heads, c.value_heads);
  Check(p.heads % p.value_heads == 0, "config",
        "layer {}: kv_heads must divide the {} heads of {}, but is {}", layer, p.heads, name,
        p.value_heads);
  Check(!p.mixer->shared_qk || p.value_heads == p.heads, "config",
        "layer {}: kv_heads must be 0 or {} for {} (it takes q for k), but is {}", layer, p.heads,
        name, p.value_heads);
}

}  // namespace

void CheckConfig(const ModelConfig& c) {
  CheckTask(c);
  CheckBlocks(c);
  CheckStateLayers(c);
  CheckCacheLayers(c);
  CheckRange("vocab", c.vocab, 2, kMaxSize);
  CheckRange("classes", c.classes, 0, kMaxSize);
  const auto names = static_cast<int64_t>(c.class_names.size());
  Check(names == 0 || names == c.classes, "config",
        "class_names must be as many as classes = {}, or none, but are {}", c.classes, names);
  CheckRange("dim", c.dim, 1, kMaxSize);
  CheckRange("heads", c.heads, 1, 1 << 12);
  CheckRange("value_heads", c.value_heads, 1, 1 << 12);
  Check(c.value_heads % c.heads == 0, "config",
        "value_heads must be a multiple of heads = {}, but is {}", c.heads, c.value_heads);
  CheckRange("head_dim", c.head_dim, 1, 1 << 12);
  CheckRange("value_dim", c.value_dim, 1, 1 << 12);
  CheckRange("mlp_dim", c.mlp_dim, 1, kMaxSize);
  CheckRange("mixers: the number of layers", c.layers(), 1, 4096);
  Check(!c.feature_map.empty(), "config", "feature_map must be a name, but is empty");
  Check(c.attn_eps >= 0 && c.attn_eps < 1, "config", "attn_eps must be in [0,1), but is {}",
        c.attn_eps);
  Check(c.norm_eps > 0 && c.norm_eps < 1, "config", "norm_eps must be in (0,1), but is {}",
        c.norm_eps);
  Check(c.dropout >= 0 && c.dropout < 1, "config", "dropout must be in [0,1), but is {}",
        c.dropout);
  CheckChoice("activation", c.activation, {"gelu", "relu"});
  CheckRange("mixtures", c.mixtures, 1, 1024);
  Check(!c.tied || c.head == "categorical", "config",
        "tied must be false unless head is categorical, but head is '{}'", c.head);
  for (int64_t i = 0; i < c.layers(); ++i) CheckLayer(c, i);
}

Json ToJson(const ModelConfig& config) {
  Json json = Json::object();
  VisitFields(config, [&](const char* key, const auto& value) { json[key] = value; });
  return json;
}

ModelConfig ConfigFromJson(const Json& json) {
  Check(json.is_object(), "config", "config must be a JSON object, but is {}", Show(json));
  ModelConfig config;
  size_t known = 0;
  VisitFields(config, [&](const char* key, auto& value) {
    const auto found = json.find(key);
    if (found == json.end()) return;
    ++known;
    Check(HasType(*found, value), "config", "{} must be {}, but is {}", key, TypeName(value),
          Show(*found));
    found->get_to(value);
  });
  if (known != json.size()) {
    const Json all = ToJson(config);
    for (const auto& [key, value] : json.items()) {
      Check(all.contains(key), "config", "every key must be a known one, but '{}' is not",
            Show(key));
    }
  }
  CheckConfig(config);
  return config;
}

ModelConfig NamedConfig(const std::string& name, const std::string& mixer) {
  ModelConfig c;
  int64_t layers = 0;
  if (name == "mnist") {
    c.height = c.width = 28, c.channels = 1, layers = 8;
  } else if (name == "cifar10") {
    c.height = c.width = 32, c.channels = 3, layers = 16;
  } else if (name == "fashion-small") {
    c.height = c.width = 28, c.channels = 1, layers = 6;
    c.classes = 10, c.dim = 128, c.heads = c.value_heads = 4, c.mlp_dim = 512;
  } else {
    Fail("config", "the model must be one of mnist, cifar10, fashion-small, but is '{}'", name);
  }
  c.max_len = c.height * c.width * c.channels;
  c.mixers = ExpandMixers(mixer, layers);
  CheckConfig(c);
  return c;
}

}  // namespace linattn
