#include "model/model_file.h"

#include <fmt/ranges.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/json.h"

namespace linattn {
namespace {

constexpr std::string_view kWhere = "model";

std::string Listed(const std::vector<std::string>& names) {
  constexpr size_t kShown = 8;
  if (names.size() <= kShown) return fmt::format("{}", fmt::join(names, ", "));
  return fmt::format("{}, and {} more", fmt::join(names.begin(), names.begin() + kShown, ", "),
                     names.size() - kShown);
}

ModelConfig ConfigOf(const SafetensorsFile& file) {
  const auto found = file.metadata().find(std::string(kConfigKey));
  Check(found != file.metadata().end(), kWhere,
        "{}: metadata must hold the model's config under '{}', but has no such key: not a model of "
        "this program",
        file.path(), kConfigKey);
  const auto json = ParseJson(found->second, kWhere, file.path() + ": config");
  try {
    return ConfigFromJson(json);
  } catch (const Error& e) {
    throw Error(kWhere, fmt::format("{}: {}", file.path(), e.what()), e.fault());
  }
}

// Every tensor that is missing or surplus, in one message.
void CheckNames(const SafetensorsFile& file, const std::vector<ParameterSpec>& specs) {
  std::vector<std::string> missing, surplus;
  std::set<std::string> known = {std::string(kVocabularyTensor)};
  for (const auto& spec : specs) {
    known.insert(spec.name);
    if (!file.Has(spec.name)) missing.push_back(spec.name);
  }
  for (const auto& [name, tensor] : file.tensors())
    if (!known.count(name)) surplus.push_back(Printable(name));
  if (missing.empty() && surplus.empty()) return;
  Fail(kWhere, "{}: must hold the {} tensors of its config, but {}{}{}", file.path(), specs.size(),
       missing.empty() ? "" : fmt::format("{} missing: {}", missing.size(), Listed(missing)),
       missing.empty() || surplus.empty() ? "" : "; ",
       surplus.empty() ? "" : fmt::format("{} surplus: {}", surplus.size(), Listed(surplus)));
}

// Largest finite value, below which rounding to nearest stays finite.
float LargestOf(DType storage) {
  if (storage == DType::kF16) return 65504.0f;
  if (storage == DType::kBF16) return 0x1.FEp127f;
  return std::numeric_limits<float>::max();
}

Bytes Stored(const std::vector<float>& values, DType storage, std::string_view path,
             const std::string& name) {
  Bytes bytes(values.size() * static_cast<size_t>(SizeOf(storage)));
  const float largest = LargestOf(storage);
  for (size_t i = 0; i < values.size(); ++i) {
    const float x = values[i];
    Check(!std::isfinite(x) || std::abs(x) <= largest, kWhere,
          "{}: tensor '{}' holds {}, which {} cannot", path, name, x, NameOf(storage));
    if (storage == DType::kF32) {
      std::memcpy(bytes.data() + 4 * i, &x, 4);
      continue;
    }
    const uint16_t bits = storage == DType::kF16 ? ToF16(x).bits : ToBF16(x).bits;
    std::memcpy(bytes.data() + 2 * i, &bits, 2);
  }
  return bytes;
}

}  // namespace

ModelFile LoadModel(const std::string& path) {
  return ModelFromSafetensors(SafetensorsFile::Open(path, kWhere));
}

ModelFile ModelFromSafetensors(const SafetensorsFile& file) {
  ModelFile model;
  model.config = ConfigOf(file);
  if (model.config.tied && file.Has("head.weight")) model.config.tied = false;
  const auto specs = Parameters(model.config);
  CheckNames(file, specs);
  for (const auto& spec : specs) {
    const StoredTensor& tensor = file.Get(spec.name);
    Check(tensor.shape == spec.shape, kWhere,
          "{}: tensor '{}' must be [{}] by the config, but has shape {}", file.path(), spec.name,
          fmt::join(spec.shape, ","), tensor.ShapeString());
    model.tensors[spec.name] = file.Floats(spec.name);
    if (SizeOf(tensor.dtype) < SizeOf(model.storage)) model.storage = tensor.dtype;
  }
  if (const std::string name(kVocabularyTensor); file.Has(name)) {
    const StoredTensor& tensor = file.Get(name);
    Check(tensor.dtype == DType::kU8, kWhere, "{}: tensor '{}' must be U8, but is {}", file.path(),
          name, NameOf(tensor.dtype));
    model.vocabulary.assign(tensor.bytes.begin(), tensor.bytes.end());
  }
  model.metadata = file.metadata();
  model.metadata.erase(std::string(kConfigKey));
  return model;
}

DType StorageByName(const std::string& name) {
  if (name == "f16") return DType::kF16;
  if (name == "bf16") return DType::kBF16;
  Check(name == "f32", kWhere, "dtype must be one of f32, f16, bf16, but is '{}'", name);
  return DType::kF32;
}

void SaveModel(const std::string& path, const ModelConfig& config,
               const std::map<std::string, std::vector<float>>& tensors, DType storage,
               const std::map<std::string, std::string>& metadata,
               std::span<const uint8_t> vocabulary) {
  Check(storage == DType::kF32 || storage == DType::kF16 || storage == DType::kBF16, kWhere,
        "storage must be F32, F16 or BF16, but is {}", NameOf(storage));
  const auto specs = Parameters(config);
  Check(tensors.size() == specs.size(), kWhere, "{}: the config has {} tensors, but got {}", path,
        specs.size(), tensors.size());
  std::vector<Bytes> stored;
  std::vector<NamedTensor> named;
  for (const auto& spec : specs) {
    const auto found = tensors.find(spec.name);
    Check(found != tensors.end(), kWhere, "{}: tensor '{}' is missing", path, spec.name);
    stored.push_back(Stored(found->second, storage, path, spec.name));
    named.push_back({spec.name, {storage, spec.shape, stored.back()}});
  }
  if (!vocabulary.empty()) {
    named.push_back(ToStore(std::string(kVocabularyTensor),
                            {static_cast<int64_t>(vocabulary.size())}, vocabulary));
  }
  auto with_config = metadata;
  with_config[std::string(kConfigKey)] = ToJson(config).dump();
  WriteSafetensors(path, named, with_config);
}

}  // namespace linattn
