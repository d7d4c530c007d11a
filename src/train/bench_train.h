#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace linattn {

// What `linattn bench train` measures: whole training steps (forward, backward, clipping, RAdam)
// of models with fresh weights on random symbols.
struct BenchTrainOptions {
  struct Row {
    std::string model, mixer;  // "cifar10", "mnist", "fashion-small" or a TOML file; "": the file's
    int64_t batch = 0;         // sequences; 0: cifar10 1, others 4
  };
  std::vector<Row> rows;
  std::vector<std::string> dtypes = {"f32", "bf16"};
  int64_t steps = 0;  // measured after warm-up; 0: as many as fit into seconds_a_row
  double seconds_a_row = 6;
  std::function<bool()> stop;  // asked between steps; then rows end early; null: never
};

struct BenchTrainResult {
  std::string model, mixer, dtype;
  int64_t batch = 0, length = 0, steps = 0;  // sequences, tokens of each, measured steps
  int threads = 0;
  double median_s = 0, spread = 0;  // of a step; (slowest - fastest) / median
  double tokens_per_s = 0, gflops = 0;
  double peak_gflops = 0, fraction_of_peak = 0;  // of multiply-adds in dtype, measured just before
  int64_t peak_memory_bytes = 0;                 // of the process since the row began
};

// The paper's models: cifar10 linear 1, mnist linear 4, mnist softmax 4.
std::vector<BenchTrainOptions::Row> StandardTrainRows();

// Calls report(result) after each row. Throws Error for an unknown model, mixer or dtype.
void BenchTrain(const BenchTrainOptions& options,
                const std::function<void(const BenchTrainResult&)>& report);

}  // namespace linattn
