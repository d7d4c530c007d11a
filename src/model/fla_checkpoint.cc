#include "model/fla_checkpoint.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "model/parameters.h"

namespace linattn {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kWhere = "fla";
constexpr uintmax_t kLargestConfig = 1 << 20, kLargestIndex = 64 << 20;  // bytes

std::string ReadText(const std::string& path, uintmax_t largest) {
  std::error_code error;
  const uintmax_t size = fs::file_size(path, error);
  Check(error || size <= largest, kWhere, "{} must have at most {} bytes, but has {}", path,
        largest, size);
  return std::string(AsText(ReadFile(path, kWhere)));
}

std::string ShapeString(const std::vector<int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ","));
}

// The tensors of a checkpoint: those that an index names, wherever it says; without an index, those
// of the one file.
class Tensors {
 public:
  explicit Tensors(const std::string& directory) : directory_(directory) {
    const std::string whole = directory + "/model.safetensors";
    const std::string index = whole + ".index.json";
    if (fs::exists(index)) {
      OpenShards(index);
      return;
    }
    Check(fs::exists(whole), kWhere,
          "{} must hold model.safetensors or model.safetensors.index.json, but holds neither{}",
          directory,
          fs::exists(directory + "/pytorch_model.bin")
              ? " (pytorch_model.bin is a pickle: save it with safe_serialization=True)"
              : "");
    files_.push_back(SafetensorsFile::Open(whole, kWhere));
    for (const auto& [name, tensor] : files_.back().tensors()) by_name_[name] = 0;
  }

  bool Has(const std::string& name) const { return by_name_.count(name) > 0; }
  const StoredTensor& Get(const std::string& name) const {
    return files_[by_name_.at(name)].Get(name);
  }
  std::vector<float> Floats(const std::string& name) const {
    return files_[by_name_.at(name)].Floats(name);
  }
  const std::map<std::string, size_t>& names() const { return by_name_; }

 private:
  void OpenShards(const std::string& path) {
    const auto json = ParseJson(ReadText(path, kLargestIndex), kWhere, path);
    const auto map = json.is_object() ? json.find("weight_map") : json.end();
    Check(json.is_object() && map != json.end() && map->is_object(), kWhere,
          "{} must have an object weight_map, but has none", path);
    std::map<std::string, size_t> shards;  // where they stand in files_
    for (const auto& [name, shard] : map->items()) {
      const bool plain = shard.is_string() &&
                         shard.get<std::string>().find('/') == std::string::npos &&
                         shard.get<std::string>().ends_with(".safetensors");
      Check(plain, kWhere,
            "{}: tensor '{}' must be in a file *.safetensors beside it, but is in {}", path,
            Printable(name), Printable(shard.dump(-1, ' ', true, kReplace)));
      const std::string file = directory_ + "/" + shard.get<std::string>();
      const auto [found, fresh] = shards.emplace(file, files_.size());
      if (fresh) {
        Check(fs::exists(file), kWhere, "{}: must be there, as {} says, but is missing", file,
              path);
        files_.push_back(SafetensorsFile::Open(file, kWhere));
      }
      Check(files_[found->second].Has(name), kWhere,
            "{}: must hold tensor '{}' by {}, but does not", file, Printable(name), path);
      by_name_[name] = found->second;
    }
  }

  static constexpr auto kReplace = nlohmann::json::error_handler_t::replace;
  std::string directory_;
  std::vector<SafetensorsFile> files_;
  std::map<std::string, size_t> by_name_;  // which file has it
};

// A tensor of fla, times `factor`.
struct Part {
  std::string name;
  std::vector<int64_t> shape;
  float factor = 1;
};

// Where a tensor of ours comes from: parts one behind the other, then `fill`.
struct Source {
  std::vector<Part> parts;
  float fill = 0;
};

class Converter {
 public:
  Converter(const FlaConfig& fla, const Tensors& tensors, std::string directory)
      : fla_(fla), tensors_(tensors), directory_(std::move(directory)) {
    for (const ParameterSpec& spec : Parameters(fla.model))
      sources_.emplace_back(spec, SourceOf(spec));
  }

  ModelFile Convert() const {
    CheckTensors();
    ModelFile model;
    model.config = fla_.model;
    model.metadata["source"] = "flash-linear-attention " + fla_.model_type;
    for (const auto& [spec, source] : sources_) {
      std::vector<float>& values = model.tensors[spec.name];
      values.reserve(ElementsOf(spec));
      for (const Part& part : source.parts) {
        for (const float x : tensors_.Floats(part.name)) values.push_back(part.factor * x);
      }
      if (spec.name == "embed.weight") AddStartToken(values);
      values.resize(ElementsOf(spec), source.fill);
    }
    model.storage = Storage();
    return model;
  }

 private:
  Source SourceOf(const ParameterSpec& spec) const {
    const std::string& name = spec.name;
    if (name == "embed.weight")
      return {{{"model.embeddings.weight", {fla_.model.vocab, fla_.model.dim}}}};
    if (name == "head.weight") return {{{"lm_head.weight", spec.shape}}};
    if (name == "head.bias") return {};
    if (name.ends_with("_conv1d.weight") && !fla_.has_conv) return {.parts = {}, .fill = 1};
    if (name.ends_with(".attn.o_norm.weight")) return HeadNorm(spec);
    if (name.find(".attn.feature_map_") != name.npos) return LearnedMap(spec);
    return {{{"model." + name, spec.shape}}};
  }

