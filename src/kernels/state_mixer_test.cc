// What the state mixers owe beyond mixer_suite_test.cc: how they follow from each other, what gates
// may be, and users' cases (A-numbers) about decays and states. On every SIMD target.
#include "kernels/state_mixer.h"

#include <gmock/gmock.h>

#include "base/error.h"
#include "kernels/mixer_testing.h"

namespace linattn {
namespace {

using namespace mixer_testing;
using testing::HasSubstr;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::vector<const Mixer*> StateMixers(bool with_decay) {
  std::vector<const Mixer*> mixers;
  for (const Mixer* mixer : AllMixers())
    if (mixer->family == Family::kState && (!with_decay || mixer->decay != Decay::kNone))
      mixers.push_back(mixer);
  return mixers;
}

std::string NameOfParam(const testing::TestParamInfo<const Mixer*>& info) {
  return std::string(info.param->name);
}

class StateMixerTest : public testing::TestWithParam<const Mixer*> {
 protected:
  const Mixer& mixer() const { return *GetParam(); }

  void ExpectMatchesReference(const Problem& p) {
    const Results ref = Reference(mixer(), p, true);
    OnEveryTarget([&] { ExpectClose(mixer(), Fast(mixer(), p, true), ref); });
  }
  Tensor Steps(const Problem& p) {
    const Call call(mixer(), p, DType::kF32, DType::kF32);
    StepTokens(mixer(), call, States(mixer(), p, 0), 0, p.spec.T);
    return call.Read(false).at("o");
  }
};
class DecayTest : public StateMixerTest {};

INSTANTIATE_TEST_SUITE_P(All, StateMixerTest, testing::ValuesIn(StateMixers(false)), NameOfParam);
INSTANTIATE_TEST_SUITE_P(All, DecayTest, testing::ValuesIn(StateMixers(true)), NameOfParam);

void Fill(Problem& p, const char* name, double value) {
  auto& values = p.inputs[name].values;
  std::fill(values.begin(), values.end(), value);
}

// Width of one token of an input [1,T,...].
int64_t Width(const Problem& p, const char* name) {
  return static_cast<int64_t>(p.inputs.at(name).values.size()) / p.spec.T;
}

void SetToken(Problem& p, const char* name, int64_t t, double value) {
  const int64_t width = Width(p, name);
  std::fill_n(p.inputs[name].values.begin() + t * width, width, value);
}

// One head of one sequence of ones.
Problem Ones(const Mixer& mixer, int64_t T, int64_t K, double g) {
  Problem p = MakeProblem(mixer, {.B = 1, .T = T, .heads = 1, .K = K, .V = 1, .states = true});
  for (const char* name : {"q", "k", "v", "beta"}) Fill(p, name, 1);
  Fill(p, "g", g);
  Fill(p, "S0", 0);
  p.options.scale = 1;
  return p;
}

// ---- How they follow from each other ----

// The T x T form, by the products of decays between two tokens: with G the running sum of g,
// u_i = beta_i (v_i - rho sum_{j<i} (K_i . exp(G_i - G_j) K_j) u_j),
// o_i = sum_{j<=i} scale (Q_i . exp(G_i - G_j) K_j) u_j.
Tensor QuadraticForm(const Mixer& mixer, const Problem& p) {
  const int64_t T = p.spec.T, K = p.spec.K, V = p.spec.V;
  const auto& q = p.inputs.at("q").values;
  const auto& k = p.inputs.at("k").values;
  const auto& v = p.inputs.at("v").values;
  const auto decay = [&](int64_t i, int64_t j, int64_t f) {  // of channel f after token j, to i
    if (mixer.decay == Decay::kNone) return 1.0;
    const auto& g = p.inputs.at("g").values;
    double sum = 0;
    for (int64_t t = j + 1; t <= i; ++t) sum += mixer.decay == Decay::kScalar ? g[t] : g[t * K + f];
    return std::exp(sum);
  };
  const auto product = [&](const std::vector<double>& x, int64_t i, int64_t j) {
    double sum = 0;
    for (int64_t f = 0; f < K; ++f) sum += x[i * K + f] * decay(i, j, f) * k[j * K + f];
    return sum;
  };
  Tensor u({T, V}, 0.0), o({1, T, 1, V}, 0.0);
  for (int64_t i = 0; i < T; ++i) {
    const bool delta = mixer.write == Write::kDelta;
    const double beta = delta ? p.inputs.at("beta").values[i] : 1;
    for (int64_t c = 0; c < V; ++c) {
      double r = v[i * V + c];
      for (int64_t j = 0; j < i && delta; ++j) r -= product(k, i, j) * u.values[j * V + c];
      u.values[i * V + c] = beta * r;
      for (int64_t j = 0; j <= i; ++j)
        o.values[i * V + c] += p.options.scale * product(q, i, j) * u.values[j * V + c];
    }
  }
  return o;
}

TEST_P(StateMixerTest, MatchesQuadraticForm) {
  const FeatureMap& identity = FeatureMapByName("identity");
  Problem p =
      MakeProblem(mixer(), {.B = 1, .T = 67, .heads = 1, .K = 9, .V = 5, .feature_map = &identity});
  p.options.normalise = false;
  p.options.scale = 0.7;
  const Tensor expected = QuadraticForm(mixer(), p);
  EXPECT_LE(RelativeError(Reference(mixer(), p).at("o"), expected), 1e-12);
  OnEveryTarget([&] {
    EXPECT_LE(RelativeError(Fast(mixer(), p).at("o"), expected), mixer().tolerance.forward);
  });
}

// The general mixer's problem, made from that of one that it contains.
Problem Widened(const Mixer& general, const Mixer& special, const Problem& from) {
  Problem p = from;
  const Spec& s = p.spec;
  const Tensor gates =
      special.decay == Decay::kNone ? Tensor({s.B, s.T, p.HV}, 0.0) : from.inputs.at("g");
  p.inputs["g"] = gates;
  if (general.decay != Decay::kPerChannel) return p;
  p.inputs["g"] = Tensor({s.B, s.T, p.HV, s.K});
  for (size_t i = 0; i < p.inputs["g"].values.size(); ++i)
    p.inputs["g"].values[i] = gates.values[i / s.K];
  return p;
}

// Sums of K neighbours: what d_g of equal channels adds up to.
Tensor SumOfChannels(const Tensor& x, int64_t K) {
  Tensor sum({static_cast<int64_t>(x.values.size()) / K}, 0.0);
  for (size_t i = 0; i < x.values.size(); ++i) sum.values[i / K] += x.values[i];
  return sum;
}

// A12 is the first of them.
TEST(StateMixersTest, ReduceToEachOther) {
  for (const auto& [general, special] : {std::pair{"gated_delta", "delta"},
                                         {"kda", "gated_delta"},
                                         {"gla", "simple_gla"},
                                         {"retention", "simple_gla"},
                                         {"simple_gla", "linear"}}) {
    SCOPED_TRACE(testing::Message() << general << " as " << special);
    const Mixer &wide = MixerByName(general), &narrow = MixerByName(special);
    for (const int64_t T : {7, 50, 70}) {
      Problem p = MakeProblem(narrow, {.T = T,
                                       .group = 2,
                                       .K = 16,
                                       .V = 12,
                                       .states = true,
                                       .feature_map = &FeatureMapByName("identity")});
      p.options.normalise = false;
      p.options.scale = 0.25;
      p.inputs.erase("z0"), p.cotangents.erase("d_zT");
      const Problem same = Widened(wide, narrow, p);
      OnEveryTarget([&] {
        const Results x = Fast(wide, same, true), ref = Fast(narrow, p, true);
        for (const auto& [name, expected] : ref) {
          if (name == "zT" || name == "norm") continue;
          const Tensor found = name == "d_g" && wide.decay == Decay::kPerChannel
                                   ? SumOfChannels(x.at(name), 16)
                                   : x.at(name);
          const bool gradient = name[1] == '_';
          EXPECT_LE(RelativeError(found, expected), gradient ? wide.tolerance.backward : 1e-6)
              << name << " at T=" << T;
        }
      });
    }
  }
}

// ---- Gates ----

// Every mixture of keeping all, forgetting nearly all and all; beta of 0 writes nothing.
TEST_P(StateMixerTest, SurvivesEdgesOfGates) {
  for (const std::vector<double>& gates :
       {std::vector<double>{0}, {-20}, {-kInfinity}, {0, -20, -kInfinity, -0.1, -5, 0, 0}}) {
    for (const std::vector<double>& betas : {std::vector<double>{0}, {1}, {0, 1, 0.5, 2}}) {
      Problem p = MakeProblem(mixer(), {.T = 70, .K = 16, .V = 16, .states = true});
      std::mt19937 random(5);
      for (double& g : p.inputs["g"].values) g = gates[random() % gates.size()];
      for (double& beta : p.inputs["beta"].values) beta = betas[random() % betas.size()];
      ExpectMatchesReference(p);
      EXPECT_LE(RelativeError(Steps(p), Reference(mixer(), p).at("o")), mixer().tolerance.forward);
    }
  }
}

// A1: a gate of minus infinity (or -1e30) makes its token the first of a new sequence, in every
// form and with all gradients.
TEST_P(DecayTest, A1MinusInfinityStartsANewSequence) {
  for (const double gate : {-1e30, -kInfinity}) {
    for (const std::vector<int64_t>& bounds :
         {std::vector<int64_t>{0, 4, 8}, {0, 1, 16, 32, 35}, {0, 15, 31, 40, 63, 64, 65, 80}}) {
      const int64_t T = bounds.back(), N = static_cast<int64_t>(bounds.size()) - 1;
      Problem packed =
          MakeProblem(mixer(), {.B = 1, .T = T, .K = 16, .V = 16, .boundaries = bounds});
      for (int64_t n = 0; n < N; ++n) SetToken(packed, "g", bounds[n], gate);
      Problem p = packed;
      p.spec.boundaries.clear();
      p.N = 1;
      OnEveryTarget([&] {
        const Results expected = Fast(mixer(), packed, true), found = Fast(mixer(), p, true);
        for (const char* name : {"o", "d_q", "d_k", "d_v", "d_g", "d_beta"}) {
          if (!expected.count(name)) continue;
          EXPECT_LE(RelativeError(found.at(name), expected.at(name)), mixer().tolerance.backward)
              << name;
        }
        EXPECT_LE(RelativeError(Steps(p), expected.at("o")), mixer().tolerance.forward);
      });
    }
  }
}

TEST_P(DecayTest, A1CountsFromTheReset) {
  if (mixer().write == Write::kDelta) GTEST_SKIP() << "a key that is there is not added to";
  for (const double gate : {-1e30, -kInfinity}) {
    Problem p = Ones(mixer(), 8, 1, 0);
    SetToken(p, "g", 0, gate), SetToken(p, "g", 4, gate);
    OnEveryTarget([&] {
      EXPECT_THAT(Fast(mixer(), p).at("o").values, testing::ElementsAre(1, 2, 3, 4, 1, 2, 3, 4));
    });
    EXPECT_THAT(Steps(p).values, testing::ElementsAre(1, 2, 3, 4, 1, 2, 3, 4));
  }
}

// A14: the sum of the gates of a chunk goes far below what exp can negate.
TEST_P(DecayTest, A14StrongGatesAddUpBeyondExp) {
  if (mixer().write == Write::kDelta) {
    Problem p = MakeProblem(mixer(), {.T = 131, .K = 32, .V = 32, .states = true});
    for (double& g : p.inputs["g"].values) g = static_cast<float>(g * 20);
    return ExpectMatchesReference(p);
  }
  const Problem p = Ones(mixer(), 70, 1, -5);
  OnEveryTarget([&] {
    const Tensor o = Fast(mixer(), p).at("o");
    const double expected[] = {1, 1.0067379, 1.0067833, 1.0067837};
    for (int64_t t = 0; t < 70; ++t)
      EXPECT_NEAR(o.values[t], expected[std::min<int64_t>(t, 3)], 2e-7) << t;
  });
  Problem two = Ones(mixer(), 70, 2, -5);
  if (mixer().decay != Decay::kPerChannel) return;
  for (int64_t t = 0; t < 70; ++t) two.inputs["g"].values[2 * t + 1] = 0;
  OnEveryTarget([&] {
    const Tensor o = Fast(mixer(), two).at("o");  // the second channel counts the tokens
    for (int64_t t = 3; t < 70; ++t)
      EXPECT_NEAR(o.values[t], 1.0067837 + static_cast<double>(t + 1), 2e-5) << t;
  });
  ExpectMatchesReference(two);
}

TEST_P(DecayTest, A16OneVerySmallDecay) {
  for (const int64_t t : {0, 15, 16, 63}) {
    Problem p = MakeProblem(mixer(), {.B = 1, .T = 64, .K = 16, .V = 16, .states = true});
    SetToken(p, "g", t, -60);
    ExpectMatchesReference(p);
  }
}

// A17: a decay in another convention is refused, wherever it enters, with the gate, its place, its
// value and what it should be; but not where a mask hides it.
TEST_P(DecayTest, A17RefusesAGateAboveZero) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16, DType::kF64}) {
    Problem p = MakeProblem(mixer(), {.B = 1, .T = 256, .heads = 1, .K = 4, .V = 4});
    SetToken(p, "g", 200, 0.5);
    Call call(mixer(), p, dtype, dtype);
    const std::string message = MessageOf([&] {
      if (dtype == DType::kF64) return mixer().forward_ref(call.in, call.out);
      mixer().forward(call.in, call.out, Scratch(mixer(), call.in).get());
    });
    EXPECT_THAT(message, testing::AllOf(HasSubstr(std::string(mixer().name) + "] g must be"),
                                        HasSubstr("natural logarithm"), HasSubstr("at most 0"),
                                        HasSubstr("g[0,200,0"), HasSubstr("is 0.5")));
    EXPECT_THAT(MessageOf([&] {
                  if (dtype == DType::kF64)
                    return mixer().backward_ref(call.in, call.out, call.grad);
                  mixer().backward(call.in, call.out, call.grad, Scratch(mixer(), call.in).get());
                }),
                HasSubstr("is 0.5"));
  }
  Problem p = MakeProblem(mixer(), {.B = 1, .T = 9, .heads = 1, .K = 4, .V = 4});
  SetToken(p, "g", 8, 0.5);
  EXPECT_THAT(MessageOf([&] { Steps(p); }), testing::AllOf(HasSubstr("g[0,0"), HasSubstr("is 0.5")));
  p.spec.lengths = {8};
  EXPECT_EQ(MessageOf([&] { Fast(mixer(), p); }), "no error");
}

