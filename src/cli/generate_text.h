#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/loaded_model.h"
#include "kernels/sampler.h"

namespace linattn::cli {

struct TextOptions {
  std::string prompt, prompt_file;  // file "-": standard input
  std::vector<std::string> stops;
  std::string load_state, save_state, prompt_cache;  // files; "": none
  std::string out;                                   // "" and "-": standard output
  std::string seed;
  SamplerOptions sampler;
  double repetition_penalty = 1;
  int64_t repetition_window = 64;
  int64_t label = 0;
  int64_t tokens = -1;   // to write; -1: 256, or what is left of max_len
  int64_t timing = 0;    // tokens between lines of timing; 0: none
  bool forever = false;  // until Ctrl-C, or until max_len
  bool cached = true, quiet = false;
};

// Writes text token by token. Throws Interrupted on Ctrl-C, after the state has been saved.
void GenerateText(const TextOptions& options, const LoadedModel& model);

}  // namespace linattn::cli
