#include "train/config.h"

#include <fmt/ranges.h>
#include <toml++/toml.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"

namespace linattn {
namespace {

using Json = nlohmann::json;

template <class Config, class Visit>
void VisitData(Config& c, Visit&& visit) {
  visit("source", c.source);
  visit("full_train", c.full_train);
  visit("limit", c.limit);
  visit("flip", c.flip);
  visit("vocabulary", c.vocabulary);
  visit("pairs", c.pairs);
  visit("dictionary", c.dictionary);
  visit("unalignable", c.unalignable);
  visit("time_masks", c.time_masks);
  visit("time_mask", c.time_mask);
  visit("mel_masks", c.mel_masks);
  visit("mel_mask", c.mel_mask);
}

template <class Config, class Visit>
void VisitTrain(Config& c, Visit&& visit) {
  visit("steps", c.steps);
  visit("minutes", c.minutes);
  visit("batch", c.batch);
  visit("accumulate", c.accumulate);
  visit("optimiser", c.optimiser);
  visit("beta1", c.beta1);
  visit("beta2", c.beta2);
  visit("eps", c.eps);
  visit("weight_decay", c.weight_decay);
  visit("lr", c.lr);
  visit("schedule", c.schedule);
  visit("warmup", c.warmup);
  visit("schedule_steps", c.schedule_steps);
  visit("final_lr", c.final_lr);
  visit("step_size", c.step_size);
  visit("step_factor", c.step_factor);
  visit("clip", c.clip);
  visit("dtype", c.dtype);
  visit("seed", c.seed);
  visit("ema", c.ema);
  visit("redraw_features_every", c.redraw_features_every);
  visit("skip_nonfinite", c.skip_nonfinite);
  visit("log_every", c.log_every);
  visit("eval_every", c.eval_every);
  visit("eval_examples", c.eval_examples);
  visit("sample_every", c.sample_every);
  visit("samples", c.samples);
  visit("temperature", c.temperature);
  visit("checkpoint_every", c.checkpoint_every);
  visit("checkpoint_minutes", c.checkpoint_minutes);
  visit("keep", c.keep);
  visit("export_weights", c.export_weights);
  visit("export_dtype", c.export_dtype);
}

int64_t EditDistance(const std::string& a, const std::string& b) {
  std::vector<int64_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = static_cast<int64_t>(j);
  for (size_t i = 1; i <= a.size(); ++i) {
    int64_t diagonal = row[0];
    row[0] = static_cast<int64_t>(i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const int64_t replaced = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
    }
  }
  return row[b.size()];
}

std::string LastPart(const std::string& key) { return key.substr(key.rfind('.') + 1); }

// ", did you mean train.lr?", or "" when nothing is near.
std::string NearMatches(const std::string& key, const Json& known) {
  std::vector<std::pair<int64_t, std::string>> near;
  for (const auto& [table, keys] : known.items()) {
    for (const auto& [name, value] : keys.items()) {
      const int64_t distance = EditDistance(LastPart(key), name);
      const bool prefix = LastPart(key).size() >= 3 && name.starts_with(LastPart(key));
      // Two edits are near for five letters, such as two that are swapped.
      const bool far = distance * 5 > 2 * static_cast<int64_t>(std::max<size_t>(name.size(), 3));
      if (prefix || !far) near.emplace_back(distance, table + "." + name);
    }
  }
  std::sort(near.begin(), near.end());
  if (near.size() > 3) near.resize(3);
  std::vector<std::string> names;
  for (const auto& [distance, name] : near) names.push_back(name);
  return names.empty() ? "" : fmt::format(", did you mean {}?", fmt::join(names, " or "));
}

Json FromToml(const toml::node& node, const std::string& where) {
  if (const auto* table = node.as_table()) {
    Json json = Json::object();
    for (const auto& [key, value] : *table) {
      json[std::string(key.str())] = FromToml(value, where + "." + std::string(key.str()));
    }
    return json;
  }
  if (const auto* array = node.as_array()) {
    Json json = Json::array();
    for (const toml::node& item : *array) json.push_back(FromToml(item, where));
    return json;
  }
  if (const auto value = node.value_exact<std::string>()) return *value;
  if (const auto value = node.value_exact<bool>()) return *value;
  if (const auto value = node.value_exact<int64_t>()) return *value;
  if (const auto value = node.value_exact<double>()) return *value;
  Fail("config", "{} must be a string, number, true, false, list or table", where);
}

Json ReadToml(const std::string& path) {
  std::ifstream file(path);
  Check(file.good(), "config", "{} must be a readable file, but cannot be opened", path);
  try {
    return FromToml(toml::parse(file, path), path);
  } catch (const toml::parse_error& e) {
    Fail("config", "{} must be TOML, but line {} is not: {}", path, e.source().begin.line,
         std::string(e.description()));
  }
}

// The value of "key=value": TOML where it parses, else the text itself.
Json ReadValue(const std::string& text) {
  try {
    return FromToml(*toml::parse("x = " + text).get("x"), "--set");
  } catch (const toml::parse_error&) {
    return text;
  }
}

// The model of a run that names none; the only one with data of its own.
constexpr const char* kDefaultBase = "fashion-small";

// Every known key with its default, and the three of [model] that resolve into others.
Json KnownKeys() {
  Json known = ToJson(RunConfig{});
  known["model"]["base"] = kDefaultBase;
  known["model"]["mixer"] = "linear";
  known["model"]["layers"] = 6;
  return known;
}

bool SameType(const Json& a, const Json& b) {
  if (a.is_number_float()) return b.is_number();
  if (a.is_number_integer()) return b.is_number_integer();
  return a.type() == b.type();
}

std::string TypeName(const Json& json) {
  if (json.is_number_float()) return "a number";
  if (json.is_number_integer()) return "an integer";
  if (json.is_array()) return "a list of strings";
  return json.is_boolean() ? "true or false" : "a string";
}

// An explicit list gives way to a mixer or a number of layers, which keeps of it what it does not
// say itself.
void CoarsenMixers(Json& model) {
  if (!model.contains("mixers")) return;
  const auto mixers = model["mixers"].get<std::vector<std::string>>();
  model.erase("mixers");
  model.emplace("layers", mixers.size());
  model.emplace("mixer", fmt::format("{}", fmt::join(mixers, ",")));
}

// Lays table.key = value over `user`; refuses unknown keys and wrong types.
void SetKey(Json& user, const std::string& key, const Json& value, const std::string& where) {
  static const Json known = KnownKeys();
  const size_t dot = key.find('.');
  const std::string table = key.substr(0, dot);
  const std::string name = dot == std::string::npos ? "" : key.substr(dot + 1);
  Check(known.contains(table) && known[table].contains(name), "config",
        "{}: every key must be a known one, but '{}' is not{}", where, key,
        NearMatches(key, known));
  const Json& standard = known[table][name];
  Check(SameType(standard, value), "config", "{}: {} must be {}, but is {}", where, key,
        TypeName(standard), value.dump());
  user[table][name] = value;
  // The newer, coarser word wins over the older, finer one.
  if (key == "train.minutes" && value != 0) user["train"].erase("steps");
  if (key == "model.mixer" || key == "model.layers") CoarsenMixers(user["model"]);
}

void SetTables(Json& user, const Json& file, const std::string& path) {
  for (const auto& [table, keys] : file.items()) {
    if (!keys.is_object()) SetKey(user, table, keys, path);  // a stray key: refused there
    for (const auto& [name, value] : keys.items()) {
      SetKey(user, table + "." + name, value, path);
    }
  }
  // Within one file the finer one wins.
  for (const auto& [table, name] : {std::pair("model", "mixers"), std::pair("train", "steps")}) {
    if (file.contains(table) && file[table].contains(name)) user[table][name] = file[table][name];
  }
}

// The model's table with base, mixer and layers resolved into ModelConfig's keys.
Json ResolveModel(Json user) {
  const std::string base = user.value<std::string>("base", kDefaultBase);
  Json model = ToJson(base == "none" ? ModelConfig{} : NamedConfig(base, "linear"));
  const auto layers = user.value("layers", std::max<int64_t>(1, model["mixers"].size()));
  Check(layers >= 1 && layers <= 4096, "config", "model.layers must be from 1 to 4096, but is {}",
        layers);
  model["mixers"] = ExpandMixers(user.value("mixer", "linear"), layers);
  for (const char* key : {"base", "mixer", "layers"}) user.erase(key);
  // Follow the user's other sizes unless they are given themselves.
  model.update(user);
  if (!user.contains("value_heads")) model["value_heads"] = model["heads"];
  if (!user.contains("max_len") && model["task"] == "images") {
    model["max_len"] = model["height"].get<int64_t>() * model["width"].get<int64_t>() *
                       model["channels"].get<int64_t>();
  }
  return model;
}

void CheckRange(const char* key, double value, double low, double high) {
  Check(low <= value && value <= high, "config", "{} must be from {} to {}, but is {}", key, low,
        high, value);
}

void CheckChoice(const char* key, const std::string& value,
                 std::initializer_list<const char*> known) {
  Check(std::find(known.begin(), known.end(), value) != known.end(), "config",
        "{} must be one of {}, but is '{}'", key, fmt::join(known, ", "), value);
}

}  // namespace

void CheckRunConfig(const RunConfig& config) {
  CheckConfig(config.model);
  const TrainConfig& t = config.train;
  constexpr double kMany = 1e15;
  Check(!config.data.source.empty() || !ReadsData(config.model.task), "config",
        "data.source must be a name or a path");
  CheckRange("data.limit", config.data.limit, 0, kMany);
  CheckChoice("data.unalignable", config.data.unalignable, {"skip", "refuse"});
  CheckRange("data.time_masks", config.data.time_masks, 0, 1000);
  CheckRange("data.time_mask", config.data.time_mask, 0, kMany);
  CheckRange("data.mel_masks", config.data.mel_masks, 0, 1000);
  CheckRange("data.mel_mask", config.data.mel_mask, 0, 4096);
  CheckRange("train.steps", t.steps, 0, kMany);
  CheckRange("train.minutes", t.minutes, 0, kMany);
  CheckRange("train.batch", t.batch, 1, 1 << 20);
  CheckRange("train.accumulate", t.accumulate, 1, 1 << 20);
  CheckChoice("train.optimiser", t.optimiser, {"adam", "adamw", "radam"});
  CheckRange("train.beta1", t.beta1, 0, 0.9999999);
  CheckRange("train.beta2", t.beta2, 0, 0.9999999);
  CheckRange("train.eps", t.eps, 0, 1);
  CheckRange("train.weight_decay", t.weight_decay, 0, 1e6);
  CheckSchedule(ScheduleOf(t, 0));
  CheckRange("train.schedule_steps", t.schedule_steps, 0, kMany);
  CheckRange("train.clip", t.clip, 0, kMany);
  CheckChoice("train.dtype", t.dtype, {"f32", "bf16"});
  CheckRange("train.ema", t.ema, 0, 0.9999999);
  CheckRange("train.redraw_features_every", t.redraw_features_every, 0, kMany);
  CheckRange("train.log_every", t.log_every, 1, kMany);
  CheckRange("train.eval_every", t.eval_every, 0, kMany);
  CheckRange("train.eval_examples", t.eval_examples, 0, kMany);
  CheckRange("train.sample_every", t.sample_every, 0, kMany);
  CheckRange("train.samples", t.samples, 1, 4096);
  CheckRange("train.temperature", t.temperature, 0, 100);
  CheckRange("train.checkpoint_every", t.checkpoint_every, 0, kMany);
  CheckRange("train.checkpoint_minutes", t.checkpoint_minutes, 0, kMany);
  CheckRange("train.keep", t.keep, 1, 1 << 20);
  CheckChoice("train.export_weights", t.export_weights, {"best", "last"});
  CheckChoice("train.export_dtype", t.export_dtype, {"f32", "f16", "bf16"});
}

RunConfig ResolveConfig(const std::string& path, const std::vector<std::string>& sets) {
  Json user = {{"model", Json::object()}, {"data", Json::object()}, {"train", Json::object()}};
  if (!path.empty()) SetTables(user, ReadToml(path), path);
  for (const std::string& set : sets) {
    const size_t equals = set.find('=');
    Check(equals != std::string::npos, "config", "--set must be KEY=VALUE, but is '{}'", set);
    const std::string key = set.substr(0, equals);
    Json value = ReadValue(set.substr(equals + 1));
    // A name that looks like a number or a truth value is still a name.
    if (key == "data.source" && !value.is_string()) value = set.substr(equals + 1);
    SetKey(user, key, value, "--set");
  }
  const std::string base = user["model"].value<std::string>("base", kDefaultBase);
  user["model"] = ResolveModel(user["model"]);
  if (!ReadsData(user["model"]["task"].get<std::string>())) user["data"].emplace("source", "");
  Check(base == kDefaultBase || user["data"].contains("source"), "config",
        "the data must be given (--data), but are not: a model of base '{}' has none of its own",
        base);
  RunConfig config = RunConfigFromJson(user);
  constexpr int64_t kStandardSteps = 3000;
  if (config.train.steps == 0 && config.train.minutes == 0) config.train.steps = kStandardSteps;
  return config;
}

Json ToJson(const RunConfig& config) {
  Json json = {{"model", ToJson(config.model)}};
  VisitData(config.data, [&](const char* key, const auto& value) { json["data"][key] = value; });
  VisitTrain(config.train, [&](const char* key, const auto& value) { json["train"][key] = value; });
  return json;
}

RunConfig RunConfigFromJson(const Json& json) {
  RunConfig config;
  config.model = ConfigFromJson(json.at("model"));
  const auto read = [](const Json& table) {
    return [&table](const char* key, auto& value) {
      if (table.contains(key)) table[key].get_to(value);
    };
  };
  VisitData(config.data, read(json.at("data")));
  VisitTrain(config.train, read(json.at("train")));
  CheckRunConfig(config);
  return config;
}

std::string ToToml(const RunConfig& config) {
  const Json json = ToJson(config);
  std::string text;
  for (const auto& [table, keys] : json.items()) {
    text += fmt::format("{}[{}]\n", text.empty() ? "" : "\n", table);
    for (const auto& [name, value] : keys.items()) {
      // JSON's strings, numbers, lists and truth values are TOML's too.
      text += fmt::format("{} = {}\n", name, value.dump());
    }
  }
  return text;
}

Schedule ScheduleOf(const TrainConfig& t, int64_t total) {
  return {t.schedule, t.lr, t.final_lr, t.warmup, total, t.step_size, t.step_factor};
}

std::string TrajectoryDifference(const RunConfig& was, const RunConfig& is) {
  static const std::set<std::string> kFree = {
      "steps",        "minutes", "schedule_steps",   "skip_nonfinite",     "log_every",
      "eval_every",   "samples", "checkpoint_every", "checkpoint_minutes", "eval_examples",
      "sample_every", "keep",    "temperature",      "export_weights",     "export_dtype"};
  const Json a = ToJson(was), b = ToJson(is);
  std::vector<std::string> differences;
  for (const auto& [table, keys] : a.items()) {
    for (const auto& [name, value] : keys.items()) {
      if (value == b[table][name] || (table == "train" && kFree.count(name) > 0)) continue;
      differences.push_back(
          fmt::format("{}.{} ({}, not {})", table, name, value.dump(), b[table][name].dump()));
    }
  }
  return fmt::format("{}", fmt::join(differences, ", "));
}

}  // namespace linattn
