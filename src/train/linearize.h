#pragma once

#include <cmath>
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
  double transfer_share = 0.4;           // of the time, for the first part; 0 or 1: no other part
  int64_t batch = 8;
  double transfer_lr = 1e-2, lr = 5e-4;
  std::string dtype = "bf16";   // of activations and products
  int64_t eval_examples = 500;  // held out; 0: all
  uint64_t seed = 1;
  std::FILE* log = nullptr;    // progress and notes; null: none
  std::function<bool()> stop;  // asked after each batch: true ends it early; may be null
};

struct LinearizeResult {
  ModelFile model;       // the recovered one, or as far as it came
  bool stopped = false;  // before the end: of what follows, what was not measured is NaN
  std::string metric;    // of the examples called HeldOutName
  double before = NAN, swapped = NAN, transferred = NAN, recovered = NAN;
  // [L] of the attention, transfer's loss; NaN where the layer was not softmax. Empty: not measured
  std::vector<double> distance_before, distance_after;
  int64_t transfer_steps = 0, steps = 0;
  int64_t skipped = 0;  // of both, because loss or gradient were not finite
};

// The config of `model` with linear attention in place of softmax: all its weights fit, and only
// learned feature maps, which begin as the identity, are new. Throws Error if there is no softmax
// layer; if one is built in a way that linear attention cannot be (grouped heads, windows, rotary
// positions, modern blocks, a convolution); or if another layer's feature map would change with it.
ModelConfig LinearizedConfig(const ModelConfig& model, const LinearizeOptions& options);

// The same weights and vocabulary under another config; tensors that only `to` has keep their
// initial values.
ModelFile WithConfig(const ModelFile& from, const ModelConfig& to);

// Which examples a model of that task is measured on: none that it may have been trained on by
// `linattn train`. Images and speech: the test split, as data.full_train would train on the
// validation split too.
std::string HeldOutName(const std::string& task);

// The task's first metric over the held-out examples, called `what` in the log; NaN if it was
// stopped.
double HeldOut(const ModelFile& model, const LinearizeOptions& options, const std::string& what);

// Swaps a trained model's softmax for linear attention and recovers what that loses: first the
// feature maps alone learn to give the outputs that softmax gave each layer, on that layer's inputs
// in the teacher (attention transfer: Zhang et al. 2024, "LoLCATs"; the hedgehog features are Zhang
// et al. 2024, "The Hedgehog & the Porcupine", whose own loss is the cross-entropy of the attention
// weights), then all weights learn the task for a while. Updates that are not finite are left out;
// after kMostSkips of them in a row a part ends, and its parameters are those that it began with.
// Throws Error as LinearizedConfig and MakeTask do.
LinearizeResult Linearize(const ModelFile& teacher, const LinearizeOptions& options);

}  // namespace linattn
