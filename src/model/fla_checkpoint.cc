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

// The tensors of a checkpoint, in one file or in shards.
class Tensors {
 public:
  explicit Tensors(const std::string& directory) : directory_(directory) {
    const std::string whole = directory + "/model.safetensors";
    const std::string index = whole + ".index.json";
    if (fs::exists(whole)) {
      Open(whole);
      return;
    }
    Check(fs::exists(index), kWhere,
          "{} must hold model.safetensors or model.safetensors.index.json, but holds neither{}",
          directory,
          fs::exists(directory + "/pytorch_model.bin")
              ? " (pytorch_model.bin is a pickle: save it with safe_serialization=True)"
              : "");
    OpenShards(index);
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
  void Open(const std::string& path) {
    files_.push_back(SafetensorsFile::Open(path, kWhere));
    for (const auto& [name, tensor] : files_.back().tensors()) {
      const bool fresh = by_name_.emplace(name, files_.size() - 1).second;
      Check(fresh, kWhere, "{}: tensor '{}' must be in one shard only, but is in two", path,
            Printable(name));
    }
  }

  void OpenShards(const std::string& path) {
    const auto json = ParseJson(ReadText(path, kLargestIndex), kWhere, path);
    const auto map = json.is_object() ? json.find("weight_map") : json.end();
    Check(json.is_object() && map != json.end() && map->is_object(), kWhere,
          "{} must have an object weight_map, but has none", path);
    std::set<std::string> shards;
    for (const auto& [name, shard] : map->items()) {
      const bool plain = shard.is_string() &&
                         shard.get<std::string>().find('/') == std::string::npos &&
                         shard.get<std::string>().ends_with(".safetensors");
      Check(plain, kWhere,
            "{}: tensor '{}' must be in a file *.safetensors beside it, but is in {}", path,
            Printable(name), Printable(shard.dump(-1, ' ', true, kReplace)));
      shards.insert(shard.get<std::string>());
    }
    for (const std::string& shard : shards) Open(directory_ + "/" + shard);
    for (const auto& [name, shard] : map->items()) {
      const std::string file = directory_ + "/" + shard.get<std::string>();
      Check(Has(name) && files_[by_name_[name]].path() == file, kWhere,
            "{}: must hold tensor '{}' by {}, but does not", file, Printable(name), path);
    }
  }

  static constexpr auto kReplace = nlohmann::json::error_handler_t::replace;
  std::string directory_;
  std::vector<SafetensorsFile> files_;
  std::map<std::string, size_t> by_name_;  // which file has it
};

// Where a tensor of ours comes from.
struct Source {
  std::string name;            // fla's; empty: all elements are `fill`
  std::vector<int64_t> shape;  // fla's
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
      if (!source.name.empty()) values = tensors_.Floats(source.name);
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
      return {"model.embeddings.weight", {fla_.model.vocab, fla_.model.dim}};
    if (name == "head.weight") return {"lm_head.weight", spec.shape};
    if (name == "head.bias") return {"", {}, 0};
    if (name.ends_with("_conv1d.weight") && !fla_.has_conv) return {"", {}, 1};
    if (name.ends_with(".attn.o_norm.weight")) return HeadNorm(spec);
    return {"model." + name, spec.shape};
  }

  // RMSNorm of each head, which every layer calls by another name.
  Source HeadNorm(const ParameterSpec& spec) const {
    if (!fla_.has_o_norm) return {"", {}, 1};
    const std::string attn = "model." + spec.name.substr(0, spec.name.rfind("o_norm"));
    std::string name = "o_norm.weight";
    if (fla_.model_type == "linear_attn") name = "norm.weight";
    if (fla_.model_type == "gla") {
      name = "g_norm_swish_gate.weight";
      if (tensors_.Has(attn + "g_norm.weight")) name = "g_norm.weight";
    }
    return {attn + name, spec.shape};
  }

  void CheckTensors() const {
    std::vector<std::string> missing, unlike, surplus;
    std::set<std::string> known;
    if (fla_.model.tied) known.insert("lm_head.weight");
    for (const auto& [spec, source] : sources_) {
      if (source.name.empty()) continue;
      known.insert(source.name);
      const std::string shape = ShapeString(source.shape);
      if (!tensors_.Has(source.name)) {
        missing.push_back(source.name + " " + shape);
      } else if (const StoredTensor& t = tensors_.Get(source.name); t.shape != source.shape) {
        unlike.push_back(
            fmt::format("{} must be {}, but is {}", source.name, shape, t.ShapeString()));
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
    for (const auto& [spec, source] : sources_)
      if (!source.name.empty()) types.insert(tensors_.Get(source.name).dtype);
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