TEST_P(DecayTest, NaNGatesShow) {
  Problem p = MakeProblem(mixer(), {.B = 1, .T = 40, .heads = 1, .K = 4, .V = 4});
  SetToken(p, "g", 20, kNaN);
  const auto nan = [](double x) { return std::isnan(x); };
  for (const Tensor& o : {Fast(mixer(), p).at("o"), Steps(p)})
    EXPECT_TRUE(std::all_of(o.values.begin() + 20 * 4, o.values.end(), nan));
}

// A20: positions as a relative decay; r^-t alone would pass float's range at t = 843.
TEST_P(DecayTest, A20LongSumsOfADecay) {
  if (mixer().write == Write::kDelta) GTEST_SKIP() << "a key that is there is not added to";
  const Problem p = Ones(mixer(), 2000, 1, std::log(0.9));
  OnEveryTarget([&] {
    const Tensor o = Fast(mixer(), p).at("o");
    EXPECT_NEAR(o.values[0], 1, 1e-6);
    for (int64_t t = 200; t < 2000; ++t) ASSERT_NEAR(o.values[t], 10, 2e-5) << t;
  });
}

// ---- States ----

// A38, A39: a gradient into the final state reaches g and the initial state; by hand, K = V = 1.
TEST_P(DecayTest, A38GradientsThroughTheFinalState) {
  if (mixer().write == Write::kDelta) GTEST_SKIP() << "other numbers: see the suite";
  Problem p = Ones(mixer(), 3, 1, std::log(0.5));
  Fill(p, "S0", 1);
  p.cotangents["d_o"] = Tensor({1, 3, 1, 1}, 0.0);
  p.cotangents["d_ST"] = Tensor({1, 1, 1, 1}, 1.0);
  OnEveryTarget([&] {
    const Results r = Fast(mixer(), p, true);
    EXPECT_NEAR(r.at("ST").values[0], 1.875, 1e-6);
    EXPECT_NEAR(r.at("d_S0").values[0], 0.125, 1e-7);
    const double d_g[] = {0.125, 0.375, 0.875};
    for (int64_t t = 0; t < 3; ++t) EXPECT_NEAR(r.at("d_g").values[t], d_g[t], 1e-6);
    for (int64_t t = 0; t < 3; ++t) EXPECT_EQ(r.at("d_q").values[t], 0);
  });
}

