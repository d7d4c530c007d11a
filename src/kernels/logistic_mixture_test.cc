#include "kernels/logistic_mixture.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <omp.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/error.h"
#include "base/random.h"
#include "base/safetensors.h"
#include "hwy/highway.h"
#include "hwy/targets.h"
#include "kernels/simd_testing.h"

namespace linattn {
namespace {

constexpr double kForwardTolerance = 2e-6;  // float32, stable form: the golden files' README
constexpr double kBackwardTolerance = 3e-5;

// A case in double and, exactly the same numbers, in float.
struct Case {
  int64_t P, M, C;
  std::vector<double> params, d_loglik;
  std::vector<float> params32, d_loglik32;
  std::vector<uint8_t> pixels;

  int64_t columns() const { return (C == 1 ? 3 : 10) * M; }
  Array Params() { return MakeArray(params.data(), {P, columns()}); }
  Array Params32() { return MakeArray(params32.data(), {P, columns()}); }
  Array Pixels() {
    return C == 1 ? MakeArray(pixels.data(), {P}) : MakeArray(pixels.data(), {P, C});
  }
};

double RoundedToBF16(double x) { return ToFloat(ToBF16(static_cast<float>(x))); }

// Means in [-1.3,1.3], log-scales around -3 with some below -7; every pixel value occurs, edges
// often.
Case RandomCase(int64_t P, int64_t M, int64_t C, uint64_t seed) {
  Case c{P, M, C, {}, {}, {}, {}, {}};
  Random random(seed);
  for (int64_t t = 0; t < P; ++t) {
    for (int64_t j = 0; j < c.columns(); ++j) {
      const int64_t group = j / M, kind = group == 0 ? 2 : (group - 1) % (C == 1 ? 2 : 3);
      const double value = kind == 0   ? 2.6 * random.Uniform() - 1.3
                           : kind == 1 ? -3 + 2 * random.Normal()
                                       : random.Normal();
      c.params.push_back(RoundedToBF16(value));
    }
    c.d_loglik.push_back(RoundedToBF16(random.Normal()));
    for (int64_t i = 0; i < C; ++i) {
      const uint64_t pick = random.Below(8);
      c.pixels.push_back(pick == 0 ? 0 : pick == 1 ? 255 : random.Below(256));
    }
  }
  c.params32.assign(c.params.begin(), c.params.end());
  c.d_loglik32.assign(c.d_loglik.begin(), c.d_loglik.end());
  return c;
}

struct Expected {
  std::vector<double> loglik, d_params;
};
Expected Reference(Case& c) {
  Expected e{std::vector<double>(c.P), std::vector<double>(c.params.size())};
  LogisticMixtureForwardRef(c.Params(), c.Pixels(), MakeArray(e.loglik.data(), {c.P}));
  LogisticMixtureBackwardRef(c.Params(), c.Pixels(), MakeArray(c.d_loglik.data(), {c.P}),
                             MakeArray(e.d_params.data(), {c.P, c.columns()}));
  return e;
}

template <class T>
double MaxError(const std::vector<T>& x, const std::vector<double>& reference) {
  double error = 0, size = 0;
  for (size_t i = 0; i < reference.size(); ++i) {
    const double difference = std::abs(x[i] - reference[i]);
    if (!(difference <= error)) error = difference;  // keeps NaN
    size = std::max(size, std::abs(reference[i]));
  }
  return error / size;
}

// One component, one channel: numbers worked out by hand from the definition.
TEST(LogisticMixtureRef, HasTheDefinitionsValues) {
  // mean 0, log-scale 0: P(pixel) = sigma(x + 1/255) - sigma(x - 1/255).
  std::vector<double> params{0.3, 0, 0}, loglik(1);
  const auto value = [&](uint8_t pixel) {
    LogisticMixtureForwardRef(MakeArray(params.data(), {1, 3}), MakeArray(&pixel, {1}),
                              MakeArray(loglik.data(), {1}));
    return loglik[0];
  };
  const double sigma = 1 / (1 + std::exp(1 - 1 / 255.0));
  EXPECT_NEAR(value(0), std::log(sigma), 1e-14);
  EXPECT_NEAR(value(255), std::log(sigma), 1e-14);
  EXPECT_NEAR(value(128), std::log(2 / 255.0 / 4), 2e-5);  // width times the density's maximum 1/4
}

TEST(LogisticMixtureRef, SumsToOneOverThePixelValues) {
  for (int64_t M : {1, 3, 10}) {
    Case c = RandomCase(256, M, 1, 11 + M);
    // Scales of at least e^-4, so that no bin with mass takes the density branch.
    for (int64_t i = 0; i < M; ++i) c.params[2 * M + i] = std::max(c.params[2 * M + i], -4.0);
    for (int64_t t = 0; t < 256; ++t) {
      std::copy_n(c.params.begin(), 3 * M, c.params.begin() + t * 3 * M);
      c.pixels[t] = t;
    }
    double sum = 0;
    for (double loglik : Reference(c).loglik) sum += std::exp(loglik);
    EXPECT_NEAR(sum, 1, 1e-3);  // the density branch is an approximation of at most 1e-5 a bin
  }
}

TEST(LogisticMixtureRef, GradientMatchesFiniteDifferences) {
  for (int64_t C : {1, 3}) {
    Case c = RandomCase(40, 3, C, 5);
    const Expected e = Reference(c);
    const double h = 1e-6;
    for (size_t j = 0; j < c.params.size(); ++j) {
      const int64_t t = j / c.columns();
      const double at = c.params[j];
      double side[2];
      for (int s : {0, 1}) {
        c.params[j] = at + (s == 0 ? -h : h);
        std::vector<double> loglik(c.P);
        LogisticMixtureForwardRef(c.Params(), c.Pixels(), MakeArray(loglik.data(), {c.P}));
        side[s] = loglik[t];
      }
      c.params[j] = at;
      const double numeric = c.d_loglik[t] * (side[1] - side[0]) / (2 * h);
      EXPECT_NEAR(e.d_params[j], numeric, 2e-5 * std::max(1.0, std::abs(numeric))) << j;
    }
  }
}

TEST(LogisticMixture, MatchesFloat64Reference) {
  OnEveryTarget([] {
    for (int64_t C : {1, 3})
      for (int64_t M : {1, 2, 5, 10})
        for (int64_t P : {1, 2, 15, 16, 17, 131}) {
          SCOPED_TRACE(testing::Message() << "C=" << C << " M=" << M << " P=" << P);
          Case c = RandomCase(P, M, C, 100 * P + 10 * M + C);
          const Expected e = Reference(c);
          std::vector<float> loglik(P, NAN), again(P, NAN), d_params(c.params.size(), NAN);
          const Array out = MakeArray(loglik.data(), {P});
          LogisticMixtureForward(c.Params32(), c.Pixels(), out);
          EXPECT_LT(MaxError(loglik, e.loglik), kForwardTolerance);
          LogisticMixtureBackward(c.Params32(), c.Pixels(), MakeArray(c.d_loglik32.data(), {P}),
                                  MakeArray(d_params.data(), {P, c.columns()}),
                                  MakeArray(again.data(), {P}));
          EXPECT_LT(MaxError(d_params, e.d_params), kBackwardTolerance);
          EXPECT_EQ(loglik, again);
        }
  });
}

// Wide logistics, whose bins are so thin that 1 - e^{-2d} would cancel: here loglik is near -6, so
// a bound on the absolute error is a sharp one.
TEST(LogisticMixture, IsExactForWideLogistics) {
  OnEveryTarget([] {
    Case c = RandomCase(64, 1, 1, 4);
    for (int64_t t = 0; t < c.P; ++t) {
      c.params[3 * t + 2] = c.params32[3 * t + 2] = t % 2 == 0 ? 0 : 3;
      c.pixels[t] = 100 + t;
    }
    const Expected e = Reference(c);
    std::vector<float> loglik(c.P);
    LogisticMixtureForward(c.Params32(), c.Pixels(), MakeArray(loglik.data(), {c.P}));
    for (int64_t t = 0; t < c.P; ++t) EXPECT_NEAR(loglik[t], e.loglik[t], 2e-6) << t;
  });
}

class GoldenLogisticMixture : public testing::TestWithParam<const char*> {};

// Somebody else's definition, in double to 1e-10 and in float to the tolerances of its README.
TEST_P(GoldenLogisticMixture, Matches) {
  const auto file = SafetensorsFile::Open(std::string(LINATTN_TESTDATA "/golden/") + GetParam());
  const std::vector<double> loglik = file.Doubles("loglik"), d_params = file.Doubles("dparams");
  const std::vector<double> pixels = file.Doubles("pixels");
  const int64_t P = loglik.size(), C = pixels.size() / P, columns = d_params.size() / P;
  Case c{P,
         columns / (C == 1 ? 3 : 10),
         C,
         file.Doubles("params"),
         file.Doubles("dloglik"),
         file.Floats("params"),
         file.Floats("dloglik"),
         {pixels.begin(), pixels.end()}};
  const Expected e = Reference(c);
  EXPECT_LT(MaxError(e.loglik, loglik), 1e-10);
  EXPECT_LT(MaxError(e.d_params, d_params), 1e-10);
  OnEveryTarget([&] {
    std::vector<float> fast_loglik(P), fast_d_params(c.params.size());
    LogisticMixtureBackward(c.Params32(), c.Pixels(), MakeArray(c.d_loglik32.data(), {P}),
                            MakeArray(fast_d_params.data(), {P, columns}),
                            MakeArray(fast_loglik.data(), {P}));
    EXPECT_LT(MaxError(fast_loglik, loglik), kForwardTolerance);
    EXPECT_LT(MaxError(fast_d_params, d_params), kBackwardTolerance);
  });
}

INSTANTIATE_TEST_SUITE_P(Files, GoldenLogisticMixture,
                         testing::Values("logistic_mixture_m1_wide.safetensors",
                                         "logistic_mixture_m3_clamped.safetensors",
                                         "logistic_mixture_m5_narrow.safetensors",
                                         "extra_logistic_mixture_1ch_m10.safetensors"));

TEST(LogisticMixture, IsTheSameForAnyThreadCount) {
  Case c = RandomCase(1001, 10, 1, 3);
  std::vector<std::vector<float>> results;
  const int before = omp_get_max_threads();
  for (int threads : {1, 2, 3, 7}) {
    omp_set_num_threads(threads);
    std::vector<float> d_params(c.params.size(), NAN);
    LogisticMixtureBackward(c.Params32(), c.Pixels(), MakeArray(c.d_loglik32.data(), {c.P}),
                            MakeArray(d_params.data(), {c.P, c.columns()}));
    results.push_back(d_params);
  }
  omp_set_num_threads(before);
  for (const auto& result : results) EXPECT_EQ(result, results[0]);
}

// Rows inside wider ones, bfloat16, in place, and nothing outside the rows touched.
TEST(LogisticMixture, HonoursStridesAndBF16) {
  Case c = RandomCase(37, 4, 1, 8);
  const Expected e = Reference(c);
  const int64_t columns = c.columns(), pitch = columns + 5;
  std::vector<BF16> wide(c.P * pitch, ToBF16(7));
  for (int64_t t = 0; t < c.P; ++t)
    for (int64_t j = 0; j < columns; ++j) wide[t * pitch + j] = ToBF16(c.params32[t * columns + j]);
  Array params = MakeArray(wide.data(), {c.P, columns});
  params.stride[0] = pitch;
  std::vector<float> loglik(c.P);
  LogisticMixtureBackward(params, c.Pixels(), MakeArray(c.d_loglik32.data(), {c.P}), params,
                          MakeArray(loglik.data(), {c.P}));
  EXPECT_LT(MaxError(loglik, e.loglik), kForwardTolerance);
  double worst = 0;
  for (int64_t t = 0; t < c.P; ++t)
    for (int64_t j = 0; j < pitch; ++j) {
      const float got = ToFloat(wide[t * pitch + j]);
      if (j >= columns) {
        EXPECT_EQ(got, 7) << t << " " << j;
      } else {
        const double want = e.d_params[t * columns + j];
        worst = std::max(worst, std::abs(got - want) - std::abs(want) / 256);  // half a BF16 ulp
      }
    }
  EXPECT_LT(worst, 1e-4);
}

TEST(LogisticMixture, NonFiniteParameterPoisonsItsPositionOnly) {
  const float inf = std::numeric_limits<float>::infinity();
  OnEveryTarget([&] {
    for (float bad : {NAN, inf, -inf})
      for (int64_t column : {0, 3, 6}) {  // a logit, a mean, a log-scale
        Case c = RandomCase(20, 3, 1, 9);
        c.params32[7 * 9 + column] = bad;
        std::vector<float> loglik(c.P), d_params(c.params.size());
        LogisticMixtureBackward(c.Params32(), c.Pixels(), MakeArray(c.d_loglik32.data(), {c.P}),
                                MakeArray(d_params.data(), {c.P, 9}),
                                MakeArray(loglik.data(), {c.P}));
        for (int64_t t = 0; t < c.P; ++t) {
          EXPECT_EQ(std::isfinite(loglik[t]), t != 7) << bad << " in column " << column;
          for (int64_t j = 0; j < 9; ++j)
            EXPECT_EQ(std::isnan(d_params[t * 9 + j]), t == 7) << bad << " in column " << column;
        }
      }
  });
}

// Far tails and extreme scales stay finite, value and gradient.
TEST(LogisticMixture, SurvivesEdges) {
  OnEveryTarget([] {
    for (float mean : {-1e6f, -3.0f, 0.0f, 3.0f, 1e6f})
      for (float scale : {-100.0f, -7.0f, 0.0f, 20.0f, 80.0f, 120.0f})
        for (uint8_t pixel : {0, 1, 128, 254, 255}) {
          std::vector<float> params{0, mean, scale}, loglik(1), d_loglik{1}, d_params(3);
          LogisticMixtureBackward(MakeArray(params.data(), {1, 3}), MakeArray(&pixel, {1}),
                                  MakeArray(d_loglik.data(), {1}),
                                  MakeArray(d_params.data(), {1, 3}),
                                  MakeArray(loglik.data(), {1}));
          EXPECT_TRUE(std::isfinite(loglik[0])) << mean << " " << scale << " " << int{pixel};
          for (float g : d_params)
            EXPECT_TRUE(std::isfinite(g)) << mean << " " << scale << " " << int{pixel};
          if (scale < -7) {
            EXPECT_EQ(d_params[2], 0);
          }
        }
  });
}

TEST(LogisticMixture, RefusesWrongShapes) {
  Case c = RandomCase(6, 2, 1, 1);
  std::vector<float> loglik(6);
  const Array out = MakeArray(loglik.data(), {6});
  const auto message = [&](const Array& params, const Array& pixels, const Array& result) {
    try {
      LogisticMixtureForward(params, pixels, result);
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string("no error");
  };
  EXPECT_EQ(message(MakeArray(c.params32.data(), {4, 7}), MakeArray(c.pixels.data(), {4}), out),
            "[logistic_mixture] params must be [P,3M] for 1 channel(s), but has shape [4,7]");
  EXPECT_THAT(message(c.Params32(), MakeArray(c.pixels.data(), {5}), out),
              testing::HasSubstr("P=6, but is U8 [5]"));
  EXPECT_THAT(message(c.Params32(), MakeArray(c.pixels.data(), {3, 2}), out),
              testing::HasSubstr("but is U8 [3,2]"));
  EXPECT_THAT(message(c.Params32(), c.Pixels(), MakeArray(loglik.data(), {5})),
              testing::HasSubstr("loglik must be F32 [P] = [6], but is F32 [5]"));
  EXPECT_THAT(message(c.Params(), c.Pixels(), out),
              testing::HasSubstr("params must be F32 or BF16 [P,columns], but is F64 [6,6]"));
}

}  // namespace
}  // namespace linattn
