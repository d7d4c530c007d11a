#include "ops/mix_op.h"

#include <gtest/gtest.h>
#include <torch/utils.h>

#include <string>
#include <tuple>

#include "base/error.h"
#include "ops/gradcheck.h"

namespace linattn {
namespace {

using at::Tensor;

struct Sizes {
  int64_t B = 2, T = 5, H = 2, HV = 4, K = 3, V = 2;
};

// Inputs of a mixer, in its own shapes; state mixers get S0, and z0 if they normalise. The sizes of
// g and beta are those of the mixer's policies. Cache mixers: H query heads read HV key heads, so
// the two are swapped.
MixTensors RandomInputs(const Mixer& mixer, Sizes s, at::ScalarType type = at::kDouble) {
  const auto random = [&](at::IntArrayRef shape) { return at::randn(shape, type); };
  MixTensors in;
  const bool state = mixer.family == Family::kState;
  if (!state) std::swap(s.H, s.HV);
  in.q = random({s.B, s.T, s.H, s.K});
  in.k = random({s.B, s.T, state ? s.H : s.HV, s.K});
  in.v = random({s.B, s.T, s.HV, s.V});
  if (!state) return in;
  const auto sums = type == at::kDouble ? at::kDouble : at::kFloat;
  const int64_t F = FeatureMapByName(mixer.feature_map).Features(s.K);
  in.S0 = at::randn({s.B, s.HV, F, s.V}, sums);
  if (mixer.normalised) in.z0 = at::rand({s.B, s.HV, F}, sums) + 1;
  // Its keys have norm 1, else the state grows from token to token.
  if (mixer.write == Write::kDelta) in.options.feature_map = &FeatureMapByName("l2");
  if (mixer.decay != Decay::kNone) {
    std::vector<int64_t> shape{s.B, s.T, s.HV};
    if (mixer.decay == Decay::kPerChannel) shape.push_back(s.K);
    in.g = -at::rand(shape, type) - 0.01;  // a step up stays below 0
  }
  if (mixer.write == Write::kDelta) in.beta = at::rand({s.B, s.T, s.HV}, type);
  return in;
}

double GradientErrorOf(const Mixer& mixer, const MixTensors& in) {
  const TensorList leaves{in.q, in.k, in.v, in.g, in.beta, in.S0, in.z0};
  for (auto& x : leaves)
    if (x.defined()) x.requires_grad_();
  const auto f = [&] {
    const auto out = Mix(mixer, in);
    return TensorList{out.o, out.ST, out.zT};
  };
  return GradientError(f, leaves);
}

class EveryMixer : public testing::TestWithParam<const Mixer*> {
 protected:
  void SetUp() override { torch::manual_seed(11); }
  const Mixer& mixer = *GetParam();
};

// Central differences of step 1e-5 in float64 are good to about 1e-9.
constexpr double kTolerance = 1e-7;

TEST_P(EveryMixer, GradientsOfEveryInput) {
  for (const bool causal : {true, false}) {
    if (!causal && mixer.causal_only) continue;
    auto in = RandomInputs(mixer, {});
    in.options.causal = causal;
    EXPECT_LT(GradientErrorOf(mixer, in), kTolerance) << "causal " << causal;
  }
}

TEST_P(EveryMixer, GradientsWithoutStates) {
  auto in = RandomInputs(mixer, {});
  in.S0.reset(), in.z0.reset();
  in.final_state = false;
  EXPECT_LT(GradientErrorOf(mixer, in), kTolerance);
}

TEST_P(EveryMixer, GradientsUnderAMask) {
  auto in = RandomInputs(mixer, {});
  in.mask = at::ones({2, 5}, at::kBool);
  in.mask[0][0] = false, in.mask[0][2] = false, in.mask[1][4] = false;
  EXPECT_LT(GradientErrorOf(mixer, in), kTolerance);
  auto by_length = RandomInputs(mixer, {});
  by_length.lengths = at::tensor({3, 0}, at::kLong);
  EXPECT_LT(GradientErrorOf(mixer, by_length), kTolerance);
}

TEST_P(EveryMixer, GradientsOfPackedSequences) {
  auto in = RandomInputs(mixer, {.B = 1, .T = 7});
  for (auto* state : {&in.S0, &in.z0})
    if (state->defined()) *state = at::cat({*state, *state + 0.5, *state * 0.5});
  in.boundaries = at::tensor({0, 3, 3, 7}, at::kLong);
  EXPECT_LT(GradientErrorOf(mixer, in), kTolerance);
}

TEST_P(EveryMixer, CrossGradients) {
  auto in = RandomInputs(mixer, {.T = 4});
  if (mixer.causal_only || mixer.self_only) return;
  const auto keys = RandomInputs(mixer, {.T = 6});
  in.k = keys.k, in.v = keys.v;
  in.options.cross = true, in.options.causal = false;
  EXPECT_LT(GradientErrorOf(mixer, in), kTolerance);
}

// Fast float32 against the reference, through autograd, from strided views (slices of one fused
// array).
TEST_P(EveryMixer, Float32AndBFloat16MatchFloat64) {
  const Sizes s{.B = 2, .T = 70, .H = 2, .HV = 2, .K = 8, .V = 6};
  auto base = RandomInputs(mixer, s, at::kFloat);
  const Tensor fused = at::randn({s.B, s.T, s.H, 2 * s.K + s.V}).to(at::kBFloat16).to(at::kFloat);
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    const auto run = [&](at::ScalarType inputs, at::ScalarType sums) {
      const Tensor x = fused.detach().to(inputs).requires_grad_();
      auto parts = x.split_with_sizes({s.K, s.K, s.V}, -1);
      MixTensors in = base;
      in.q = parts[0], in.k = parts[1], in.v = parts[2];
      for (auto* t : {&in.S0, &in.z0})
        if (t->defined()) *t = t->to(sums);
      for (auto* t : {&in.g, &in.beta})
        if (t->defined()) *t = t->detach().to(sums).requires_grad_();
      const auto out = Mix(mixer, in);
      (out.o.to(at::kDouble) * at::cos(at::arange(out.o.numel(), at::kDouble)).view_as(out.o))
          .sum()
          .backward();
      TensorList results{out.o.to(at::kDouble), x.grad().to(at::kDouble)};
      for (const auto& t : {in.g, in.beta})
        if (t.defined()) results.push_back(t.grad().to(at::kDouble));
      return results;
    };
    const auto ref = run(at::kDouble, at::kDouble), fast = run(type, at::kFloat);
    // bfloat16: inputs are exact, results rounded to 8 bits
    const double bounds[] = {type == at::kFloat ? mixer.tolerance.forward : 8e-3,
                             type == at::kFloat ? mixer.tolerance.backward : 8e-3};
    for (size_t i = 0; i < ref.size(); ++i)
      EXPECT_LT(((fast[i] - ref[i]).abs().max() / ref[i].abs().max()).item<double>(), bounds[i > 0])
          << c10::toString(type) << (i > 0 ? " gradient " : " o ") << i;
  }
}

// What a projection wrote, handed over whole: the same bits, and one gradient for all of it.
TEST_P(EveryMixer, PackedHeadsAreTheSame) {
  for (const auto type : {at::kDouble, at::kFloat}) {
    const auto apart = RandomInputs(mixer, {}, type);
    auto in = apart;
    in.packed = {.heads = apart.q.size(2),
                 .key_heads = apart.k.size(2),
                 .value_heads = apart.v.size(2),
                 .key_dim = 3,
                 .value_dim = 2};
    in.packed.all = at::cat({apart.q.flatten(2), apart.k.flatten(2), apart.v.flatten(2)}, 2);
    in.packed.all.requires_grad_();
    in.q.reset(), in.k.reset(), in.v.reset();
    for (const auto* x : {&apart.q, &apart.k, &apart.v}) x->requires_grad_();
    const Tensor o = Mix(mixer, in).o, expected = Mix(mixer, apart).o;
    const Tensor d_o = at::randn(o.sizes(), type);
    o.backward(d_o), expected.backward(d_o);
    EXPECT_TRUE(at::equal(o, expected));
    const auto flat = [](const Tensor& x) { return x.grad().flatten(2); };
    const Tensor together = at::cat({flat(apart.q), flat(apart.k), flat(apart.v)}, 2);
    EXPECT_TRUE(at::equal(in.packed.all.grad(), together));
  }
}

TEST(MixOp, PackedHeadsOfTheWrongSizeAreRefused) {
  MixTensors in;
  in.packed = {at::randn({1, 2, 11}), 1, 1, 1, 4, 4};
  EXPECT_THROW(Mix("linear", in), Error);
  in.packed.all = at::randn({1, 2, 12});
  EXPECT_EQ(Mix("linear", in).o.sizes(), (std::vector<int64_t>{1, 2, 1, 4}));
  in.q = at::randn({1, 2, 1, 4});
  EXPECT_THROW(Mix("linear", in), Error);
}

TEST_P(EveryMixer, NoGradientForWhatNeedsNone) {
  auto in = RandomInputs(mixer, {}, at::kFloat);
  in.v.requires_grad_();
  Mix(mixer, in).o.sum().backward();
  EXPECT_TRUE(in.v.grad().defined());
  EXPECT_FALSE(in.q.grad().defined());
}

TEST_P(EveryMixer, ErrorsNameTheMixerAndTheInput) {
  auto in = RandomInputs(mixer, {}, at::kFloat);
  in.v = in.v.narrow(1, 0, 4);
  try {
    Mix(mixer, in);
    FAIL() << "accepted a v that is too short";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find(std::string(mixer.name) + "] v must be"),
              std::string::npos)
        << e.what();
  }
  auto mixed = RandomInputs(mixer, {}, at::kFloat);
  mixed.k = mixed.k.to(at::kDouble);
  EXPECT_THROW(Mix(mixer, mixed), Error);
}

