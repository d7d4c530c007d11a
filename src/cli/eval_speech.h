#pragma once

#include <cstdint>
#include <string>

#include "runtime/packed_model.h"

namespace linattn::cli {

struct SpeechEvalOptions {
  std::string data;            // as LoadSpeech (data/speech_set.h) spells it
  std::string split = "test";  // or "all"
  std::string dictionary;      // of a model of phonemes
  int64_t limit = 0;           // utterances; 0: all
  int64_t beam = 0;            // width; 0: greedy
  bool json = false, quiet = false;
};

// Prints the error rate of a model of speech: insertions, deletions and substitutions over labels,
// of all utterances together. Those that training would leave out (training logs the same figure)
// are left out and counted; what the model cannot spell is an error.
void EvalSpeech(const SpeechEvalOptions& options, const PackedModel& model);

}  // namespace linattn::cli
