#include "kernels/ctc_decode.h"

#include <gmock/gmock.h>

#include <cmath>
#include <limits>
#include <map>

#include "base/error_testing.h"
#include "base/random.h"

namespace linattn {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Labels = std::vector<int32_t>;

// Logits whose likeliest symbols are these.
std::vector<float> Saying(const std::vector<int>& symbols, int64_t C) {
  std::vector<float> logits(symbols.size() * C);
  for (size_t t = 0; t < symbols.size(); ++t) logits[t * C + symbols[t]] = 5;
  return logits;
}

TEST(CtcDecode, RepeatsCollapseThenBlanksGo) {  // E7
  EXPECT_THAT(CtcGreedyLabels(Saying({1, 2, 2, 0, 2, 2}, 3), 3, 0), ElementsAre(1, 2, 2));
  EXPECT_THAT(CtcGreedyLabels(Saying({0, 0}, 3), 3, 0), IsEmpty());
  EXPECT_THAT(CtcGreedyLabels(Saying({0, 1, 1, 2, 1, 1}, 3), 3, 2), ElementsAre(0, 1, 1));
  EXPECT_THAT(CtcBeam(Saying({1, 2, 2, 0, 2, 2}, 3), 3, 0, 8)[0].labels, ElementsAre(1, 2, 2));
  EXPECT_THAT(CtcBeam(Saying({0, 0}, 3), 3, 0, 8)[0].labels, IsEmpty());
}

TEST(CtcDecode, GreedyGoesOnWhereItStopped) {
  const std::vector<float> logits = Saying({1, 1, 0, 1}, 3);
  CtcGreedy first(0), second(0);
  EXPECT_EQ(first.Push(std::span(logits).subspan(0, 3)), 1);
  second.Restore(first.last());
  EXPECT_EQ(second.Push(std::span(logits).subspan(3, 3)), -1);
  EXPECT_EQ(second.Push(std::span(logits).subspan(6, 3)), -1);
  EXPECT_EQ(second.Push(std::span(logits).subspan(9, 3)), 1);
}

// Every alignment of T frames, summed by what it spells.
std::map<Labels, double> BruteForce(const std::vector<float>& logits, int64_t C, int32_t blank) {
  const int64_t T = std::ssize(logits) / C;
  std::map<Labels, double> sums;
  const auto alignments = static_cast<int64_t>(std::pow(C, T));
  for (int64_t n = 0; n < alignments; ++n) {
    Labels labels;
    double p = 1;
    int32_t last = blank;
    int64_t rest = n;
    for (int64_t t = 0; t < T; ++t, rest /= C) {
      const auto symbol = static_cast<int32_t>(rest % C);
      double sum = 0;
      for (int64_t c = 0; c < C; ++c) sum += std::exp(double{logits[t * C + c]});
      p *= std::exp(double{logits[t * C + symbol]}) / sum;
      if (symbol != blank && symbol != last) labels.push_back(symbol);
      last = symbol;
    }
    sums[labels] += p;
  }
  return sums;
}

TEST(CtcDecode, AWideBeamIsExact) {
  for (const int32_t blank : {0, 2}) {
    std::vector<float> logits(6 * 3);
    Random random(3, static_cast<uint64_t>(blank));
    for (float& x : logits) x = static_cast<float>(random.Normal());
    const auto right = BruteForce(logits, 3, blank);
    const auto beam = CtcBeam(logits, 3, blank, 10000);
    ASSERT_EQ(beam.size(), right.size());
    for (const CtcHypothesis& h : beam)
      EXPECT_NEAR(std::exp(h.log_probability), right.at(h.labels), 1e-9);
    for (size_t i = 1; i < beam.size(); ++i)
      EXPECT_GE(beam[i - 1].log_probability, beam[i].log_probability);
    // A narrow one finds nothing that the wide one does not have.
    EXPECT_LE(CtcBeam(logits, 3, blank, 2)[0].log_probability, beam[0].log_probability + 1e-12);
  }
}

TEST(CtcDecode, EditDistance) {
  EXPECT_EQ(EditDistance(Labels{1, 2, 3}, Labels{1, 2, 3}), 0);
  EXPECT_EQ(EditDistance(Labels{1, 2, 3}, Labels{}), 3);
  EXPECT_EQ(EditDistance(Labels{}, Labels{4, 4}), 2);
  EXPECT_EQ(EditDistance(Labels{1, 2, 3, 4}, Labels{2, 3, 5, 4}), 2);
}

TEST(CtcBeam, LogitsWithoutALogSoftmaxAreRefusedByFrame) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  for (const float bad : {NAN, kInf}) {
    std::vector<float> logits(5 * 40, 0.5f);
    for (size_t i = 2 * 40; i < 3 * 40; i += 3) logits[i] = bad;
    EXPECT_THAT(MessageOf([&] { CtcBeam(logits, 40, 0, 20); }),
                testing::HasSubstr("those of frame 2 are not"));
  }
  std::vector<float> logits(3 * 4, -kInf);
  EXPECT_NE(MessageOf([&] { CtcBeam(logits, 4, 0, 2); }), "no error");
  for (int t = 0; t < 3; ++t) logits[t * 4 + t] = 0;  // certain: logits of probability 0 are right
  EXPECT_EQ(CtcBeam(logits, 4, 0, 2).front().labels, (std::vector<int32_t>{1, 2}));
}

}  // namespace
}  // namespace linattn
