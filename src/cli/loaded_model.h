#pragma once

#include <string>
#include <vector>

#include "cli/verbs.h"
#include "data/vocabulary.h"
#include "model/model_file.h"
#include "runtime/packed_model.h"

namespace linattn::cli {

// Reads the file that the user names; an Error says so if none is.
ModelFile OpenModel(const std::string& path);

// A model file, packed.
struct LoadedModel {
  explicit LoadedModel(const std::string& path, WeightType type = WeightType::kFloat32);
  explicit LoadedModel(const ModelFile& file, WeightType type = WeightType::kFloat32);

  PackedModel model;
  Vocabulary vocabulary;  // of its symbols

  const ModelConfig& config() const { return model.config(); }
  // The class with that number or name, in any case. Throws Error that lists the classes; also if
  // the model has none.
  int64_t ClassNamed(const std::string& text) const;
};

// Throws Error that says what the model is of, and which verb is for it, unless that is one of
// `tasks`.
void CheckTask(const ModelConfig& config, const std::string& verb,
               const std::vector<std::string>& tasks);

// Adds the argument MODEL, which may also be written --model.
CLI::Option* AddModelArgument(CLI::App& app, std::string& path);

// Adds --dtype: how the weights are stored and multiplied.
CLI::Option* AddDtypeOption(CLI::App& app, WeightType& type);

// The seed, or a fresh one if `text` is empty. Throws Error unless it is a number from 0 to 2^64-1.
uint64_t SeedFrom(const std::string& text);

}  // namespace linattn::cli
