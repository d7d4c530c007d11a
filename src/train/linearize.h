#pragma once

#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "model/config.h"
#include "model/model_file.h"
#include "tasks/data_config.h"

namespace linattn {

struct LinearizeOptions {
  DataConfig data;
  std::string feature_map = "hedgehog";  // of the new attention
  int64_t map_dim = 0;                   // of the learned matrix before it; 0: head_dim
  double minutes = 4;                    // of training in all, or
  int64_t steps = 0;                     // of each of the two parts, if not 0
  double transfer_share = 0.4;           // of the time, for the first part
  int64_t batch = 8;
  double transfer_lr = 1e-2, lr = 5e-4;
  std::string dtype = "bf16";   // of activations and products
  int64_t eval_examples = 500;  // of the held-out set; 0: all
  uint64_t seed = 1;
  std::FILE* log = nullptr;    // progress; null: none
  std::function<bool()> stop;  // ends the training early; may be null
};

struct LinearizeResult {
  ModelFile model;     // the recovered one
  std::string metric;  // of what follows, on the held-out set
  double before = 0, swapped = 0, transferred = 0, recovered = 0;
  std::vector<double> distance_before, distance_after;  // [L] of the attention; transfer's loss
  int64_t transfer_steps = 0, steps = 0;
};

// The config of `model` with linear attention in place of softmax: all its weights fit, and only
// learned feature maps, which begin as the identity, are new. Throws Error if a layer is one that
// linear attention cannot stand in for (grouped heads, windows, rotary positions, modern blocks) or
// if there is no softmax layer.
ModelConfig LinearizedConfig(const ModelConfig& model, const LinearizeOptions& options);

// The same weights under another config; tensors that only `to` has keep their initial values.
ModelFile WithConfig(const ModelFile& from, const ModelConfig& to);

// The task's first metric over its held-out examples.
double HeldOut(const ModelFile& model, const LinearizeOptions& options);

// Swaps a trained model's softmax for linear attention and recovers what that loses: first the
// feature maps alone learn to give the outputs that softmax gave each layer (attention transfer:
// Zhang et al. 2024, "The Hedgehog & the Porcupine"), then all weights learn the task for a while.
// Throws Error as LinearizedConfig and MakeTask do.
LinearizeResult Linearize(const ModelFile& teacher, const LinearizeOptions& options);

}  // namespace linattn
