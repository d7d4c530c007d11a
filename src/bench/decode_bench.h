#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "bench/machine.h"
#include "bench/output.h"
#include "bench/timing.h"
#include "kernels/packed_matrix.h"
#include "runtime/packed_model.h"

namespace CLI {
class App;
}

namespace linattn::bench {

struct DecodeOptions {
  std::string model = "cifar10", mixer = "linear";
  std::vector<std::string> dtypes = {"f32"};
  std::vector<int64_t> batches = {1};
  int64_t length = 0;  // tokens of a sequence; 0: the model's
  double seconds = 6;  // of timed steps a row
  bool quick = false;
};

// A named size, whose keys and values are kept in bfloat16 unless the weights are float32; its
// pictures become as large as `length` tokens need.
ModelConfig BenchConfig(const std::string& model, const std::string& mixer, WeightType weights,
                        int64_t length = 0);
PackedModel RandomModel(const ModelConfig& config, WeightType weights);

// What one setting took.
struct DecodeTiming {
  struct Place {
    int64_t position;  // tokens read before the steps that were timed
    Timing step;       // of all sequences by one token, and its sampling
    double roof_s;     // of such a step
  };
  int64_t length = 0, batch = 0;
  bool integrated = false;  // the cost grows with the position: steps at several are integrated
  std::vector<Place> places;
  double seconds = 0, roof_seconds = 0;  // of `length` steps
  double sampling = 0;                   // share of them
  double gflops = 0;                     // matrices and mixers
  std::string_view bound;
  double state_bytes = 0, weight_bytes = 0;

  double spread() const;  // the largest of the places
  double sequences_per_second() const { return static_cast<double>(batch) / seconds; }
  double flatness() const;  // last step's time over the first's
};

struct DecodeSetting {
  int64_t batch = 1, length = 0;
  double seconds = 6;  // of timed steps
  bool cached = true;  // false: the whole prefix is read anew for every token
};

// Whether the sequences' states and caches fit in the memory that is free now.
bool Fits(const PackedModel& model, const DecodeSetting& setting);

// Throws Error unless it fits. `check` as in Output.
DecodeTiming MeasureDecode(const PackedModel& model, const DecodeSetting& setting,
                           const std::function<void()>& check);

// Declares the flags of `linattn bench decode`, and its help.
void AddDecodeOptions(CLI::App& verb, DecodeOptions& options);
void BenchDecode(const DecodeOptions& options, const Output& output);

}  // namespace linattn::bench
