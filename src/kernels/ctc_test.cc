#include "kernels/ctc.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>

#include "base/error.h"
#include "base/file.h"
#include "base/random.h"
#include "kernels/simd_testing.h"

namespace linattn {
namespace {

using ::testing::HasSubstr;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// A batch in float64, evaluated by the definition or by the kernel.
struct Problem {
  int64_t B = 1, T = 0, C = 0, blank = 0;
  std::vector<double> logits;
  std::vector<int64_t> lengths;
  std::vector<std::vector<int32_t>> labels;
};
struct Answer {
  std::vector<double> loss, gradient;
};

template <class R>
Answer Evaluate(const Problem& p, void (*evaluate)(const CtcInputs&, const CtcOutputs&)) {
  std::vector<R> logits(p.logits.begin(), p.logits.end());
  std::vector<R> gradient(logits.size(), std::numeric_limits<R>::quiet_NaN());
  Answer a{std::vector<double>(p.B, std::nan("")), {}};
  evaluate({MakeArray(logits.data(), {p.B, p.T, p.C}), p.lengths, p.labels, p.blank},
           {a.loss, MakeArray(gradient.data(), {p.B, p.T, p.C})});
  a.gradient.assign(gradient.begin(), gradient.end());
  return a;
}
Answer Reference(const Problem& p) { return Evaluate<double>(p, CtcLossRef); }
Answer Fast(const Problem& p) { return Evaluate<float>(p, CtcLoss); }

Problem Uniform(int64_t T, int64_t C, std::vector<int32_t> labels) {
  return {1, T, C, 0, std::vector<double>(T * C), {T}, {std::move(labels)}};
}

Problem RandomProblem(int64_t T, int64_t C, double size) {
  Problem p{3, T, C, C - 1, {}, {T, T / 2, 0}, {{}, {}, {}}};
  Random random(7, static_cast<uint64_t>(T));
  for (int64_t i = 0; i < p.B * T * C; ++i) p.logits.push_back(size * random.Normal());
  for (int64_t i = 0; i < T / 4; ++i)
    p.labels[i % 2].push_back(static_cast<int32_t>(random.Below(C - 1)));
  return p;
}

// float32 against the definition: losses to 1e-5 of their size, gradients (of size at most 1) to
// 2e-5: errors of the log-probabilities, half a bit of up to 100, go into their exponentials.
void ExpectSame(const Answer& fast, const Answer& right) {
  for (size_t i = 0; i < right.loss.size(); ++i) {
    if (std::isinf(right.loss[i]))
      EXPECT_EQ(fast.loss[i], kInfinity);
    else
      EXPECT_NEAR(fast.loss[i], right.loss[i], 1e-5 * (1 + right.loss[i]));
  }
  for (size_t i = 0; i < right.gradient.size(); ++i)
    ASSERT_NEAR(fast.gradient[i], right.gradient[i], 2e-5) << i;
}

TEST(Ctc, MatchesTheGoldenCases) {
  const auto cases = nlohmann::json::parse(AsText(ReadFile(LINATTN_TESTDATA "/ctc.json")));
  ASSERT_EQ(cases.size(), 10u);
  for (const auto& c : cases) {
    SCOPED_TRACE(c["name"].get<std::string>());
    Problem p;
    p.T = static_cast<int64_t>(c["logits"].size());
    p.C = static_cast<int64_t>(c["logits"][0].size());
    for (const auto& row : c["logits"])
      for (const double x : row) p.logits.push_back(x);
    p.lengths = {c["input_len"]}, p.labels = {c["target"]}, p.blank = c["blank"];
    const Answer right = Reference(p);
    const double loss = c["loss"].is_string() ? kInfinity : c["loss"].get<double>();
    if (std::isinf(loss))
      EXPECT_EQ(right.loss[0], kInfinity);
    else
      EXPECT_NEAR(right.loss[0], loss, 1e-9);
    std::vector<double> gradient(p.logits.size());  // of what cannot be aligned: 0
    if (!c["grad_logits"].is_null())
      for (size_t i = 0; i < gradient.size(); ++i) gradient[i] = c["grad_logits"][i / p.C][i % p.C];
    for (size_t i = 0; i < gradient.size(); ++i) EXPECT_NEAR(right.gradient[i], gradient[i], 1e-9);
    OnEveryTarget([&] { ExpectSame(Fast(p), right); });
  }
}

TEST(Ctc, UtterancesThatCannotBeAlignedLeaveTheOthersAlone) {  // E1
  Problem p{2, 3, 3, 0, std::vector<double>(18), {2, 3}, {{1, 1}, {1, 1}}};
  OnEveryTarget([&] {
    const Answer a = Fast(p);
    EXPECT_EQ(a.loss[0], kInfinity);
    EXPECT_NEAR(a.loss[1], 3.295837, 1e-6);
    for (int i = 0; i < 9; ++i) EXPECT_EQ(a.gradient[i], 0) << i;
    for (int i = 9; i < 18; ++i) EXPECT_NE(a.gradient[i], 0) << i;
  });
  EXPECT_NEAR(Reference(Uniform(2, 3, {1, 2})).loss[0], 2.197225, 1e-6);
  EXPECT_EQ(Reference(Uniform(2, 3, {1, 2, 1})).loss[0], kInfinity);
}

TEST(Ctc, EqualNeighboursNeedABlankBetweenThem) {  // E3
  const std::vector<int32_t> ones(46, 1);
  EXPECT_EQ(CtcFramesNeeded(ones), 91);
  EXPECT_EQ(CtcFramesNeeded(std::vector<int32_t>{1, 2, 2, 1}), 5);
  EXPECT_EQ(CtcFramesNeeded({}), 0);
  OnEveryTarget([&] {
    EXPECT_NEAR(Fast(Uniform(91, 2, ones)).loss[0], 63.076393, 1e-4);
    EXPECT_EQ(Fast(Uniform(90, 2, ones)).loss[0], kInfinity);
  });
}

TEST(Ctc, KernelMatchesReference) {
  for (const int64_t T : {1, 5, 17, 64, 200}) {
    for (const double size : {1.0, 20.0}) {
      SCOPED_TRACE(T);
      const Problem p = RandomProblem(T, 9, size);
      const Answer right = Reference(p);
      OnEveryTarget([&] { ExpectSame(Fast(p), right); });
    }
  }
}

TEST(Ctc, NothingBeyondTheLengthMatters) {  // E5
  Problem p = RandomProblem(30, 5, 1);
  for (int64_t i = 15 * 5; i < 30 * 5; ++i) p.logits[30 * 5 + i] = std::nan("");
  OnEveryTarget([&] {
    const Answer a = Fast(p);
    EXPECT_TRUE(std::isfinite(a.loss[1]));
    for (int64_t i = 15 * 5; i < 30 * 5; ++i) EXPECT_EQ(a.gradient[30 * 5 + i], 0);
    EXPECT_EQ(a.loss[2], 0);  // nothing, spelled by no frame
  });
}

TEST(Ctc, GradientIsThatOfTheLogits) {  // E8
  Problem p = RandomProblem(12, 4, 1);
  const Answer a = Reference(p);
  for (size_t i = 0; i < p.logits.size(); ++i) {
    constexpr double kStep = 1e-5;
    const auto total = [&](double x) {
      Problem moved = p;
      moved.logits[i] += x;
      const Answer b = Reference(moved);
      return b.loss[0] + b.loss[1];
    };
    EXPECT_NEAR(a.gradient[i], (total(kStep) - total(-kStep)) / (2 * kStep), 1e-8) << i;
  }
}

TEST(Ctc, LongAndCertainSequencesKeepTheirGradients) {
  for (const double certainty : {0.0, 60.0}) {
    Problem p{1, 500, 6, 0, std::vector<double>(3000), {500}, {{}}};
    for (int32_t i = 0; i < 150; ++i) p.labels[0].push_back(1 + i % 5);
    for (int64_t t = 0; t < 500; ++t) p.logits[t * 6 + 5 - t % 6] = certainty;  // and mostly wrong
    const Answer right = Reference(p);
    OnEveryTarget([&] {
      const Answer a = Fast(p);
      EXPECT_NEAR(a.loss[0], right.loss[0], 1e-5 * right.loss[0]);
      for (size_t i = 0; i < a.gradient.size(); ++i)
        ASSERT_NEAR(a.gradient[i], right.gradient[i], 3e-4) << i;  // roundings of 500 steps
    });
  }
}

TEST(Ctc, ANaNIsSeen) {
  Problem p = RandomProblem(8, 4, 1);
  p.logits[5] = std::nan("");
  OnEveryTarget([&] {
    const Answer a = Fast(p);
    EXPECT_TRUE(std::isnan(a.loss[0]));
    EXPECT_TRUE(std::isnan(a.gradient[0]));
    EXPECT_TRUE(std::isfinite(a.loss[1]));
  });
}

TEST(Ctc, RefusesWhatIsOutOfRange) {
  const auto message = [](const Problem& p) {
    try {
      Fast(p);
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  Problem p = Uniform(4, 3, {1, 3});
  EXPECT_THAT(message(p), HasSubstr("utterance 0: labels must be in [0,3) and not the blank 0"));
  p.labels[0] = {0};
  EXPECT_THAT(message(p), HasSubstr("not the blank"));
  p.labels[0] = {1}, p.lengths[0] = 5;
  EXPECT_THAT(message(p), HasSubstr("length must be from 0 to 4 frames, but is 5"));
}

}  // namespace
}  // namespace linattn
