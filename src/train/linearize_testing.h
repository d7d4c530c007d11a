#pragma once

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <omp.h>

#include <string>
#include <utility>
#include <vector>

#include "model/model_file.h"
#include "nn/transformer.h"
#include "train/linearize.h"

namespace linattn {

// For tests: a small model of bytes, untrained, whose attention is sharp all the same.
inline ModelConfig TinyTextConfig(const std::vector<std::string>& mixers) {
  ModelConfig c;
  c.task = "text", c.position = "learned", c.head = "categorical", c.max_len = 24;
  c.dim = 16, c.heads = c.value_heads = 2, c.head_dim = c.value_dim = 8, c.mlp_dim = 32;
  c.mixers = mixers;
  return c;
}

inline ModelFile UntrainedModel(const ModelConfig& config) {
  at::set_num_threads(1);  // models this small lose more to barriers than a second thread gains
  omp_set_num_threads(1);
  at::manual_seed(1);
  ModelFile file;
  file.config = config;
  for (auto& [name, values] : Transformer(config).Export()) {
    if (name.ends_with("q_proj.weight"))
      for (float& value : values) value *= 8;
    file.tensors[name] = std::move(values);
  }
  return file;
}

inline LinearizeOptions TinyLinearize(int64_t steps) {
  LinearizeOptions options;
  options.data.source = LINATTN_TESTDATA "/text/shakespeare-head.txt";
  options.steps = steps, options.batch = 4, options.eval_examples = 6;
  options.lr = 1e-2, options.dtype = "f32";
  return options;
}

}  // namespace linattn
