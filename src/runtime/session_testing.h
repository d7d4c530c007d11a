#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "base/random.h"
#include "runtime/full_pass.h"
#include "runtime/reference_model.h"
#include "runtime/session.h"

// For tests: small models, and what all ways through one must agree on.
namespace linattn {

// Two layers, one of each mixer, of sizes that are no multiple of a vector.
inline ModelConfig SmallConfig() {
  ModelConfig c;
  c.task = "text", c.position = "learned", c.head = "categorical";
  c.vocab = 11, c.max_len = 70, c.dim = 20, c.heads = c.value_heads = 2;
  c.head_dim = 5, c.value_dim = 6, c.mlp_dim = 28;
  c.mixers = {"linear", "softmax"};
  return c;
}

inline ModelConfig SmallImages() {
  ModelConfig c = SmallConfig();
  c.task = "images", c.position = "image", c.head = "logistic_mixture", c.vocab = 256;
  c.height = 4, c.width = 5, c.channels = 3, c.max_len = 60, c.classes = 3, c.mixtures = 2;
  return c;
}

inline std::vector<int32_t> Tokens(const ModelConfig& c, int64_t n, uint64_t stream) {
  Random random(5, stream);
  std::vector<int32_t> tokens = {static_cast<int32_t>(c.start_token(0))};
  while (static_cast<int64_t>(tokens.size()) < n) {
    tokens.push_back(static_cast<int32_t>(random.Below(c.vocab)));
  }
  return tokens;
}

inline std::vector<float> Copied(std::span<const float> x) { return {x.begin(), x.end()}; }

// Within `bound` of the reference, relative to its largest element.
inline void ExpectNear(std::span<const float> got, const reference::Vector& want, double bound) {
  ASSERT_EQ(got.size(), want.size());
  double largest = 0;
  for (const double w : want) largest = std::max(largest, std::abs(w));
  for (size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(got[i], want[i], bound * largest) << i;
}

inline void ExpectClose(std::span<const float> got, std::span<const float> want,
                        double bound = 1e-5) {
  ExpectNear(got, {want.begin(), want.end()}, bound);
}

// B1: whole sequences, prefill and steps all equal the definition, for every kind of model.
inline void ExpectAllPathsMatch(const ModelConfig& c) {
  const PackedModel::Tensors tensors = reference::DenseTensors(c, 1);
  const PackedModel model(c, tensors);
  const reference::Model definition(c, tensors);
  const int64_t T = std::min<int64_t>(64, c.max_len), width = c.outputs();
  std::vector<int32_t> both;
  std::vector<reference::Matrix> want;
  for (uint64_t b = 0; b < 2; ++b) {
    const std::vector<int32_t> tokens = Tokens(c, T, b);
    both.insert(both.end(), tokens.begin(), tokens.end());
    want.push_back(definition.Forward(tokens));
  }
  FullPass pass(model);
  const std::span<const float> outputs = pass.Run(both, 2);
  for (int64_t i = 0; i < 2 * T; ++i) {
    SCOPED_TRACE(i);
    ExpectNear(outputs.subspan(i * width, width), want[i / T][i % T], 1e-5);
  }
  const std::span<const float> last = pass.Run(both, 2, FullPass::Positions::kLast);
  for (int64_t b = 0; b < 2; ++b) ExpectNear(last.subspan(b * width, width), want[b][T - 1], 1e-5);
  if (!c.causal) return;

  Session steps(model, 2), prefill(model, 2);
  const std::vector<int64_t> slots = {0, 1};
  for (int64_t t = 0; t < T; ++t) {
    SCOPED_TRACE(t);
    steps.Step(slots, std::vector<int32_t>{both[t], both[T + t]});
    for (const int64_t b : slots) ExpectNear(steps.outputs(b), want[b][t], 1e-5);
  }
  for (const int64_t b : slots) {
    const std::span<const int32_t> tokens(&both[b * T], T);
    prefill.Prefill(b, tokens.first(7));  // in pieces: the state carries over (A7)
    ExpectNear(prefill.outputs(b), want[b][6], 1e-5);
    prefill.Prefill(b, tokens.subspan(7));
    ExpectNear(prefill.outputs(b), want[b][T - 1], 1e-5);
    ExpectClose(prefill.state(b), steps.state(b));
    EXPECT_EQ(prefill.length(b), T);
  }
}

}  // namespace linattn
