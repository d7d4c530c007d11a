#include "model/fla_config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "kernels/feature_map.h"

namespace linattn {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kWhere = "fla";
constexpr int64_t kMaxSize = int64_t{1} << 24;  // as model/config.cc has it

std::string Show(const Json& json) {
  return Printable(json.dump(-1, ' ', false, Json::error_handler_t::replace));
}

// The fields of a JSON object, typed; null is as good as absent. Remembers which were asked for.
class Fields {
 public:
  Fields(const Json& json, std::string at) : json_(json), at_(std::move(at)) {
    Check(json_.is_object(), kWhere, "{}must be a JSON object, but is {}", at_, Show(json_));
  }

  int64_t Integer(const std::string& key, int64_t absent, int64_t low = 1,
                  int64_t high = kMaxSize) {
    const Json* value = Find(key);
    if (!value) return absent;
    Check(value->is_number_integer() && *value >= low && *value <= high, kWhere,
          "{}{} must be an integer from {} to {}, but is {}", at_, key, low, high, Show(*value));
    return value->get<int64_t>();
  }
  double Number(const std::string& key, double absent) {
    const Json* value = Find(key);
    if (!value) return absent;
    Check(value->is_number() && *value > 0 && *value < 1e30, kWhere,
          "{}{} must be a number above 0, but is {}", at_, key, Show(*value));
    return value->get<double>();
  }
  bool Flag(const std::string& key, bool absent) {
    const Json* value = Find(key);
    if (!value) return absent;
    Check(value->is_boolean(), kWhere, "{}{} must be true or false, but is {}", at_, key,
          Show(*value));
    return value->get<bool>();
  }
  std::string Text(const std::string& key, const std::string& absent) {
    const Json* value = Find(key);
    if (!value) return absent;
    Check(value->is_string(), kWhere, "{}{} must be a string, but is {}", at_, key, Show(*value));
    return value->get<std::string>();
  }
  // Refuses what would be computed in another way than it is here.
  void MustBe(const std::string& key, const std::vector<Json>& supported) {
    const Json* value = Find(key);
    if (!value || std::find(supported.begin(), supported.end(), *value) != supported.end()) return;
    std::vector<std::string> shown;
    for (const Json& one : supported) shown.push_back(Show(one));
    Fail(kWhere, "{}{} must be {} (nothing else is supported), but is {}", at_, key,
         fmt::join(shown, " or "), Show(*value));
  }
  const Json* Find(const std::string& key) {
    asked_.insert(key);
    const auto found = json_.find(key);
    return found == json_.end() || found->is_null() ? nullptr : &*found;
  }
  std::vector<std::string> Unknown() const {
    std::vector<std::string> names;
    for (const auto& [key, value] : json_.items())
      if (!asked_.count(key)) names.push_back(key);
    return names;
  }
  const std::string& at() const { return at_; }

