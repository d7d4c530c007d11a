#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/config.h"

namespace linattn {

// One row of a comparison, as its user writes it: a mixer (or mixers, as ExpandMixers reads them),
// then options of the model, each behind a colon: "gla", "lsh:rounds=1:chunk=64",
// "linear:feature_map=dpfp", "3x gated_delta + 1x softmax".
struct MixerSpec {
  std::string text;
  std::string directory;          // the text, as a name for files
  std::vector<std::string> sets;  // for ResolveConfig: "model.mixer=lsh", "model.lsh_rounds=1"
};

// An option KEY is the model's MIXER_KEY if there is such a key, else its KEY, `layers`, or `lr` of
// the training. Throws Error naming the option that is none of these. The mixers themselves are
// checked by ResolveConfig.
MixerSpec ParseMixerSpec(const std::string& text);

// Numbers that training changes.
int64_t TrainedParameters(const ModelConfig& config);

// Brings the bytes of the state of one sequence as near `target` as head_dim allows (of q and k;
// with random features, their number; of layers that see a window of tokens, its length). Models
// that keep every token are left as they are.
void MatchState(int64_t target, ModelConfig& config);

// Sets mlp_dim such that the model has as nearly `target` trained parameters as it can: within 1%,
// by a multiple of 8 if one is. Throws Error, naming `spec`, if 2% cannot be met.
void MatchParameters(const std::string& spec, int64_t target, ModelConfig& config);

}  // namespace linattn