// A38, A39 for every mixer: only the final state is asked for, or only o.
TEST_P(StateMixerTest, GradientsFlowFromEitherEnd) {
  for (const char* absent : {"d_o", "d_ST"}) {
    Problem p = MakeProblem(mixer(), {.T = 40, .group = 2, .K = 8, .V = 5, .states = true});
    p.cotangents.erase(absent);
    if (std::string(absent) == "d_ST") p.cotangents.erase("d_zT");
    ExpectMatchesReference(p);
    const Tensor d_S0 = Fast(mixer(), p, true).at("d_S0");
    for (const double x : d_S0.values) EXPECT_NE(x, 0) << absent;
  }
}

// A39: the initial state alone can be learned.
TEST_P(StateMixerTest, A39DescentOnTheInitialStateAlone) {
  Problem p = MakeProblem(mixer(), {.B = 1, .T = 5, .K = 4, .V = 4, .states = true});
  p.cotangents.erase("d_ST"), p.cotangents.erase("d_zT");
  const Tensor target = p.cotangents["d_o"];
  double last = kInfinity;
  for (int step = 0; step < 10; ++step) {
    Tensor difference = Fast(mixer(), p).at("o");
    double loss = 0;
    for (size_t i = 0; i < target.values.size(); ++i) {
      difference.values[i] -= target.values[i];
      loss += difference.values[i] * difference.values[i] / 2;
    }
    EXPECT_LT(loss, last);
    last = loss;
    p.cotangents["d_o"] = difference;
    const Tensor d_S0 = Fast(mixer(), p, true).at("d_S0");
    for (size_t i = 0; i < d_S0.values.size(); ++i)
      p.inputs["S0"].values[i] -= 0.05 * d_S0.values[i];
  }
}

