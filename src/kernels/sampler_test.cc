#include "kernels/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <vector>

#include "base/error.h"
#include "base/error_testing.h"
#include "kernels/logistic_mixture.h"
#include "kernels/simd_testing.h"

namespace linattn {
namespace {

std::vector<float> Logs(const std::vector<double>& probabilities) {
  std::vector<float> logits;
  for (double p : probabilities) logits.push_back(static_cast<float>(std::log(p)));
  return logits;
}

std::vector<double> Shares(const std::vector<float>& logits, const SamplerOptions& options,
                           int64_t draws) {
  Random random(42);
  SamplerScratch scratch;
  std::vector<double> shares(logits.size());
  for (int64_t i = 0; i < draws; ++i)
    shares[SampleCategorical(logits, options, random, scratch)] += 1.0 / draws;
  return shares;
}

TEST(Sampler, TemperatureZeroIsArgMax) {  // C1
  Random random(1);
  SamplerScratch scratch;
  for (int repeat = 0; repeat < 20; ++repeat) {
    EXPECT_EQ(SampleCategorical(std::vector<float>{1, 2}, {.temperature = 0}, random, scratch), 1);
    EXPECT_EQ(SampleCategorical(std::vector<float>{2, 2, 1}, {.temperature = 0}, random, scratch),
              0);
  }
  EXPECT_EQ(random.position(), 0u);
}

TEST(Sampler, DrawsTheDistribution) {
  const std::vector<double> p{0.5, 0.3, 0.15, 0.05};
  const auto shares = Shares(Logs(p), {}, 100000);
  for (int i = 0; i < 4; ++i) EXPECT_NEAR(shares[i], p[i], 0.008) << i;  // 5 standard deviations
  // At temperature 1/2 probabilities are squared: 25 : 9 : 2.25 : 0.25 of 36.5.
  const auto sharp = Shares(Logs(p), {.temperature = 0.5}, 100000);
  const double squared[] = {25 / 36.5, 9 / 36.5, 2.25 / 36.5, 0.25 / 36.5};
  for (int i = 0; i < 4; ++i) EXPECT_NEAR(sharp[i], squared[i], 0.008) << i;
}

TEST(Sampler, TopKBeyondTheVocabularyIsNoLimit) {  // C3
  std::vector<float> logits(256);
  Random values(3);
  for (float& x : logits) x = static_cast<float>(values.Normal());
  SamplerScratch scratch;
  EXPECT_EQ(Candidates(logits, {.top_k = 100000}, scratch).size(), 256u);
  EXPECT_EQ(Candidates(logits, {.top_k = 256}, scratch).size(), 256u);
  EXPECT_EQ(Candidates(logits, {.top_k = 0}, scratch).size(), 256u);
  const auto kept = Candidates(logits, {.top_k = 5}, scratch);
  ASSERT_EQ(kept.size(), 5u);
  double sum = 0;
  for (size_t i = 0; i < 5; ++i) {
    sum += kept[i].probability;
    const int64_t above = std::count_if(logits.begin(), logits.end(),
                                        [&](float x) { return x > logits[kept[i].symbol]; });
    EXPECT_EQ(above, static_cast<int64_t>(i));
  }
  EXPECT_NEAR(sum, 1, 1e-12);
}

TEST(Sampler, TopPIsTheSmallestSetThatReachesP) {  // C5
  struct {
    std::vector<double> p;
    double top_p;
    size_t kept;
  } const cases[] = {
      {{0.5, 0.41, 0.09}, 0.9, 2}, {{0.4, 0.3, 0.2, 0.1}, 0.8, 3}, {{0.5, 0.35, 0.1, 0.05}, 0.9, 3},
      {{0.5, 0.4, 0.1}, 0.9, 2},  // 0.9 up to rounding
      {{0.1, 0.2, 0.7}, 0.7, 1},   {{0.4, 0.3, 0.2, 0.1}, 1, 4},   {{0.4, 0.3, 0.2, 0.1}, 1e-9, 1},
  };
  SamplerScratch scratch;
  for (const auto& c : cases) {
    const auto kept = Candidates(Logs(c.p), {.top_p = c.top_p}, scratch);
    EXPECT_EQ(kept.size(), c.kept) << c.p[0] << " " << c.p[1] << " at " << c.top_p;
  }
  const auto shares = Shares(Logs({0.5, 0.41, 0.09}), {.top_p = 0.9}, 50000);
  EXPECT_NEAR(shares[0], 0.5 / 0.91, 0.012);
  EXPECT_EQ(shares[2], 0);
}

// By sorting all, in float64.
int64_t PlainDraw(const std::vector<float>& logits, const SamplerOptions& o, double u) {
  std::vector<std::pair<double, int64_t>> symbols;  // minus probability, so that they sort
  for (size_t i = 0; i < logits.size(); ++i)
    symbols.push_back({-std::exp(double{logits[i]} / o.temperature), static_cast<int64_t>(i)});
  const bool limited = o.top_k > 0 || o.top_p < 1;
  if (limited) std::sort(symbols.begin(), symbols.end());
  const auto mass = [&] {
    double sum = 0;
    for (const auto& s : symbols) sum -= s.first;
    return sum;
  };
  if (o.top_k > 0) symbols.resize(o.top_k);
  double left = (o.top_p - 1e-6) * mass();
  for (size_t i = 0; o.top_p < 1 && i < symbols.size(); ++i)
    if ((left += symbols[i].first) <= 0) symbols.resize(i + 1);
  u *= mass();
  for (const auto& s : symbols)
    if ((u += s.first) < 0) return s.second;
  return symbols.back().second;
}

void ExpectDrawsOfSorting() {
  std::vector<float> logits(1500);
  Random values(3), random(5), same(5);
  // Many of equal size, as bfloat16 outputs have them.
  for (float& x : logits) x = std::round(8 * static_cast<float>(values.Normal())) / 4;
  SamplerScratch scratch;
  for (const SamplerOptions& o : std::vector<SamplerOptions>{
           {}, {0.5}, {1, 40}, {1, 1}, {1, 0, 0.9}, {2, 0, 0.5}, {1, 100, 0.7}, {1, 0, 1e-9}}) {
    for (int i = 0; i < 30; ++i)
      ASSERT_EQ(SampleCategorical(logits, o, random, scratch), PlainDraw(logits, o, same.Uniform()))
          << i << " " << o.temperature << " " << o.top_k << " " << o.top_p;
  }
}

TEST(Sampler, DrawsAsSortingAllWould) { OnEveryTarget(ExpectDrawsOfSorting); }

TEST(Sampler, RefusesLogitsThatAreNotFinite) {  // C7
  Random random(1);
  SamplerScratch scratch;
  const float inf = std::numeric_limits<float>::infinity();
  for (double temperature : {0.0, 1.0}) {
    const auto message = [&](float bad) {
      return MessageOf([&] {
        SampleCategorical(std::vector<float>{0, 1, bad, 2}, {.temperature = temperature}, random,
                          scratch);
      });
    };
    EXPECT_EQ(message(NAN), "[sampler] logits must be finite, but logit 2 of 4 is nan");
    EXPECT_EQ(message(inf), "[sampler] logits must be finite, but logit 2 of 4 is inf");
    EXPECT_EQ(message(-inf), "[sampler] logits must be finite, but logit 2 of 4 is -inf");
  }
}

TEST(Sampler, RefusesOptionsOutOfRange) {
  Random random(1);
  SamplerScratch scratch;
  const auto message = [&](const SamplerOptions& options) {
    const std::string before = MessageOf([&] { CheckSampler(options); });
    EXPECT_EQ(before, MessageOf([&] {
                SampleCategorical(std::vector<float>{0, 1}, options, random, scratch);
              }));
    return before;
  };
  EXPECT_EQ(message({.temperature = -1}),
            "[sampler] temperature must be 0 or a positive number, but is -1");
  EXPECT_EQ(message({.temperature = NAN}),
            "[sampler] temperature must be 0 or a positive number, but is nan");
  EXPECT_EQ(message({.top_k = -1}), "[sampler] top_k must be at least 0 (no limit), but is -1");
  EXPECT_EQ(message({.top_p = 0}), "[sampler] top_p must be in (0,1], but is 0");
  EXPECT_EQ(message({.top_p = 1.5}), "[sampler] top_p must be in (0,1], but is 1.5");
}

TEST(Sampler, SurvivesExtremeLogitsAndTemperatures) {
  Random random(1);
  SamplerScratch scratch;
  const std::vector<float> logits{-3e38f, 3e38f, 0};
  for (double temperature : {1e-300, 1e-3, 1.0})
    EXPECT_EQ(SampleCategorical(logits, {.temperature = temperature}, random, scratch), 1);
  const auto flat = Shares({1, 2, 3, 4}, {.temperature = 1e6}, 40000);
  for (double share : flat) EXPECT_NEAR(share, 0.25, 0.012);
}

TEST(SampleLogisticMixture, TemperatureZeroIsTheMeanOfTheMostLikelyComponent) {
  Random random(1);
  const std::vector<float> params{0.1f, 0.2f, -1, /*means*/ -0.5f, 0.2f, 0.9f, /*scales*/ 0, 0, 0};
  for (int repeat = 0; repeat < 20; ++repeat) {
    uint8_t pixel = 0;
    SampleLogisticMixture(params, 0, random, {&pixel, 1});
    EXPECT_EQ(pixel, 153);  // (0.2 + 1) * 127.5
  }
  EXPECT_EQ(random.position(), 0u);
}

TEST(SampleLogisticMixture, ClampsInsteadOfWrapping) {  // F6: 1.01 is 255, not 2
  Random random(1);
  const auto pixel_of = [&](float mean) {
    const std::vector<float> params{0, mean, -7};
    uint8_t pixel = 77;
    SampleLogisticMixture(params, 0, random, {&pixel, 1});
    return int{pixel};
  };
  EXPECT_EQ(pixel_of(1.01f), 255);
  EXPECT_EQ(pixel_of(-1.01f), 0);
  EXPECT_EQ(pixel_of(1e30f), 255);
}

// Samples of the mixture have the probabilities that training assigns to the pixel values.
TEST(SampleLogisticMixture, DrawsTheDistributionThatIsTrained) {
  const std::vector<float> params{0.5f, 0, /*means*/ -0.9f, 0.4f, /*log-scales*/ -3, -2};
  std::vector<float> rows, loglik(256);
  std::vector<uint8_t> values(256);
  for (int t = 0; t < 256; ++t) {
    rows.insert(rows.end(), params.begin(), params.end());
    values[t] = static_cast<uint8_t>(t);
  }
  LogisticMixtureForward(MakeArray(rows.data(), {256, 6}), MakeArray(values.data(), {256}),
                         MakeArray(loglik.data(), {256}));
  constexpr int kDraws = 200000;
  std::vector<double> counts(256);
  Random random(7);
  for (int i = 0; i < kDraws; ++i) {
    uint8_t pixel;
    SampleLogisticMixture(params, 1, random, {&pixel, 1});
    ++counts[pixel];
  }
  double chi_square = 0;
  int bins = 0;
  for (int t = 0; t < 256; ++t) {
    const double expected = kDraws * std::exp(loglik[t]);
    if (expected < 10) continue;
    chi_square += (counts[t] - expected) * (counts[t] - expected) / expected;
    ++bins;
  }
  ASSERT_GT(bins, 100);
  EXPECT_LT(chi_square, bins + 5 * std::sqrt(2.0 * bins));
  // Pixel 0 has the whole tail below -1: 0.6225 sigma(-1.93).
  EXPECT_NEAR(counts[0] / kDraws, 0.0789, 0.003);
}

TEST(SampleLogisticMixture, TiesLaterChannelsToEarlierOnes) {
  Random random(1);
  const float big = 20;  // tanh = 1
  // One component; a_0 = a_2 = big, a_1 = 0: mu_1 = m_1 + x_0, mu_2 = m_2 + x_1.
  const std::vector<float> params{0, 0.5f, -7, big, 0.1f, -7, 0, 0.2f, -7, big};
  std::vector<uint8_t> pixels(3);
  SampleLogisticMixture(params, 0, random, pixels);
  EXPECT_THAT(pixels, testing::ElementsAre(191, 204, 230));  // x = 0.5, 0.6, 0.8
}

TEST(SampleLogisticMixture, NamesTheParameterThatIsNotFinite) {  // C7
  Random random(1);
  const auto message = [&](size_t column) {
    return MessageOf([&] {
      std::vector<float> params(30, 0.0f);
      params[column] = NAN;
      uint8_t pixel;
      SampleLogisticMixture(params, 1, random, {&pixel, 1});
    });
  };
  const std::string head = "[sampler] mixture parameters must be finite, but ";
  EXPECT_EQ(message(4), head + "logit 4 of channel 0 is nan");
  EXPECT_EQ(message(13), head + "mean 3 of channel 0 is nan");
  EXPECT_EQ(message(29), head + "log-scale 9 of channel 0 is nan");
}

TEST(Sampler, RepetitionIsPenalisedOnceASymbol) {
  const std::vector<float> logits = {2, -2, 0, 4};
  std::vector<float> penalised(4);
  PenaliseRepetition(std::vector<int32_t>{0, 1, -1, 0, 2}, 2, logits, penalised);
  EXPECT_EQ(penalised, (std::vector<float>{1, -4, 0, 4}));
  PenaliseRepetition(std::vector<int32_t>{0, 1, 2, 3}, 1, logits, penalised);
  EXPECT_EQ(penalised, logits);
  std::vector<int32_t> many(1 << 20, -1);  // would take minutes if each were sought in the others
  for (size_t i = 0; i < many.size(); i += 2) many[i] = static_cast<int32_t>(i % 2048 == 0);
  PenaliseRepetition(many, 2, logits, penalised);
  EXPECT_EQ(penalised, (std::vector<float>{1, -4, 0, 4}));
  for (const double wrong : {0.0, -1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    EXPECT_THAT(MessageOf([&] { PenaliseRepetition({}, wrong, logits, penalised); }),
                testing::HasSubstr("penalty must be above 0"));
  }
  EXPECT_THAT(MessageOf([&] { PenaliseRepetition(std::vector<int32_t>{4}, 2, logits, penalised); }),
              testing::HasSubstr("from -1 to 3, but one is 4"));
}

}  // namespace
}  // namespace linattn
