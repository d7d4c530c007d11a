#include "train/checkpoint.h"

#include <ATen/ATen.h>
#include <zlib.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>

#include "base/error.h"
#include "base/json.h"
#include "base/safetensors.h"

namespace linattn {
namespace {

using Json = nlohmann::json;
constexpr int kVersion = 1;
constexpr const char* kMetadataKey = "linattn_checkpoint";

StoredTensor Store(const at::Tensor& tensor, const std::string& name) {
  StoredTensor stored;
  Check(tensor.is_contiguous(), "checkpoint", "tensor '{}' must be contiguous", name);
  switch (tensor.scalar_type()) {
    case at::kFloat:
      stored.dtype = DType::kF32;
      break;
    case at::kDouble:
      stored.dtype = DType::kF64;
      break;
    case at::kByte:
      stored.dtype = DType::kU8;
      break;
    default:
      Fail("checkpoint", "tensor '{}' must be F32, F64 or U8", name);
  }
  stored.shape = tensor.sizes().vec();
  stored.bytes = {static_cast<const uint8_t*>(tensor.data_ptr()), tensor.nbytes()};
  return stored;
}

std::map<std::string, StoredTensor> StoreAll(const NamedTensors& tensors) {
  std::map<std::string, StoredTensor> stored;
  for (const auto& [name, tensor] : tensors) stored[name] = Store(tensor, name);
  return stored;
}

// Of every tensor's bytes, in the order of their names.
uint32_t Checksum(const std::map<std::string, StoredTensor>& tensors) {
  uLong crc = crc32(0, nullptr, 0);
  for (const auto& [name, tensor] : tensors) {
    crc = crc32_z(crc, tensor.bytes.data(), tensor.bytes.size());
  }
  return static_cast<uint32_t>(crc);
}

Json StateToJson(const RunState& s) {
  Json json = {{"step", s.step},     {"total", s.total},         {"tokens", s.tokens},
               {"wall_s", s.wall_s}, {"best_step", s.best_step}, {"skipped", s.skipped},
               {"evaluated_step", s.evaluated_step}};
  if (std::isfinite(s.best_metric)) json["best_metric"] = s.best_metric;
  return json;
}

RunState StateFromJson(const Json& json) {
  RunState s;
  json.at("step").get_to(s.step);
  json.at("total").get_to(s.total);
  json.at("tokens").get_to(s.tokens);
  json.at("wall_s").get_to(s.wall_s);
  json.at("best_step").get_to(s.best_step);
  json.at("skipped").get_to(s.skipped);
  if (json.contains("evaluated_step")) json["evaluated_step"].get_to(s.evaluated_step);
  if (json.contains("best_metric")) json["best_metric"].get_to(s.best_metric);
  return s;
}

Json ReadMetadata(const SafetensorsFile& file) {
  const auto found = file.metadata().find(kMetadataKey);
  Check(found != file.metadata().end(), "checkpoint",
        "{} must be a checkpoint of linattn, but its metadata lack '{}'", file.path(),
        kMetadataKey);
  const Json json = ParseJson(found->second, "checkpoint", file.path() + ": " + kMetadataKey);
  const bool complete = json.is_object() && json.contains("version") && json.contains("state") &&
                        json.contains("config") && json.contains("crc32");
  Check(complete && json["version"] == kVersion, "checkpoint",
        "{} must be a checkpoint of version {}", file.path(), kVersion);
  return json;
}

void CheckTensors(const SafetensorsFile& file, const std::map<std::string, StoredTensor>& wanted) {
  for (const auto& [name, tensor] : wanted) {
    const StoredTensor& stored = file.Get(name);
    Check(stored.dtype == tensor.dtype && stored.shape == tensor.shape, "checkpoint",
          "{}: tensor '{}' must be {} {}, but is {} {}", file.path(), name, NameOf(tensor.dtype),
          tensor.ShapeString(), NameOf(stored.dtype), stored.ShapeString());
  }
  for (const auto& [name, tensor] : file.tensors()) {
    Check(wanted.count(name) > 0, "checkpoint", "{}: tensor '{}' is not one of this run's",
          file.path(), name);
  }
}

}  // namespace

void SaveCheckpoint(const std::string& path, const RunState& state, const RunConfig& config,
                    const NamedTensors& tensors) {
  const auto stored = StoreAll(tensors);
  const Json json = {{"version", kVersion},
                     {"state", StateToJson(state)},
                     {"config", ToJson(config)},
                     {"crc32", Checksum(stored)}};
  std::vector<NamedTensor> list;
  for (const auto& [name, tensor] : stored) list.push_back({name, tensor});
  WriteSafetensors(path, list, {{kMetadataKey, json.dump()}});
}

RunState LoadCheckpoint(const std::string& path, const NamedTensors& tensors) {
  const SafetensorsFile file = SafetensorsFile::Open(path, "checkpoint");
  const Json json = ReadMetadata(file);
  CheckTensors(file, StoreAll(tensors));
  const uint32_t checksum = Checksum(file.tensors());
  Check(json["crc32"] == checksum, "checkpoint",
        "{} must have the checksum {}, but has {}: it is damaged", path, json["crc32"].dump(),
        checksum);
  RunState state;
  try {
    state = StateFromJson(json["state"]);
  } catch (const Json::exception& e) {
    Fail("checkpoint", "{}: its state must be complete: {}", path, e.what());
  }
  for (const auto& [name, tensor] : tensors) {
    const StoredTensor& stored = file.Get(name);
    std::memcpy(tensor.data_ptr(), stored.bytes.data(), stored.bytes.size());
  }
  return state;
}

RunConfig CheckpointConfig(const std::string& path) {
  return RunConfigFromJson(ReadMetadata(SafetensorsFile::Open(path, "checkpoint"))["config"]);
}

std::string CheckpointFiles::Path(int64_t step) const {
  return fmt::format("{}/step-{:09d}.safetensors", directory_, step);
}

std::vector<int64_t> CheckpointFiles::Steps() const {
  std::vector<int64_t> steps;
  if (!std::filesystem::is_directory(directory_)) return steps;
  for (const auto& entry : std::filesystem::directory_iterator(directory_)) {
    const std::string name = entry.path().filename().string();
    const size_t digits = std::string_view("step-").size();
    int64_t step = 0;
    if (!name.starts_with("step-") || !name.ends_with(".safetensors")) continue;
    const auto [end, error] =
        std::from_chars(name.data() + digits, name.data() + name.size(), step);
    if (error == std::errc() && *end == '.') steps.push_back(step);
  }
  std::sort(steps.rbegin(), steps.rend());
  return steps;
}

void CheckpointFiles::Prune(int64_t keep, int64_t best_step) const {
  const std::vector<int64_t> steps = Steps();
  for (size_t i = static_cast<size_t>(keep); i < steps.size(); ++i) {
    if (steps[i] != best_step) std::filesystem::remove(Path(steps[i]));
  }
}

void CheckpointFiles::RemoveAfter(int64_t step) const {
  for (const int64_t other : Steps()) {
    if (other > step) std::filesystem::remove(Path(other));
  }
}

}  // namespace linattn
