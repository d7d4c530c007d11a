#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/random.h"

namespace linattn {

struct SamplerOptions {
  double temperature = 1;  // >= 0; divides the logits. 0: arg max, the lowest index of equals
  int64_t top_k = 0;       // keep the k most likely; 0, or at least the vocabulary: no limit
  double top_p = 1;  // (0,1]: keep the smallest set of most likely symbols whose mass reaches top_p
};

struct Candidate {
  int64_t symbol;
  double probability;
};

// Working memory of a draw; after the first call with a vocabulary no call allocates.
struct SamplerScratch {
  std::vector<Candidate> candidates;
  std::vector<float> weights, some;
};

// Throws Error for options out of range.
void CheckSampler(const SamplerOptions& options);

// The symbols that `options` leave, most likely first, probabilities summing to 1; valid until
// scratch is next used. top_k is applied before top_p. A mass within 1e-6 of top_p reaches it, so
// that rounding of float32 logits does not let one symbol more in. Throws Error for logits that are
// not finite (naming the first) and for options out of range.
std::span<const Candidate> Candidates(std::span<const float> logits, const SamplerOptions& options,
                                      SamplerScratch& scratch);

// `penalised` [symbols] becomes `logits`, with symbols that occur in `recent` less likely: a logit
// above 0 is divided by `penalty`, another multiplied, once however often the symbol occurs. Keskar
// et al. 2019, "CTRL", section 4.1, with the sign minded. penalty 1 changes nothing. The two must
// not overlap. Throws Error unless penalty is positive and finite and the symbols are from -1
// (none) to the last one.
void PenaliseRepetition(std::span<const int32_t> recent, double penalty,
                        std::span<const float> logits, std::span<float> penalised);

// Draws a symbol from Candidates(), or, where there are no limits, from all in their own order; one
// Uniform() a call, none at temperature 0. Same errors. Sorts nothing: a few passes over the
// logits.
int64_t SampleCategorical(std::span<const float> logits, const SamplerOptions& options,
                          Random& random, SamplerScratch& scratch);

// Draws one position of a logistic mixture (logistic_mixture.h): params is its row, pixels has one
// element a channel (1 or 3). A component is drawn from softmax(logits / temperature), then each
// channel from its logistic with scale exp(s) * temperature, clamped to [-1,1] and rounded to the
// nearest of 0..255; at temperature 1 that is the distribution of LogisticMixtureForward.
// Temperature 0: the mean of the most likely component. Draws 1 + channels Uniform(), none at
// temperature 0. Throws Error for a parameter that is not finite, naming it, and for a negative
// temperature. Never allocates.
void SampleLogisticMixture(std::span<const float> params, double temperature, Random& random,
                           std::span<uint8_t> pixels);

}  // namespace linattn
