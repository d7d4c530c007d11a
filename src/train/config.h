#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "model/config.h"
#include "tasks/data_config.h"
#include "train/schedule.h"

namespace linattn {

struct TrainConfig {
  int64_t steps = 0;                // updates in all; 0: what `minutes` allows, or 3000
  double minutes = 0;               // if > 0: time for the whole run, at most
  int64_t batch = 16;               // sequences a forward pass
  int64_t accumulate = 1;           // forward passes an update, weighted by their tokens
  std::string optimiser = "radam";  // "adam" | "adamw" | "radam"
  double beta1 = 0.9, beta2 = 0.99, eps = 1e-8;
  double weight_decay = 0.01;  // adam: added to the gradient; adamw, radam: decoupled
  double lr = 1e-3;            // Schedule's fields, under their names there except
  std::string schedule = "cosine";
  int64_t warmup = 100;
  int64_t schedule_steps = 0;  // its total; 0: steps
  double final_lr = 0;
  int64_t step_size = 1000;
  double step_factor = 0.5;
  double clip = 1.0;           // largest global norm of the gradient; 0: any
  std::string dtype = "bf16";  // of activations and products: "f32" | "bf16"
  int64_t seed = 1;
  double ema = 0;  // decay of the weights' running mean, which is then evaluated; 0: off
  int64_t redraw_features_every = 0;  // updates between draws of random features; 0: drawn once
  bool skip_nonfinite = false;        // skip updates whose loss or gradient is not finite

  int64_t log_every = 10;
  int64_t eval_every = 500;     // also at step 0 and at the end; 0: only then
  int64_t eval_examples = 500;  // of the held-out set; 0: all
  int64_t sample_every = 500;   // 0: never
  int64_t samples = 16;
  double temperature = 1.0;
  int64_t checkpoint_every = 500;  // also at the end and at a new best evaluation; 0: only then
  double checkpoint_minutes = 5;   // and after so long without one; 0: never for that reason
  int64_t keep = 3;                // checkpoints
  std::string export_weights = "best";  // what model.safetensors holds: "best" (evaluated) | "last"
  std::string export_dtype = "f32";     // | "f16" | "bf16"
};

// All that a run is. On file: TOML, or JSON, with the tables model, data and train.
struct RunConfig {
  ModelConfig model;
  DataConfig data;
  TrainConfig train;
};

// Throws Error naming the key that is out of range.
void CheckRunConfig(const RunConfig& config);

// From the defaults (fashion-small), then the TOML file `path` ("" for none), then `sets`, each
// "train.lr=1e-3" with a TOML value (quotes may be left out). [model] takes ModelConfig's keys and
// `base` (a name that NamedConfig knows, or "none"), `mixer` (as ExpandMixers reads it: "a,b"
// cycles through the layers, as does "3x a + 1x b") and `layers`. Unknown keys are Errors that name
// the nearest known ones.
RunConfig ResolveConfig(const std::string& path, const std::vector<std::string>& sets);

nlohmann::json ToJson(const RunConfig& config);
RunConfig RunConfigFromJson(const nlohmann::json& json);
std::string ToToml(const RunConfig& config);  // ResolveConfig reads it back to the same config

// `step` updates' rate; total: what the run has settled on, 0 if not yet known.
Schedule ScheduleOf(const TrainConfig& train, int64_t total);

// What differs between two configs among the keys that decide the weights after a given step, as
// "train.lr (0.001, not 0.1)"; "" if nothing does. Lengths, evaluation, samples, checkpoints and
// export may change when a run is resumed, these not.
std::string TrajectoryDifference(const RunConfig& was, const RunConfig& is);

}  // namespace linattn
