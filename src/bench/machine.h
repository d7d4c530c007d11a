#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "kernels/machine_peak.h"

namespace linattn::bench {

// What measurements are held against, and what makes them comparable.
struct Machine {
  MachinePeak peak;                   // of all OpenMP threads
  double l2_bytes = 0, l3_bytes = 0;  // of all those threads' caches together
  std::string cpu, compiler, version;
};

// Measured by the first call after the number of threads has changed: about a second.
const Machine& ThisMachine();
void MeasureMachineQuickly();  // from now on in a tenth of that, less exactly

nlohmann::ordered_json ToJson(const Machine& machine);
std::string Describe(const Machine& machine);  // one line for people

// The work that a job cannot avoid.
struct Work {
  double f32 = 0, bf16 = 0, int8 = 0;  // operations: a multiplication and an addition are two
  double weight_bytes = 0;             // read once
  double state_bytes = 0;              // of states read and written, of caches read
  double state_footprint = 0;          // bytes that the states take, for the level that holds them

  Work& operator+=(const Work& more);
};

// The least time that the machine needs for it: operations at the peaks of their types, or bytes
// at the bandwidth of the level that holds them (weights alone for the weights, both for the
// states), whichever is more; and which of them binds: "compute", "L2", "L3" or "memory".
struct Roof {
  double seconds = 0;
  std::string_view bound;
};
Roof RoofOf(const Machine& machine, const Work& work);

}  // namespace linattn::bench