  // RMSNorm of each head, which every layer calls by another name.
  Source HeadNorm(const ParameterSpec& spec) const {
    if (!fla_.has_o_norm) return {.parts = {}, .fill = 1};
    const std::string attn = "model." + spec.name.substr(0, spec.name.rfind("o_norm"));
    std::string name = "o_norm.weight";
    if (fla_.model_type == "linear_attn") name = "norm.weight";
    if (fla_.model_type == "gla") {
      name = "g_norm_swish_gate.weight";
      if (tensors_.Has(attn + "g_norm.weight")) name = "g_norm.weight";
    }
    return {{{attn + name, spec.shape}}};
  }

  // feature_map_q or _k of linear_attn, of which one may be absent if they are one and the same.
  Source LearnedMap(const ParameterSpec& spec) const {
    const size_t dot = spec.name.rfind('.');
    const std::string tensor = spec.name.substr(dot);  // ".weight" or ".bias"
    const bool product = fla_.feature_map == "elementwise_product";
    std::string map = "model." + spec.name.substr(0, dot);
    const auto layer = [&](const char* name) { return map + name + tensor; };
    if (fla_.tied_maps && !tensors_.Has(layer(product ? ".layer1" : ".layer")))
      map.back() = map.back() == 'q' ? 'k' : 'q';
    std::vector<int64_t> shape = spec.shape;
    if (fla_.feature_map == "t2r" && tensor == ".bias") return {};
    if (fla_.feature_map == "t2r") return {{{layer(".layer"), shape}}};
    shape[0] /= 2;
    if (product) return {{{layer(".layer1"), shape}, {layer(".layer2"), shape}}};
    return {{{layer(".layer"), shape, 2}, {layer(".layer"), shape, -2}}};  // softmax of [2y, -2y]
  }

  std::vector<Part> AllParts() const {
    std::vector<Part> parts;
    for (const auto& [spec, source] : sources_)
      parts.insert(parts.end(), source.parts.begin(), source.parts.end());
    return parts;
  }

  void CheckTensors() const {
    std::vector<std::string> missing, unlike, surplus;
    std::set<std::string> known;
    if (fla_.model.tied) known.insert("lm_head.weight");
    for (const Part& part : AllParts()) {
      if (!known.insert(part.name).second) continue;  // named twice, checked once
      const std::string shape = ShapeString(part.shape);
      if (!tensors_.Has(part.name)) {
        missing.push_back(part.name + " " + shape);
      } else if (const StoredTensor& t = tensors_.Get(part.name); t.shape != part.shape) {
        unlike.push_back(
            fmt::format("{} must be {}, but is {}", part.name, shape, t.ShapeString()));
      }
    }
    for (const auto& [name, file] : tensors_.names()) {
      if (!known.count(name))
        surplus.push_back(Printable(name) + " " + tensors_.Get(name).ShapeString());
    }
    std::vector<std::string> problems;
    Note(problems, "missing", missing);
    Note(problems, "surplus", surplus);
    Note(problems, "of another shape", unlike);
    Check(problems.empty(), kWhere, "{} must hold the tensors of its config.json, but {}",
          directory_, fmt::join(problems, "; "));
    CheckTied();
  }

  static void Note(std::vector<std::string>& problems, const char* what,
                   const std::vector<std::string>& names) {
    constexpr size_t kShown = 8;
    if (names.empty()) return;
    const auto end = names.begin() + std::min(names.size(), kShown);
    std::string text =
        fmt::format("{} {}: {}", names.size(), what, fmt::join(names.begin(), end, ", "));
    if (names.size() > kShown) text += fmt::format(", and {} more", names.size() - kShown);
    problems.push_back(std::move(text));
  }

  void CheckTied() const {
    if (!fla_.model.tied || !tensors_.Has("lm_head.weight")) return;
    Check(tensors_.Floats("lm_head.weight") == tensors_.Floats("model.embeddings.weight"), kWhere,
          "{}: lm_head.weight must be model.embeddings.weight, as tie_word_embeddings says, but "
          "differs",
          directory_);
  }

  void AddStartToken(std::vector<float>& rows) const {
    if (fla_.start_token < 0) return;
    const int64_t dim = fla_.model.dim;
    const std::vector<float> row(rows.begin() + fla_.start_token * dim,
                                 rows.begin() + (fla_.start_token + 1) * dim);
    rows.insert(rows.end(), row.begin(), row.end());
  }

  DType Storage() const {
    std::set<DType> types;
    for (const Part& part : AllParts()) types.insert(tensors_.Get(part.name).dtype);
    const bool narrow = types.size() == 1 && SizeOf(*types.begin()) == 2;
    return narrow ? *types.begin() : DType::kF32;
  }

  const FlaConfig& fla_;
  const Tensors& tensors_;
  std::string directory_;
  std::vector<std::pair<ParameterSpec, Source>> sources_;
};

}  // namespace

FlaCheckpoint LoadFlaCheckpoint(const std::string& directory) {
  const std::string path = directory + "/config.json";
  FlaCheckpoint checkpoint;
  checkpoint.config = ParseFlaConfig(ReadText(path, kLargestConfig), path);
  const Tensors tensors(directory);
  checkpoint.model = Converter(checkpoint.config, tensors, directory).Convert();
  return checkpoint;
}

}  // namespace linattn
