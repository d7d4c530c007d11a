#pragma once

#include <string>

#include "model/fla_config.h"
#include "model/model_file.h"

namespace linattn {

// A language model of flash-linear-attention (fla), as a model of this program.
struct FlaCheckpoint {
  FlaConfig config;  // config.model is model.config
  // Tensors of fla under the names of this program, unchanged; with them what fla's models do not
  // have: a start token's row in embed.weight (a copy of config.start_token's, or zeros), and
  // head.bias, zeros. storage: the narrowest type that loses nothing of the checkpoint.
  ModelFile model;
};

// Reads `directory`: config.json, and the shards of model.safetensors.index.json or, without it,
// model.safetensors; other files are ignored. docs/format.md has the names. Throws Error naming
// file, field or tensor: what ParseFlaConfig and SafetensorsFile refuse; tensors that are missing,
// surplus or of another shape than the config's, all in one message, with both shapes; shards that
// do not hold what the index says. Nothing is half-loaded.
FlaCheckpoint LoadFlaCheckpoint(const std::string& directory);

}  // namespace linattn
