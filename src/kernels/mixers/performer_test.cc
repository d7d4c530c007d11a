#include "kernels/mixers/performer.h"

#include <gmock/gmock.h>

#include "kernels/favor_map.h"
#include "kernels/mixer_testing.h"
#include "kernels/mixers/softmax.h"

// What is special to performer; what every mixer owes is in kernels/mixer_suite_test.cc, the
// published form is held against golden files by tests/golden_check.cc, the maps themselves are
// tested in kernels/favor_map_test.cc. A-numbers are users' cases.
namespace linattn {
namespace {

using namespace mixer_testing;

struct Maps {
  FavorMap query, key;
  Maps(std::span<const float> projection, int64_t K)
      : query(FavorRole::kQuery, projection, K), key(FavorRole::kKey, projection, K) {}
  void Use(Problem& p) const {
    p.options.feature_map = &query;
    p.options.key_map = &key;
  }
};

// More features bring the output nearer to softmax's, which has K^-1/2 for its scale.
TEST(PerformerTest, ApproachesSoftmaxWithItsFeatures) {
  constexpr int64_t K = 8;
  for (const bool causal : {true, false}) {
    const Spec spec{.B = 1, .T = 40, .heads = 1, .K = K, .V = 4, .causal = causal, .seed = 3};
    // The estimate's spread grows with exp(|q + k|^2): shorter vectors need fewer features.
    const auto halve = [](Problem p) {
      for (const char* name : {"q", "k"})
        for (double& x : p.inputs[name].values) x *= 0.5;
      return p;
    };
    const Tensor truth = Reference(k_softmax, halve(MakeProblem(k_softmax, spec))).at("o");
    std::vector<double> errors;
    for (const int64_t M : {16, 256, 4096}) {
      const Maps maps(OrthogonalProjection(M, K, 1), K);
      Spec with = spec;
      with.feature_map = &maps.query;
      Problem p = halve(MakeProblem(k_performer, with));
      maps.Use(p);
      errors.push_back(RelativeError(Fast(k_performer, p).at("o"), truth));
    }
    EXPECT_LT(errors[1], errors[0]);
    EXPECT_LT(errors[2], errors[1]);
    EXPECT_LT(errors[2], 0.1);
  }
}

// The T x T form of section 2.2: weights phi(q_t) . phi(k_s).
TEST(PerformerTest, MatchesQuadraticForm) {
  constexpr int64_t T = 37, K = 6, V = 3;
  const Problem p = MakeProblem(k_performer, {.B = 1, .T = T, .heads = 1, .K = K, .V = V});
  const FeatureMap& phi = FeatureMapByName("favor");
  const auto F = static_cast<size_t>(phi.Features(K));
  std::vector<double> q(T * F), k(T * F);
  phi.Forward(p.inputs.at("q").values.data(), T, K, q.data());
  phi.OfKeys().Forward(p.inputs.at("k").values.data(), T, K, k.data());
  Tensor expected({1, T, 1, V}, 0.0);
  for (int64_t t = 0; t < T; ++t) {
    double sum = p.options.eps;
    for (int64_t s = 0; s <= t; ++s) {
      double weight = 0;
      for (size_t f = 0; f < F; ++f) weight += q[t * F + f] * k[s * F + f];
      sum += weight;
      for (int64_t c = 0; c < V; ++c)
        expected.values[t * V + c] += weight * p.inputs.at("v").values[s * V + c];
    }
    for (int64_t c = 0; c < V; ++c) expected.values[t * V + c] /= sum;
  }
  EXPECT_LE(RelativeError(Reference(k_performer, p).at("o"), expected), 1e-12);
  OnEveryTarget([&] {
    EXPECT_LE(RelativeError(Fast(k_performer, p).at("o"), expected), k_performer.tolerance.forward);
  });
}

// A model's own projection, with a number of features of its own; grouped value heads.
TEST(PerformerTest, OwnProjectionMatchesTheReference) {
  const Maps maps(OrthogonalProjection(21, 9, 5), 9);
  for (const bool causal : {true, false}) {
    Problem p = MakeProblem(k_performer, {.T = 45,
                                          .group = 2,
                                          .K = 9,
                                          .V = 7,
                                          .causal = causal,
                                          .states = true,
                                          .feature_map = &maps.query});
    maps.Use(p);
    const Results ref = Reference(k_performer, p, true);
    OnEveryTarget([&] { ExpectClose(k_performer, Fast(k_performer, p, true), ref); });
  }
}

// The same projection gives the same numbers: drawn twice from its seed, or saved and read back.
TEST(PerformerTest, A25EvaluationIsRepeatable) {
  const auto projection = OrthogonalProjection(24, 8, 17);
  const auto run = [](const std::vector<float>& w) {
    const Maps maps(w, 8);
    Problem p = MakeProblem(k_performer, {.T = 50, .feature_map = &maps.query});
    maps.Use(p);
    return Fast(k_performer, p, true);
  };
  const Results first = run(projection), again = run(projection);
  const Results redrawn = run(OrthogonalProjection(24, 8, 17));
  const Results other = run(OrthogonalProjection(24, 8, 18));
  for (const auto& [name, x] : first) {
    EXPECT_EQ(x.values, again.at(name).values) << name;
    EXPECT_EQ(x.values, redrawn.at(name).values) << name;
  }
  EXPECT_NE(first.at("o").values, other.at("o").values);
}

// Long keys, whose features are all but their floor, and none at all of the past: no 0/0.
TEST(PerformerTest, LongKeysStayFinite) {
  for (const double size : {30.0, 1e4, 1e15}) {
    Problem p = MakeProblem(k_performer, {.B = 1, .T = 20});
    for (const char* name : {"q", "k"})
      for (double& x : p.inputs[name].values) x *= size;
    OnEveryTarget([&] {
      for (const auto& [name, x] : Fast(k_performer, p, true))
        for (const double value : x.values) EXPECT_TRUE(std::isfinite(value)) << name << size;
    });
  }
}

}  // namespace
}  // namespace linattn