 private:
  const Json& json_;
  std::string at_;  // begins every message
  std::set<std::string> asked_;
};

// int(size * factor) as Python has it, of which each of `heads` takes an equal part.
int64_t PerHead(Fields& f, const char* key, double factor, int64_t size, int64_t heads) {
  const double expand = f.Number(key, factor), channels = std::trunc(size * expand);
  Check(channels >= 1 && channels <= kMaxSize && static_cast<int64_t>(channels) % heads == 0,
        kWhere, "{}hidden_size * {} must be a multiple of num_heads = {}, but is {} * {}", f.at(),
        key, heads, size, expand);
  return static_cast<int64_t>(channels) / heads;
}

int64_t MlpDim(Fields& f, int64_t hidden) {
  const double ratio = f.Number("hidden_ratio", 4);
  const int64_t given = f.Integer("intermediate_size", 0);
  if (given > 0) return given;
  const double wanted = std::trunc(static_cast<double>(hidden) * ratio * 2 / 3);
  Check(wanted <= kMaxSize, kWhere, "{}hidden_ratio must be below {} here, but is {}", f.at(),
        kMaxSize / hidden, ratio);
  return 256 * ((static_cast<int64_t>(wanted) + 255) / 256);
}

void RefuseSharedKeys(Fields& f, int64_t heads) {
  const int64_t kv_heads = f.Integer("num_kv_heads", heads);
  Check(kv_heads == heads, kWhere,
        "{}num_kv_heads must be num_heads = {} (nothing else is supported), but is {}", f.at(),
        heads, kv_heads);
}

// linear_attn, gla and delta_net give their heads equal parts of hidden_size * expand_k and
// expand_v.
void ReadHeads(Fields& f, FlaConfig& fla, int64_t heads, double expand_k) {
  ModelConfig& c = fla.model;
  c.heads = c.value_heads = f.Integer("num_heads", heads, 1, 1 << 12);
  c.head_dim = PerHead(f, "expand_k", expand_k, c.dim, c.heads);
  c.value_dim = PerHead(f, "expand_v", 1, c.dim, c.heads);
}

// gated_deltanet and kda have heads of head_dim, and values of head_dim * expand_v.
void ReadGroupedHeads(Fields& f, FlaConfig& fla, int64_t heads, int64_t head_dim) {
  ModelConfig& c = fla.model;
  c.heads = f.Integer("num_heads", heads, 1, 1 << 12);
  c.value_heads = f.Integer("num_v_heads", c.heads, 1, 1 << 12);
  Check(c.value_heads % c.heads == 0, kWhere,
        "{}num_v_heads must be a multiple of num_heads = {}, but is {}", f.at(), c.heads,
        c.value_heads);
  c.head_dim = f.Integer("head_dim", head_dim, 1, 1 << 12);
  const double expand = f.Number("expand_v", fla.model_type == "kda" ? 1 : 2);
  const double value_dim = static_cast<double>(c.head_dim) * expand;
  c.value_dim = std::llround(std::min(value_dim, double{kMaxSize}));
  Check(c.value_dim >= 1 && std::abs(value_dim - static_cast<double>(c.value_dim)) < 1e-4, kWhere,
        "{}head_dim * expand_v must be an integer up to {}, but is {}", f.at(), kMaxSize,
        value_dim);
}

// Of the delta rule's layers. Without convolutions they keep the silu behind them.
void ReadConvolution(Fields& f, FlaConfig& fla) {
  const int64_t size = f.Integer("conv_size", 4, 1, 64);
  f.MustBe("conv_bias", {false});
  fla.has_conv = f.Flag("use_short_conv", true);
  fla.model.conv_size = fla.has_conv ? size : 1;
  fla.model.negative_eigenvalues = f.Flag("allow_neg_eigval", false);
}

// fla's map, ours, and the channels of the learned linear map before it, in heads' channels.
struct Map {
  const char *name, *ours;
  int64_t widened;
};
constexpr Map kMaps[] = {{"elementwise_product", "hadamard", 2},
                         {"hedgehog", "exp", 2},
                         {"t2r", "relu", 1},
                         {"dpfp", "dpfp4", 0},
                         {"elu", "elu1", 0},
                         {"relu", "relu", 0},
                         {"identity", "identity", 0}};

void ReadFeatureMap(Fields& f, FlaConfig& fla) {
  fla.feature_map = f.Text("feature_map", kMaps[0].name);
  fla.tied_maps = f.Flag("tie_feature_map_qk", false);
  std::vector<std::string_view> known;
  for (const Map& map : kMaps) {
    known.push_back(map.name);
    if (fla.feature_map != map.name) continue;
    fla.model.feature_map = map.ours;
    fla.model.map_dim = map.widened * fla.model.head_dim;
    return;
  }
  Fail(kWhere, "{}feature_map must be one of {}, but is '{}'", f.at(), fmt::join(known, ", "),
       Printable(fla.feature_map));
}

void ReadLinearAttn(Fields& f, FlaConfig& fla) {
  ModelConfig& c = fla.model;
  ReadHeads(f, fla, 4, 1);
  RefuseSharedKeys(f, c.heads);
  ReadFeatureMap(f, fla);
  f.MustBe("norm_q", {false});
  f.MustBe("norm_k", {false});
  f.MustBe("output_norm", {"rmsnorm"});
  fla.has_o_norm = f.Flag("elementwise_affine", true);
  c.attn_normalise = f.Flag("norm_feature_map", false);
  // fla divides by scale q.z + 1e-10, scale = F^-1/2 of F features, this program by q.z + attn_eps.
  const int64_t mapped = c.map_dim > 0 ? c.map_dim : c.head_dim;
  const int64_t features = FeatureMapByName(c.feature_map).Features(mapped);
  c.attn_eps = 1e-10 * std::sqrt(static_cast<double>(features));
  c.conv_size = 0, c.output_gate = "none";
}

void ReadGla(Fields& f, FlaConfig& fla) {
  ModelConfig& c = fla.model;
  ReadHeads(f, fla, 4, 0.5);
  RefuseSharedKeys(f, c.heads);
  f.MustBe("feature_map", {"identity"});
  f.MustBe("clamp_min", {nullptr});
  f.MustBe("use_gk", {true});
  f.MustBe("use_gv", {false});
  f.MustBe("conv_bias", {false});
  const int64_t size = f.Integer("conv_size", 4, 1, 64);
  fla.has_conv = f.Flag("use_short_conv", false);
  c.conv_size = fla.has_conv ? size : 0;
  c.output_gate = f.Flag("use_output_gate", true) ? "swish" : "none";
  fla.has_o_norm = f.Flag("elementwise_affine", true);
  c.gate_rank = 16, c.gate_divisor = 16;
}

void ReadDeltaNet(Fields& f, FlaConfig& fla) {
  ReadHeads(f, fla, 16, 1);
  f.MustBe("qk_norm", {"l2"});
  f.MustBe("qk_activation", {"silu"});
  f.MustBe("use_beta", {true});
  f.MustBe("use_output_norm", {true});
  ReadConvolution(f, fla);
  fla.model.output_gate = f.Flag("use_gate", false) ? "swish" : "none";
}

void ReadGatedDeltaNet(Fields& f, FlaConfig& fla) {
  ReadGroupedHeads(f, fla, 6, 256);
  ReadConvolution(f, fla);
  fla.model.output_gate = f.Flag("use_gate", true) ? "swish" : "none";
}

void ReadKda(Fields& f, FlaConfig& fla) {
  ReadGroupedHeads(f, fla, 16, 128);
  ReadConvolution(f, fla);
  f.MustBe("safe_gate", {false});
  f.MustBe("lower_bound", {nullptr});
  fla.model.output_gate = "sigmoid";
  fla.model.gate_rank = fla.model.value_dim;
}

struct ModelType {
  const char* name;
  const char* mixer;
  int64_t layers;  // num_hidden_layers unless given
  void (*read)(Fields&, FlaConfig&);
};
constexpr ModelType kTypes[] = {{"linear_attn", "linear", 24, ReadLinearAttn},
                                {"gla", "gla", 24, ReadGla},
                                {"delta_net", "delta", 24, ReadDeltaNet},
                                {"gated_deltanet", "gated_delta", 21, ReadGatedDeltaNet},
                                {"kda", "kda", 24, ReadKda}};

const ModelType& TypeNamed(Fields& f) {
  const std::string name = f.Text("model_type", "");
  std::vector<std::string_view> known;
  for (const ModelType& type : kTypes) {
    if (name == type.name) return type;
    known.push_back(type.name);
  }
  Fail(kWhere, "{}model_type must be one of {}, but is '{}'", f.at(), fmt::join(known, ", "),
       Printable(name));
}

// Settings of softmax layers, but for the layers: all must have the same.
void ReadSoftmax(Fields& f, ModelConfig& c) {
  c.attn_heads = f.Integer("num_heads", 0, 1, 1 << 12);
  Check(c.attn_heads > 0, kWhere, "{}num_heads must be given, but is not", f.at());
  Check(c.dim % c.attn_heads == 0, kWhere, "{}num_heads must divide hidden_size = {}, but is {}",
        f.at(), c.dim, c.attn_heads);
  c.attn_head_dim = c.dim / c.attn_heads;
  c.kv_heads = f.Integer("num_kv_heads", c.attn_heads, 1, 1 << 12);
  c.qkv_bias = f.Flag("qkv_bias", false);
  c.window = f.Integer("window_size", 0, 1, int64_t{1} << 31);
  c.rope_theta = f.Number("rope_theta", 10000);
  for (const std::string& key : f.Unknown()) f.MustBe(key, {false});
}

void PutSoftmax(const Json* layers, const std::string& at, ModelConfig& c) {
  Check(layers && layers->is_array(), kWhere, "{}layers must be a list of layers, but is {}", at,
        layers ? Show(*layers) : "absent");
  for (const Json& layer : *layers) {
    const bool number = layer.is_number_integer() && layer >= 0 && layer < c.layers();
    Check(number, kWhere, "{}layers must be numbers from 0 to {}, but one is {}", at,
          c.layers() - 1, Show(layer));
    std::string& mixer = c.mixers[layer.get<size_t>()];
    Check(mixer != "softmax", kWhere, "{}layers must not name a layer twice, but do {}", at,
          Show(layer));
    mixer = "softmax";
  }
}

// attn: one object, or a list of them.
void ReadHybrid(Fields& f, ModelConfig& c) {
  const Json* attn = f.Find("attn");
  if (!attn) return;
  const Json list = attn->is_array() ? *attn : Json::array({*attn});
  const ModelConfig plain = c;
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string at =
        attn->is_array() ? fmt::format("{}attn[{}].", f.at(), i) : f.at() + "attn.";
    Fields spec(list[i], at);
    PutSoftmax(spec.Find("layers"), at, c);
    ModelConfig settings = plain;
    ReadSoftmax(spec, settings);
    settings.mixers = c.mixers;
    if (i == 0) c = settings;
    Check(ToJson(settings) == ToJson(c), kWhere,
          "{} must have the settings of attn[0] (one model has one kind of softmax layer), but has "
          "others",
          at.substr(0, at.size() - 1));
  }
}

