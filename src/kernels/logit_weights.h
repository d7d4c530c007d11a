#pragma once

#include <cstdint>
#include <span>

namespace linattn {

// What samplers ask of many numbers at a time.

// NaN if any is not finite.
float LargestOrNaN(std::span<const float> logits);

// weights[i] = exp((logits[i] - top) factor), for factor >= 0 and top the largest logit.
void LogitWeights(std::span<const float> logits, float top, float factor, float* weights);

// Of the weights that are at least `least`.
struct WeightMass {
  double mass = 0;
  int64_t count = 0;
};
WeightMass MassFrom(std::span<const float> weights, float least);

// Copies those in [least, end) to `some`, which has room for kWeightRoom more than all; how many.
constexpr size_t kWeightRoom = 16;
int64_t WeightsBetween(std::span<const float> weights, float least, float end, float* some);

}  // namespace linattn