// A37: packed lengths against one by one, inputs of size up to 100.
TEST_P(StateMixerTest, A37PackedLargeInputs) {
  const std::vector<int64_t> bounds = {0, 50, 114, 316, 408, 531};
  Problem p = MakeProblem(mixer(), {.B = 1, .T = 531, .K = 16, .V = 16, .boundaries = bounds});
  for (const char* name : {"q", "v"})
    for (double& x : p.inputs[name].values) x = static_cast<float>(x * 30);
  const Tensor packed = Fast(mixer(), p).at("o");
  for (int64_t n = 0; n < p.N; ++n) {
    Problem alone = p;
    alone.spec.boundaries.clear();
    alone.spec.T = bounds[n + 1] - bounds[n], alone.N = 1;
    for (auto* tensors : {&alone.inputs, &alone.cotangents})
      for (auto& [name, x] : *tensors) {
        if (!x.present()) continue;
        const auto width = static_cast<int64_t>(x.values.size()) / 531;
        x.values = {x.values.begin() + bounds[n] * width, x.values.begin() + bounds[n + 1] * width};
        x.shape[1] = alone.spec.T;
      }
    const Tensor o = Fast(mixer(), alone).at("o");
    Tensor part = o;
    const auto width = static_cast<int64_t>(packed.values.size()) / 531;
    std::copy_n(packed.values.begin() + bounds[n] * width, o.values.size(), part.values.begin());
    EXPECT_LE(RelativeError(part, o), 1e-5) << "sequence " << n;
  }
}

