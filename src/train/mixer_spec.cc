#include "train/mixer_spec.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "model/layer.h"
#include "model/parameters.h"

namespace linattn {
namespace {

std::string FileName(const std::string& text) {
  std::string name;
  for (const char c : text) {
    const bool plain = std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '.';
    if (plain)
      name += c;
    else if (!name.empty() && name.back() != '-')
      name += '-';
  }
  while (!name.empty() && (name.back() == '-' || name.front() == '.'))
    name.back() == '-' ? name.pop_back() : static_cast<void>(name.erase(0, 1));
  return name;
}

std::string KeyOf(const std::string& mixer, const std::string& option, const std::string& text) {
  static const nlohmann::json known = ToJson(ModelConfig{});
  if (option == "layers") return "model.layers";
  if (option == "lr") return "train.lr";
  for (const std::string& key : {mixer + "_" + option, option})
    if (known.contains(key)) return "model." + key;
  Fail("compare", "the options of '{}' must be keys of the model, but {}_{} and {} are none", text,
       mixer, option, option);
}

// What decides how large the state is; null: the number of tokens.
int64_t* SizeOfState(ModelConfig& c) {
  int64_t* size = &c.head_dim;
  for (int64_t i = 0; i < c.layers(); ++i) {
    const LayerPlan plan = PlanLayer(c, i);
    if (!plan.state() && c.window == 0) return nullptr;
    if (!plan.state()) size = &c.window;
    if (plan.features > 0) size = &c.features;
  }
  return size;
}

double RelativeDistance(int64_t a, int64_t target) {
  return std::abs(static_cast<double>(a - target)) / static_cast<double>(target);
}

}  // namespace

MixerSpec ParseMixerSpec(const std::string& text) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(':', begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  MixerSpec spec{text, FileName(text), {"model.mixer=\"" + parts[0] + "\""}};
  Check(!spec.directory.empty(), "compare", "a mixer must have a name, but is '{}'", text);
  for (size_t i = 1; i < parts.size(); ++i) {
    const size_t equals = parts[i].find('=');
    Check(equals != std::string::npos && equals > 0, "compare",
          "the options of '{}' must be KEY=VALUE, but one is '{}'", text, parts[i]);
    spec.sets.push_back(KeyOf(parts[0], parts[i].substr(0, equals), text) +
                        parts[i].substr(equals));
  }
  return spec;
}

int64_t TrainedParameters(const ModelConfig& config) {
  int64_t count = 0;
  for (const ParameterSpec& spec : Parameters(config))
    if (spec.trained) count += ElementsOf(spec);
  return count;
}

void MatchState(int64_t target, ModelConfig& config) {
  int64_t* const size = SizeOfState(config);
  if (size == nullptr) return;
  const auto distance = [&](int64_t value) {
    *size = value;
    return std::abs(StateBytes(config, config.max_len) - target);
  };
  int64_t best = *size;
  constexpr int64_t kMost = 1 << 12;                   // the config's own limit of head_dim
  const int64_t step = config.rope_theta > 0 ? 2 : 1;  // rotary positions turn pairs of channels
  for (int64_t value = step; value <= kMost; value += step) {
    if (distance(value) < distance(best)) best = value;
    *size = value;
    if (StateBytes(config, config.max_len) > target) break;
  }
  *size = best;
}

void MatchParameters(const std::string& spec, int64_t target, ModelConfig& config) {
  constexpr double kWanted = 0.01, kAllowed = 0.02;
  const auto with = [&](int64_t mlp_dim) {
    config.mlp_dim = mlp_dim;
    return TrainedParameters(config);
  };
  // The first at or above the target; the count grows with mlp_dim, in LSTMs with its square.
  int64_t first = 1, end = int64_t{1} << 20;
  while (first < end) {
    const int64_t middle = (first + end) / 2;
    with(middle) < target ? first = middle + 1 : end = middle;
  }
  for (const int64_t multiple : {int64_t{8}, int64_t{1}}) {
    const int64_t below = std::max(multiple, (first - 1) / multiple * multiple);
    const auto distance = [&](int64_t mlp_dim) { return RelativeDistance(with(mlp_dim), target); };
    const bool nearer = distance(below) <= distance(below + multiple);
    const double limit = multiple > 1 ? kWanted : kAllowed;
    if (distance(nearer ? below : below + multiple) <= limit) return;
  }
  Fail("compare",
       "'{}' must come within 2% of {} parameters by its MLP's width, but has {} at mlp_dim {} (a "
       "larger model.mlp_dim leaves more room)",
       spec, target, TrainedParameters(config), config.mlp_dim);
}

}  // namespace linattn