INSTANTIATE_TEST_SUITE_P(Registry, EveryMixer,
                         testing::ValuesIn(AllMixers().begin(), AllMixers().end()),
                         [](const auto& info) { return std::string(info.param->name); });

// A23: the running mean of the values. A39: a loss reaches the initial state.
TEST(MixOp, LinearIsARunningMeanAndStateLearns) {
  MixTensors in;
  in.q = in.k = at::zeros({1, 5, 1, 1});
  in.v = at::arange(1, 6, at::kFloat).view({1, 5, 1, 1});
  in.options.eps = 0;
  const Tensor expected = at::tensor({1.0, 1.5, 2.0, 2.5, 3.0}, at::kFloat);
  EXPECT_TRUE(at::allclose(Mix("linear", in).o.flatten(), expected));
  in.S0 = at::ones({1, 1, 1, 1}).requires_grad_();
  in.z0 = at::ones({1, 1, 1});
  Mix("linear", in).ST.sum().backward();
  EXPECT_EQ(in.S0.grad().item<float>(), 1);
}

// A decay of its own for each head, the same for all tokens, expanded; learned for once.
TEST(MixOp, GateAsAView) {
  torch::manual_seed(7);
  const Mixer& mixer = MixerByName("retention");
  auto in = RandomInputs(mixer, {}, at::kFloat);
  const Tensor heads = at::tensor({-0.1, -0.2, -0.3, -0.4}, at::kFloat).requires_grad_();
  in.g = heads.expand({2, 5, 4});
  Tensor o = Mix(mixer, in).o;
  o.sum().backward();
  const Tensor gradient = heads.grad().clone();
  heads.mutable_grad().reset();
  in.g = heads.expand({2, 5, 4}).contiguous();
  const Tensor same = Mix(mixer, in).o;
  same.sum().backward();
  EXPECT_TRUE(at::equal(o, same));
  EXPECT_TRUE(at::equal(gradient, heads.grad()));
}

TEST(MixOp, FeatureMapOfTheUser) {
  torch::manual_seed(5);
  static const ElementwiseMap softplus(
      "softplus", [](double x) { return std::log1p(std::exp(x)); },
      [](double x) { return 1 / (1 + std::exp(-x)); });
  auto in = RandomInputs(MixerByName("linear"), {});
  in.options.feature_map = &softplus;
  EXPECT_LT(GradientErrorOf(MixerByName("linear"), in), kTolerance);
}

}  // namespace
}  // namespace linattn
