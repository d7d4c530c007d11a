#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/config.h"

namespace linattn::cli {

struct StatePlotOptions {
  std::string out;     // SVG file
  std::string size;    // a named model, in which every mixer of the registry is taken
  int64_t tokens = 0;  // the longest length; 0: the models' own, or 65,536 for a named one
  bool json = false;   // prints the numbers
  bool quiet = false;  // prints nothing, unless json
};

struct NamedModel {
  std::string name;
  ModelConfig config;
};

// Draws memory against length, both logarithmic: a curve for each model, whose names are their
// files', or, if there is none, for each mixer at options.size.
void PlotStates(std::vector<NamedModel> models, const StatePlotOptions& options);

}  // namespace linattn::cli
