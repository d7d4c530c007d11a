#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/array.h"
#include "base/safetensors.h"
#include "model/parameters.h"

namespace linattn {

// The metadata key under which a model file carries ToJson(config).
inline constexpr std::string_view kConfigKey = "linattn.config";

// A text model's SentencePiece vocabulary: a U8 tensor beside the parameters.
inline constexpr std::string_view kVocabularyTensor = "vocabulary.sentencepiece";

// A model in memory: every tensor of Parameters(config), row-major, widened to float.
struct ModelFile {
  ModelConfig config;
  std::map<std::string, std::vector<float>> tensors;
  std::map<std::string, std::string> metadata;  // without the config
  Bytes vocabulary;                             // of data/vocabulary.h; empty: none
  DType storage = DType::kF32;                  // the narrowest float type that the file used

  const std::vector<float>& Get(const std::string& name) const { return tensors.at(name); }
};

// Throws Error naming the file, and nothing is half-loaded: what SafetensorsFile refuses, no or a
// bad config, tensors that are missing or surplus (both lists in one message), or whose shape is
// not the config's. Tied heads: a config that says tied needs no head.weight; if the file has one
// all the same, the model is untied (config.tied becomes false). The embedding is always needed.
ModelFile LoadModel(const std::string& path);
ModelFile ModelFromSafetensors(const SafetensorsFile& file);

// kF32, kF16 or kBF16 from "f32", "f16" or "bf16"; throws Error for any other name.
DType StorageByName(const std::string& name);

// Writes atomically, in file order, as kF32, kF16 or kBF16 (rounded to nearest even). `tensors`
// must be exactly Parameters(config); finite values that `storage` cannot hold are an Error.
void SaveModel(const std::string& path, const ModelConfig& config,
               const std::map<std::string, std::vector<float>>& tensors,
               DType storage = DType::kF32, const std::map<std::string, std::string>& metadata = {},
               std::span<const uint8_t> vocabulary = {});

}  // namespace linattn