TEST_P(StateMixerTest, StateHoldsTheNormaliserOnlyWhereThereIsOne) {
  const MixerDims dims{.B = 1, .H = 2, .HV = 4, .K = 8, .F = 8, .V = 6, .N = 1};
  EXPECT_EQ(mixer().state_floats(dims, {}, 100), 4 * 8 * (mixer().normalised ? 7 : 6));
}

TEST_P(StateMixerTest, CausalOnlyMixersRefuseToBeOtherwise) {
  if (!mixer().causal_only) GTEST_SKIP() << "has both forms";
  Problem p = MakeProblem(mixer(), {.T = 5});
  p.options.causal = false;
  EXPECT_THAT(MessageOf([&] { Fast(mixer(), p); }), HasSubstr("must be causal"));
  EXPECT_THAT(MessageOf([&] { Reference(mixer(), p); }), HasSubstr("must be causal"));
}

TEST_P(StateMixerTest, StepRefusesWhatItWouldMisread) {
  const Problem p = MakeProblem(mixer(), {.B = 1, .T = 1, .K = 4, .V = 4});
  const States states(mixer(), p, 0);
  const auto message = [&](const std::function<void(Call&)>& spoil) {
    Call call(mixer(), p, DType::kF32, DType::kF32);
    spoil(call);
    return MessageOf([&] { StepTokens(mixer(), call, states, 0, 1); });
  };
  EXPECT_EQ(message([](Call&) {}), "no error");
  EXPECT_THAT(message([](Call& c) { c.in.options.eps = -1; }), HasSubstr("eps must be"));
  if (mixer().decay != Decay::kNone) {
    EXPECT_THAT(message([](Call& c) { c.in.g = {}; }), HasSubstr("g must be given"));
    EXPECT_THAT(message([](Call& c) { c.in.g.dtype = DType::kBF16; }), HasSubstr("g must be F32"));
  }
  if (mixer().write == Write::kDelta) {
    EXPECT_THAT(message([](Call& c) { c.in.beta = {}; }), HasSubstr("beta must be given"));
    EXPECT_THAT(message([](Call& c) { c.in.beta.dtype = DType::kF16; }),
                HasSubstr("beta must be F32"));
  }
}

}  // namespace
}  // namespace linattn
