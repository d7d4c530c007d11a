#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "model/config.h"

namespace linattn {

// What config.json of a language model of flash-linear-attention (fla) says: model_type
// linear_attn, gla, delta_net, gated_deltanet or kda, with softmax layers where `attn` asks for
// them. Absent fields have fla's defaults.
struct FlaConfig {
  std::string model_type;
  ModelConfig model;
  bool has_conv = true;      // false with conv_size 1: silu alone, a convolution whose taps are 1
  bool has_o_norm = true;    // false: the heads' RMSNorm has no weight (elementwise_affine)
  std::string feature_map;   // linear_attn: fla's name
  bool tied_maps = false;    // linear_attn: q and k may share one learned map
  int64_t start_token = -1;  // what sequences begin with: bos, or else eos; -1: neither is given
  std::vector<std::string> ignored;  // fields that nobody here knows
};

// `text` is the file, `name` what messages call it. Throws Error naming the field and its value: a
// wrong type or size, or a value that changes the mathematics in a way that is not implemented.
FlaConfig ParseFlaConfig(std::string_view text, const std::string& name);

}  // namespace linattn
