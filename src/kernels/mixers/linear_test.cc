#include "kernels/mixers/linear.h"

#include <gmock/gmock.h>

#include "base/error.h"
#include "kernels/mixer_testing.h"

// What is special to linear; what every mixer owes is in kernels/mixer_suite_test.cc. A-numbers are
// users' cases.
namespace linattn {
namespace {

using namespace mixer_testing;

// One head of one sequence with q, k and v all given.
Problem OneHead(int64_t T, int64_t K, int64_t V, double q, double k, double v) {
  Problem p = MakeProblem(k_linear, {.B = 1, .T = T, .heads = 1, .K = K, .V = V});
  std::fill(p.inputs["q"].values.begin(), p.inputs["q"].values.end(), q);
  std::fill(p.inputs["k"].values.begin(), p.inputs["k"].values.end(), k);
  std::fill(p.inputs["v"].values.begin(), p.inputs["v"].values.end(), v);
  return p;
}

Tensor Steps(const Problem& p) {
  const Call call(k_linear, p, DType::kF32, DType::kF32);
  StepTokens(k_linear, call, States(k_linear, p, 0), 0, p.spec.T);
  return call.Read(false).at("o");
}

// The T x T form, from the paper's equation 8 (and 9 where it is causal): weights phi(q_t) .
// phi(k_s).
TEST(LinearTest, MatchesQuadraticForm) {
  for (const bool causal : {true, false}) {
    for (const char* map : {"elu1", "relu", "squared_relu", "identity"}) {
      Problem p =
          MakeProblem(k_linear, {.B = 1, .T = 67, .heads = 1, .K = 9, .V = 5, .causal = causal});
      p.options.feature_map = &FeatureMapByName(map);
      p.options.normalise = std::string(map) != "identity";
      p.options.scale = 0.7;
      Tensor expected({1, 67, 1, 5}, 0.0);
      std::vector<double> q(67 * 9), k(67 * 9);
      p.options.feature_map->Forward(p.inputs["q"].values.data(), 67, 9, q.data());
      p.options.feature_map->Forward(p.inputs["k"].values.data(), 67, 9, k.data());
      for (int64_t t = 0; t < 67; ++t) {
        double sum = p.options.eps;
        for (int64_t s = 0; s <= (causal ? t : 66); ++s) {
          double weight = 0;
          for (int64_t f = 0; f < 9; ++f) weight += 0.7 * q[t * 9 + f] * k[s * 9 + f];
          sum += weight;
          for (int64_t c = 0; c < 5; ++c)
            expected.values[t * 5 + c] += weight * p.inputs["v"].values[s * 5 + c];
        }
        for (int64_t c = 0; c < 5 && p.options.normalise; ++c) expected.values[t * 5 + c] /= sum;
      }
      EXPECT_LE(RelativeError(Reference(k_linear, p).at("o"), expected), 1e-12) << map;
      OnEveryTarget(
          [&] { EXPECT_LE(RelativeError(Fast(k_linear, p).at("o"), expected), 5e-6) << map; });
    }
  }
}

TEST(LinearTest, GradientsOfEveryFeatureMapMatchTheReference) {
  const ElementwiseMap softplus(
      "softplus", [](double x) { return std::log1p(std::exp(x)); },
      [](double x) { return 1 / (1 + std::exp(-x)); });
  std::vector<const FeatureMap*> maps(AllFeatureMaps().begin(), AllFeatureMaps().end());
  maps.push_back(&softplus);
  for (const FeatureMap* map : maps) {
    SCOPED_TRACE(map->name());
    for (const bool causal : {true, false}) {
      Problem p = MakeProblem(k_linear, {.B = 1,
                                         .T = 45,
                                         .group = 2,
                                         .K = 9,
                                         .V = 7,
                                         .causal = causal,
                                         .states = true,
                                         .feature_map = map});
      const std::string_view name = map->name();
      p.options.normalise =
          name != "identity" && name != "l2" && name != "hadamard";  // either sign
      p.options.eps =
          0.5;  // relu features can all vanish; keep 1/den, and so the errors, of order one
      p.options.scale = 0.6;
      const Results ref = Reference(k_linear, p, true);
      OnEveryTarget([&] { ExpectClose(k_linear, Fast(k_linear, p, true), ref); });
    }
  }
}

// A user's map (softplus) whose gradient is checked by finite differences of the reference.
TEST(LinearTest, UserSuppliedMapHasItsGradient) {
  const ElementwiseMap softplus(
      "softplus", [](double x) { return std::log1p(std::exp(x)); },
      [](double x) { return 1 / (1 + std::exp(-x)); });
  Problem p = MakeProblem(k_linear, {.B = 1, .T = 4, .heads = 1, .K = 3, .V = 2});
  p.options.feature_map = &softplus;
  const Results fast = Fast(k_linear, p, true);
  const auto loss = [](const Problem& at) {
    double sum = 0;
    const Tensor o = Reference(k_linear, at).at("o");
    for (size_t i = 0; i < o.values.size(); ++i)
      sum += o.values[i] * at.cotangents.at("d_o").values[i];
    return sum;
  };
  for (const char* name : {"q", "k"}) {
    for (size_t i = 0; i < p.inputs[name].values.size(); ++i) {
      Problem up = p, down = p;
      up.inputs[name].values[i] += 1e-5;
      down.inputs[name].values[i] -= 1e-5;
      EXPECT_NEAR(fast.at(std::string("d_") + name).values[i], (loss(up) - loss(down)) / 2e-5, 2e-6)
          << name << "[" << i << "]";
    }
  }
}

TEST(LinearTest, A9NothingHappensAt65536) {
  for (const int64_t T : {65537, 70001}) {
    const Results results = Fast(k_linear, OneHead(T, 1, 1, 0, 0, 1));
    for (const double o : results.at("o").values) ASSERT_NEAR(o, 1, 1e-6);
    EXPECT_EQ(results.at("zT").values[0], static_cast<double>(T));
    EXPECT_EQ(results.at("norm").values.back(), static_cast<double>(T));
  }
}

TEST(LinearTest, A18LongSequenceWithInitialState) {
  const Problem p = MakeProblem(
      k_linear, {.B = 1, .T = 43884, .heads = 1, .K = 64, .V = 64, .states = true, .seed = 18});
  const Results fast = Fast(k_linear, p), ref = Reference(k_linear, p);
  const auto last = [](const Tensor& x) {
    Tensor y({100, 64});
    std::copy(x.values.end() - 6400, x.values.end(), y.values.begin());
    return y;
  };
  EXPECT_LE(RelativeError(last(fast.at("o")), last(ref.at("o"))), 1e-5);
  EXPECT_LE(RelativeError(fast.at("ST"), ref.at("ST")), 1e-5);
}

// exp(-100) = 3.8e-44 is a subnormal float, and its square is 0.
TEST(LinearTest, A21VanishingNormaliserStaysFinite) {
  Problem p = OneHead(5, 1, 1, -100, -100, 0);
  for (int64_t t = 0; t < 5; ++t) p.inputs["v"].values[t] = static_cast<double>(t + 1);
  OnEveryTarget([&] {
    const Results whole = Fast(k_linear, p, true);
    for (const auto& [name, x] : whole)
      for (const double value : x.values) EXPECT_TRUE(std::isfinite(value)) << name;
    EXPECT_LE(RelativeError(Steps(p), whole.at("o"), 1e-30), 1e-6);
  });
}

// Features of 9: the running sums pass float16's largest number, 65504, at the 809th token.
TEST(LinearTest, A22ShortInputsAreSummedInFloat32) {
  Problem p = OneHead(20000, 1, 1, 9, 9, 1);
  p.options.feature_map = &FeatureMapByName("identity");
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    const Results results = Fast(k_linear, p, false, dtype);
    for (const double o : results.at("o").values) ASSERT_NEAR(o, 1, 1e-6);
    EXPECT_EQ(results.at("zT").values[0], 180000);
  }
}

// Features of zero: 0 / eps, whose eps of 1e-8 float16 would round to 0; and 0/0 by definition.
TEST(LinearTest, A22ZeroFeaturesGiveZero) {
  Problem p = OneHead(20, 2, 3, 0, 0, 1);
  p.options.feature_map = &FeatureMapByName("relu");
  for (const double eps : {1e-8, 0.0}) {
    p.options.eps = eps;
    const Results whole = Fast(k_linear, p, true, DType::kF16);
    const Tensor steps = Steps(p);
    for (const auto& [name, x] : whole)
      for (const double value : x.values) EXPECT_TRUE(std::isfinite(value)) << name;
    for (const double o : whole.at("o").values) EXPECT_EQ(o, 0);
    for (const double o : steps.values) EXPECT_EQ(o, 0);
  }
}

// A denominator of 1e-40 is no normal float, and its reciprocal none at all: it counts as 0, in the
// definition too.
TEST(LinearTest, TinyDenominatorsCountAsZero) {
  Problem p = OneHead(20, 1, 2, 1e-20, 1e-20, 3);
  p.options.feature_map = &FeatureMapByName("identity");
  p.options.eps = 0;
  const auto zero = [](double x) { return x == 0; };
  OnEveryTarget([&] {
    const Results fast = Fast(k_linear, p, true);
    for (const Tensor& o : {fast.at("o"), Steps(p), Reference(k_linear, p).at("o")})
      EXPECT_TRUE(std::all_of(o.values.begin(), o.values.end(), zero));
    for (const char* name : {"d_q", "d_k", "d_v"})
      EXPECT_TRUE(std::all_of(fast.at(name).values.begin(), fast.at(name).values.end(), zero));
  });
}

TEST(LinearTest, A23EqualFeaturesGiveTheRunningMean) {
  Problem p = OneHead(5, 1, 1, 0, 0, 0);
  for (int64_t t = 0; t < 5; ++t) p.inputs["v"].values[t] = static_cast<double>(t + 1);
  const Tensor o = Fast(k_linear, p).at("o"), steps = Steps(p);
  for (int64_t t = 0; t < 5; ++t) {
    EXPECT_NEAR(o.values[t], 1 + 0.5 * static_cast<double>(t), 3e-6);
    EXPECT_NEAR(steps.values[t], 1 + 0.5 * static_cast<double>(t), 3e-6);
  }
}

TEST(LinearTest, A30KeyAndValueSizesDiffer) {
  for (const auto& [K, V] : {std::pair<int64_t, int64_t>{5, 3}, {1, 17}, {8, 6}}) {
    const Problem p = MakeProblem(k_linear, {.T = 50, .K = K, .V = V, .states = true});
    const Results ref = Reference(k_linear, p, true);
    const double slack = K == 1 ? 0.1 : 0;
    OnEveryTarget([&] { ExpectClose(k_linear, Fast(k_linear, p, true), ref, slack); });
  }
}

// A state cannot forget single tokens: refused rather than ignored.
TEST(LinearTest, RefusesAWindow) {
  Problem p = OneHead(5, 1, 1, 1, 1, 1);
  p.options.window = 3;
  const auto message = testing::HasSubstr("window must be 0");
  EXPECT_THAT([&] { Fast(k_linear, p); }, testing::ThrowsMessage<Error>(message));
  EXPECT_THAT([&] { Steps(p); }, testing::ThrowsMessage<Error>(message));
}

// Without the normaliser z passes through, and so does its gradient.
TEST(LinearTest, WithoutNormaliserZIsLeftAlone) {
  for (const bool causal : {true, false}) {
    Problem p = MakeProblem(k_linear, {.T = 40, .group = 2, .causal = causal, .states = true});
    p.options.normalise = false;
    const Results ref = Reference(k_linear, p, true), fast = Fast(k_linear, p, true);
    ExpectClose(k_linear, fast, ref);
    EXPECT_EQ(fast.at("zT").values, p.inputs["z0"].values);
    EXPECT_EQ(fast.at("d_z0").values, p.cotangents["d_zT"].values);
  }
}

TEST(LinearTest, StepLeavesOtherSequencesAlone) {
  const Problem p = MakeProblem(k_linear, {.B = 3, .T = 4, .K = 8, .V = 8});
  Problem changed = p;
  for (const char* name : {"q", "k", "v"})
    for (int64_t i = 0; i < 4 * 2 * 8; ++i) changed.inputs[name].values[i] += 1;  // row 0
  const Tensor before = Steps(p), after = Steps(changed);
  const int64_t row = 4 * 2 * 8;
  EXPECT_NE(before.values[0], after.values[0]);
  EXPECT_TRUE(
      std::equal(before.values.begin() + row, before.values.end(), after.values.begin() + row));
}

}  // namespace
}  // namespace linattn
