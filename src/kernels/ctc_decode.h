#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace linattn {

// What CTC's frames spell, frame by frame: of each the likeliest symbol, repeats collapsed, blanks
// dropped.
class CtcGreedy {
 public:
  explicit CtcGreedy(int64_t blank) : blank_(static_cast<int32_t>(blank)), last_(blank_) {}
  // scores [C] of the next frame, logits or log-probabilities. A label, or -1 if it adds none.
  int32_t Push(std::span<const float> scores);

  // The last frame's symbol: all that a continuation needs.
  int32_t last() const { return last_; }
  void Restore(int32_t last) { last_ = last; }

 private:
  int32_t blank_, last_;
};

// logits [T,C]
std::vector<int32_t> CtcGreedyLabels(std::span<const float> logits, int64_t C, int64_t blank);

struct CtcHypothesis {
  std::vector<int32_t> labels;
  double log_probability = 0;  // ln, of all alignments that the beam has kept
};

// Prefix beam search (Hannun et al. 2014) over logits [T,C] of any scale (their log softmax is
// taken): the `width` likeliest label sequences, likeliest first. Throws Error naming the frame
// whose logits have no log softmax: NaN, infinity, or all minus infinity.
std::vector<CtcHypothesis> CtcBeam(std::span<const float> logits, int64_t C, int64_t blank,
                                   int64_t width);

// Insertions, deletions and substitutions that make `said` of `wanted`, at least.
int64_t EditDistance(std::span<const int32_t> wanted, std::span<const int32_t> said);

}  // namespace linattn
