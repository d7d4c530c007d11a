#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/array.h"

namespace linattn {

// Connectionist temporal classification: the probability that a sequence of frames spells a shorter
// sequence of labels, summed over all alignments. Repeats collapse, then blanks go: A B B * B B is
// A B B. Graves et al. 2006.
struct CtcInputs {
  Array logits;                      // [B,T,C] contiguous; log-probabilities are their log softmax
  std::span<const int64_t> lengths;  // [B] frames of each, 0..T
  std::span<const std::vector<int32_t>> labels;  // [B], each in [0,C) and not the blank
  int64_t blank = 0;
};
struct CtcOutputs {
  std::span<double> loss;  // [B] -ln P; infinity where no alignment exists
  // [B,T,C] contiguous, or absent: of each loss by its logits, softmax less the posterior of each
  // symbol. (By log-probabilities taken as free it would be minus the posterior alone.) Exactly 0
  // beyond the length, and where the loss is infinite. NaN where logits within the length are not
  // finite, as the loss then is.
  Array d_logits;
};

// Frames that the labels need: one each, and a blank between equal neighbours.
int64_t CtcFramesNeeded(std::span<const int32_t> labels);

// The definition, in float64, in plain loops over log-probabilities.
void CtcLossRef(const CtcInputs& in, const CtcOutputs& out);

// float32. The two passes run on logarithms relative to each frame's largest, so that neither long
// nor very certain sequences lose what is small. One thread an utterance. Throws Error as
// CtcLossRef: shapes, labels or lengths out of range.
void CtcLoss(const CtcInputs& in, const CtcOutputs& out);

// For both: checks, and the labels with blanks around them, [2 L + 1].
void CheckCtc(const CtcInputs& in, const CtcOutputs& out, DType dtype);
std::vector<int32_t> WithBlanks(std::span<const int32_t> labels, int64_t blank);

}  // namespace linattn