// bos_token_id, or else eos_token_id; either may be null or, eos, a list.
int64_t StartToken(Fields& f, const Json& json, int64_t vocab) {
  for (const auto& [key, absent] : {std::pair("bos_token_id", 1), std::pair("eos_token_id", 2)}) {
    const Json* value = f.Find(key);
    const Json id = value ? *value : json.contains(key) ? Json(nullptr) : Json(absent);
    if (id.is_number_integer() && id >= 0 && id < vocab) return id.get<int64_t>();
  }
  return -1;
}

bool Harmless(const std::string& key) {
  static const std::set<std::string> names = {
      "_name_or_path", "architectures",        "attn_mode",         "auto_map",     "dtype",
      "eos_token_id",  "max_length",           "initializer_range", "pad_token_id", "torch_dtype",
      "use_l2warp",    "transformers_version", "use_cache"};
  return key.starts_with("fuse_") || names.count(key) > 0;
}

void ReadCommon(Fields& f, const Json& json, FlaConfig& fla) {
  ModelConfig& c = fla.model;
  c.task = "text", c.block = "modern", c.position = "none", c.head = "categorical";
  c.output_norm = "rms";
  f.MustBe("hidden_act", {"swish", "silu"});
  f.MustBe("quantization_config", {nullptr});
  c.vocab = f.Integer("vocab_size", 32000, 2);
  c.max_len = f.Integer("max_position_embeddings", 2048, 1, int64_t{1} << 31);
  c.dim = f.Integer("hidden_size", 2048);
  c.mlp_dim = MlpDim(f, c.dim);
  c.norm_eps = f.Number("norm_eps", 1e-6);
  c.tied = f.Flag("tie_word_embeddings", false);
  fla.start_token = StartToken(f, json, c.vocab);
}

}  // namespace

FlaConfig ParseFlaConfig(std::string_view text, const std::string& name) {
  const Json json = ParseJson(text, kWhere, name);
  Fields f(json, name + ": ");
  const ModelType& type = TypeNamed(f);
  FlaConfig fla;
  fla.model_type = type.name;
  ReadCommon(f, json, fla);
  const int64_t layers = f.Integer("num_hidden_layers", type.layers, 1, 4096);
  fla.model.mixers.assign(layers, type.mixer);
  type.read(f, fla);
  ReadHybrid(f, fla.model);
  for (const std::string& key : f.Unknown())
    if (!Harmless(key)) fla.ignored.push_back(Printable(key));
  try {
    CheckConfig(fla.model);
  } catch (const Error& e) {
    throw Error(kWhere, fmt::format("{}: {}", name, e.what()), e.fault());
  }
  return fla;
}

}  // namespace linattn
