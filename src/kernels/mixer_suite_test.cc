// What every mixer of the registry owes, on every SIMD target that this machine can run. What is
// special to one stands beside it in mixers/<name>_test.cc.
#include <gmock/gmock.h>
#include <sys/mman.h>

#include "base/error.h"
#include "kernels/mixer_testing.h"

namespace linattn {
namespace {

using namespace mixer_testing;
using testing::HasSubstr;

class MixerSuite : public testing::TestWithParam<const Mixer*> {
 protected:
  const Mixer& mixer() const { return *GetParam(); }
  bool state() const { return mixer().family == Family::kState; }

  // One of each kind of problem.
  static std::vector<Spec> Specs() {
    return {{},
            {.T = 70, .group = 2, .K = 17, .V = 33, .states = true},
            {.B = 1, .T = 131, .K = 64, .V = 64, .states = true},
            {.T = 37, .causal = false, .states = true},
            {.T = 19, .S = 75, .group = 3, .K = 16, .V = 20, .causal = false, .states = true}};
  }

  // Mixers whose tokens have an order have no other form than the causal one; some take no keys of
  // another sequence.
  bool Has(const Spec& spec) const {
    return (spec.causal || !mixer().causal_only) && (spec.S < 0 || !mixer().self_only);
  }
  std::vector<bool> CausalAndNot() const {
    return mixer().causal_only ? std::vector{true} : std::vector{true, false};
  }

  void ExpectMatchesReference(const Spec& spec, bool backward) {
    if (!Has(spec)) return;
    SCOPED_TRACE(testing::Message() << "T=" << spec.T << " K=" << spec.K << " V=" << spec.V);
    const Problem p = MakeProblem(mixer(), spec);
    const Results ref = Reference(mixer(), p, backward);
    // One feature: a normalised output does not depend on q, and d_q is what cancellation leaves;
    // with the directions of keys (lsh) d_k is that, divided by |k|.
    const double floor = spec.K > 1 ? 0 : mixer().shared_qk ? 1 : 0.1;
    OnEveryTarget([&] { ExpectClose(mixer(), Fast(mixer(), p, backward), ref, floor); });
  }
};

INSTANTIATE_TEST_SUITE_P(All, MixerSuite, testing::ValuesIn(AllMixers().begin(), AllMixers().end()),
                         [](const auto& info) { return std::string(info.param->name); });

// ---- Values ----

TEST_P(MixerSuite, MatchesFloat64Reference) {
  for (const Spec& spec : Specs()) ExpectMatchesReference(spec, false);
}

TEST_P(MixerSuite, BackwardMatchesBackwardRef) {
  for (const Spec& spec : Specs()) ExpectMatchesReference(spec, true);
}

// The loss whose gradients backward_ref gives: sum(o d_o) + sum(ST d_ST) + sum(zT d_zT).
double Loss(const Mixer& mixer, const Problem& p) {
  const Results results = Reference(mixer, p);
  double loss = 0;
  for (const auto& [name, cotangent] : p.cotangents)
    for (size_t i = 0; i < cotangent.values.size(); ++i)
      loss += cotangent.values[i] * results.at(name.substr(2)).values[i];
  return loss;
}

TEST_P(MixerSuite, BackwardRefMatchesFiniteDifferences) {
  for (Spec spec : {Spec{.T = 5, .K = 3, .V = 2, .states = true}, Spec{.B = 1,
                                                                  .T = 4,
                                                                  .S = 6,
                                                                  .heads = 1,
                                                                  .group = 2,
                                                                  .K = 2,
                                                                  .V = 3,
                                                                  .causal = false,
                                                                  .states = true}}) {
    if (!Has(spec)) continue;
    const Problem p = MakeProblem(mixer(), spec);
    const Results ref = Reference(mixer(), p, true);
    for (const auto& [name, input] : p.inputs) {
      for (size_t i = 0; i < input.values.size(); ++i) {
        constexpr double kStep = 1e-5;
        Problem moved = p;
        double& x = moved.inputs[name].values[i];
        x = input.values[i] + kStep;
        const double up = Loss(mixer(), moved);
        x = input.values[i] - kStep;
        const double slope = (up - Loss(mixer(), moved)) / (2 * kStep);
        EXPECT_NEAR(ref.at("d_" + name).values[i], slope, 1e-7 * std::max(1.0, std::abs(slope)))
            << name << "[" << i << "]";
      }
    }
  }
}

// K or V of 1, odd, not a multiple of a vector; no tokens; one token.
TEST_P(MixerSuite, SurvivesEdges) {
  for (const int64_t K : {1, 2, 5, 17, 63})
    for (const int64_t V : {1, 3, 17, 66})
      ExpectMatchesReference({.B = 1, .T = 35, .heads = 1, .K = K, .V = V, .states = true}, true);
  for (const int64_t T : {0, 1})
    for (const bool causal : CausalAndNot())
      ExpectMatchesReference({.T = T, .causal = causal, .states = true}, true);
  ExpectMatchesReference({.T = 3, .S = 0, .causal = false, .states = true}, true);
  ExpectMatchesReference({.T = 0, .S = 3, .causal = false, .states = true}, true);
}

// ---- One sequence, several ways (A7, A11, B1) ----

// 1..129 and 1334 are the lengths that users met trouble at; the others surround chunks of 16, 32
// and 64.
TEST_P(MixerSuite, ChunkwiseEqualsRecurrent) {
  for (const int64_t T :
       {1, 2, 7, 8, 15, 16, 17, 31, 32, 33, 55, 63, 64, 65, 103, 127, 129, 199, 1334}) {
    SCOPED_TRACE(T);
    const Problem p = MakeProblem(mixer(), {.B = 1, .T = T, .K = 16, .V = 16});
    const Results whole = Fast(mixer(), p);
    const Call call(mixer(), p, DType::kF32, DType::kF32);
    StepTokens(mixer(), call, States(mixer(), p, T), 0, T);
    EXPECT_LE(RelativeError(call.Read(false).at("o"), whole.at("o")), mixer().tolerance.forward);
  }
}

TEST_P(MixerSuite, StepEqualsForward) {
  for (const Spec& spec : {Spec{.B = 3, .T = 40, .group = 2, .K = 8, .V = 7, .states = true},
                           Spec{.B = 2, .T = 9, .K = 33, .V = 65, .states = true},
                           Spec{.B = 40, .T = 3, .K = 64, .V = 64, .states = true}}) {
    const Problem p = MakeProblem(mixer(), spec);
    OnEveryTarget([&] {
      const Results whole = Fast(mixer(), p);
      const Call call(mixer(), p, DType::kF32, DType::kF32);
      const States states(mixer(), p, spec.T);
      StepTokens(mixer(), call, states, 0, spec.T);
      EXPECT_LE(RelativeError(call.Read(false).at("o"), whole.at("o")), mixer().tolerance.forward);
      if (!state()) return;
      Tensor S = whole.at("ST"), z = mixer().normalised ? whole.at("zT") : Tensor();
      const int64_t s = S.values.size() / spec.B, n = z.values.size() / spec.B;
      for (int64_t b = 0; b < spec.B; ++b) {
        std::copy_n(states.block(b), s, S.values.begin() + b * s);
        std::copy_n(states.block(b) + s, n, z.values.begin() + b * n);
      }
      EXPECT_LE(RelativeError(S, whole.at("ST")), mixer().tolerance.forward);
      if (n > 0) {
        EXPECT_LE(RelativeError(z, whole.at("zT")), mixer().tolerance.forward);
      }
    });
  }
}

const std::vector<std::vector<int64_t>> kSplits = {
    {10}, {3, 4, 3}, {1, 1, 1, 1, 1, 1, 1, 1, 1, 1}, {9, 1}};

// Pieces of one token go through `step`, longer ones through `prefill`.
TEST_P(MixerSuite, StateHandOffEqualsOneRun) {
  const Problem p = MakeProblem(mixer(), {.T = 10, .group = 2, .states = true});
  const Results whole = Fast(mixer(), p);
  for (const auto& split : kSplits) {
    const Call call(mixer(), p, DType::kF32, DType::kF32);
    const States states(mixer(), p, 12);
    int64_t t = 0;
    for (const int64_t length : split) {
      const auto run = length == 1 ? StepTokens : PrefillTokens;
      run(mixer(), call, states, t, t + length);
      t += length;
    }
    EXPECT_LE(RelativeError(call.Read(false).at("o"), whole.at("o")), 1e-5);
  }
}

// A40: a prompt of one token and one step leave the same kind of state, and so does one of two.
TEST_P(MixerSuite, A40OneTokenLeavesTheSameStateEitherWay) {
  const Problem p = MakeProblem(mixer(), {.T = 2, .group = 2, .states = true});
  const Call call(mixer(), p, DType::kF32, DType::kF32);
  for (const int64_t T : {1, 2}) {
    const States steps(mixer(), p, 5), prompt(mixer(), p, 5);
    StepTokens(mixer(), call, steps, 0, T);
    PrefillTokens(mixer(), call, prompt, 0, T);
    for (int64_t b = 0; b < 2; ++b)
      for (size_t i = 0; i < steps.blocks()[b].size(); ++i)
        EXPECT_NEAR(steps.blocks()[b][i], prompt.blocks()[b][i], 2e-6) << i;
  }
}

// The same through S0, z0 and ST, zT of forward, which may be the same memory.
TEST_P(MixerSuite, StatesInAndOutEqualOneRun) {
  if (!state()) GTEST_SKIP() << "keeps its tokens instead";
  const Problem p = MakeProblem(mixer(), {.B = 1, .T = 10, .states = true});
  const Results whole = Fast(mixer(), p);
  for (const auto& split : kSplits) {
    Call call(mixer(), p, DType::kF32, DType::kF32);
    int64_t t = 0;
    for (const int64_t length : split) {
      MixerInputs in = call.in;
      in.q = Slice(in.q, 0, t, t + length), in.k = Slice(in.k, 0, t, t + length);
      in.v = Slice(in.v, 0, t, t + length), in.g = Slice(in.g, 0, t, t + length);
      in.beta = Slice(in.beta, 0, t, t + length);
      MixerOutputs out{
          .o = Slice(call.out.o, 0, t, t + length), .norm = {}, .ST = in.S0, .zT = in.z0};
      mixer().forward(in, out, Scratch(mixer(), in).get());
      t += length;
    }
    EXPECT_LE(RelativeError(call.Read(false).at("o"), whole.at("o")), 1e-5);
    const Tensor S = call.Input("S0");
    EXPECT_LE(RelativeError(S, whole.at("ST")), 1e-5);
  }
}

// ---- What may and may not influence what ----

TEST_P(MixerSuite, IsCausal) {
  const Problem p = MakeProblem(mixer(), {.B = 1, .T = 70, .K = 16, .V = 16});
  OnEveryTarget([&] {
    const Tensor before = Fast(mixer(), p).at("o");
    for (const int64_t t : {1, 15, 16, 31, 33, 64, 69}) {
      Problem changed = p;
      for (auto& [name, input] : changed.inputs) {
        const int64_t width = input.values.size() / p.spec.T;
        const double change = name == "g" ? 2 : -0.5;  // g stays a decay
        for (int64_t i = 0; i < width; ++i) input.values[t * width + i] *= change;
      }
      const Tensor after = Fast(mixer(), changed).at("o");
      const int64_t width = before.values.size() / p.spec.T;
      const auto first =
          std::mismatch(before.values.begin(), before.values.end(), after.values.begin());
      EXPECT_EQ((first.first - before.values.begin()) / width, t) << "first output that changed";
    }
  });
}

TEST_P(MixerSuite, SameForAnyThreadCount) {
  const Problem p =
      MakeProblem(mixer(), {.T = 75, .heads = 3, .group = 2, .K = 16, .V = 16, .states = true});
  const int threads = omp_get_max_threads();
  omp_set_num_threads(1);
  const Results one = Fast(mixer(), p, true);
  for (const int n : {2, 3, 5}) {
    omp_set_num_threads(n);
    const Results many = Fast(mixer(), p, true);
    for (const auto& [name, expected] : one)
      EXPECT_EQ(many.at(name).values, expected.values) << name << " with " << n << " threads";
  }
  omp_set_num_threads(threads);
}

bool HasNaN(const Tensor& x) {
  return std::any_of(x.values.begin(), x.values.end(), [](double y) { return std::isnan(y); });
}

// Outputs and scratch start as NaN, and Buffer and Scratch check their guard words.
TEST_P(MixerSuite, WritesEverything) {
  for (Spec spec : {Spec{.T = 37, .states = true},
                    Spec{.T = 37, .states = true, .lengths = {0, 20}}, Spec{.T = 0, .states = true},
                    Spec{.B = 1, .T = 7, .states = true, .boundaries = {0, 0, 3, 3, 7, 7}},
                    Spec{.T = 9, .S = 5, .causal = false, .states = true, .k_lengths = {0, 5}}}) {
    if (!Has(spec)) continue;
    const Problem p = MakeProblem(mixer(), spec);
    OnEveryTarget([&] {
      for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16})
        for (const auto& [name, x] : Fast(mixer(), p, true, dtype, dtype))
          EXPECT_FALSE(HasNaN(x)) << name << " in " << NameOf(dtype);
    });
  }
}

// ---- Masks, lengths, packing ----

// Rows of x [1,T,...] at `tokens`.
Tensor Rows(const Tensor& x, const std::vector<int64_t>& tokens) {
  std::vector<int64_t> shape = x.shape;
  const int64_t width = x.values.size() / (x.shape[0] * x.shape[1]);
  shape[0] = 1, shape[1] = static_cast<int64_t>(tokens.size());
  Tensor y(shape);
  for (size_t i = 0; i < tokens.size(); ++i)
    std::copy_n(x.values.begin() + tokens[i] * width, width, y.values.begin() + i * width);
  return y;
}

bool HasTokens(const std::string& name) {
  return name.find("S") == std::string::npos && name.find("z") == std::string::npos;
}

// The problem of those tokens alone. Tokens are counted over all B rows.
Problem Only(const Problem& p, const std::vector<int64_t>& tokens, int64_t sequence) {
  Problem alone = p;
  alone.spec.B = alone.N = 1;
  alone.spec.T = static_cast<int64_t>(tokens.size());
  alone.spec.lengths = alone.spec.mask = alone.spec.boundaries = {};
  for (auto* tensors : {&alone.inputs, &alone.cotangents}) {
    for (auto& [name, x] : *tensors) {
      if (!x.present()) continue;
      if (HasTokens(name)) {
        x = Rows(x, tokens);
      } else {
        const int64_t n = x.values.size() / p.N;
        x.values = {x.values.begin() + sequence * n, x.values.begin() + (sequence + 1) * n};
        x.shape[0] = 1;
      }
    }
  }
  return alone;
}

// Each sequence of `p` gives what it gives alone, states and gradients included. tokens[n]: where
// it lies.
void ExpectSequencesStandAlone(const Mixer& mixer, const Problem& p,
                               const std::vector<std::vector<int64_t>>& tokens, double bound) {
  const Results together = Fast(mixer, p, true);
  for (int64_t n = 0; n < p.N; ++n) {
    SCOPED_TRACE(testing::Message() << "sequence " << n);
    const Problem only = Only(p, tokens[n], n);
    for (const auto& [name, alone] : Fast(mixer, only, true)) {
      const Tensor& all = together.at(name);
      Tensor part = alone;
      if (HasTokens(name)) {
        part = Rows(all, tokens[n]);
      } else {
        const int64_t size = alone.values.size();
        part.values = {all.values.begin() + n * size, all.values.begin() + (n + 1) * size};
      }
      EXPECT_LE(RelativeError(part, alone), bound) << name;
    }
  }
}

std::vector<int64_t> Range(int64_t begin, int64_t end) {
  std::vector<int64_t> x;
  for (int64_t i = begin; i < end; ++i) x.push_back(i);
  return x;
}

// Every token that no sequence has gives exactly 0, forward and backward.
void ExpectZeroElsewhere(const Results& results, const std::vector<std::vector<int64_t>>& tokens) {
  for (const auto& [name, x] : results) {
    if (!HasTokens(name) || name == "norm") continue;
    const int64_t count = x.shape[0] * x.shape[1], width = x.values.size() / count;
    std::vector<bool> valid(count, false);
    for (const auto& list : tokens)
      for (const int64_t t : list) valid[t] = true;
    for (int64_t t = 0; t < count; ++t)
      for (int64_t i = 0; i < width && !valid[t]; ++i)
        EXPECT_EQ(x.values[t * width + i], 0) << name << " of token " << t;
  }
}

// Left padding, holes, right padding, everything masked; what is masked is NaN (A4, A33).
TEST_P(MixerSuite, MasksHideWhateverTheyCover) {
  const std::vector<int64_t> mask = {0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1,   // left padding
                                     1, 0, 1, 1, 0, 0, 1, 1, 1, 1, 0,   // holes
                                     0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};  // nothing left
  for (const bool causal : CausalAndNot()) {
    Problem p =
        MakeProblem(mixer(), {.B = 3, .T = 11, .causal = causal, .states = true, .mask = mask});
    std::vector<std::vector<int64_t>> tokens(3);
    for (size_t i = 0; i < mask.size(); ++i)
      if (mask[i]) tokens[i / 11].push_back(i);
    for (const char* name : {"q", "k", "v", "g", "beta"}) {
      Tensor& x = p.inputs[name];
      const int64_t width = x.values.size() / mask.size();
      for (size_t i = 0; i < x.values.size(); ++i)
        if (!mask[i / width]) x.values[i] = kNaN;
    }
    Tensor& d_o = p.cotangents["d_o"];
    const int64_t width = d_o.values.size() / mask.size();
    for (size_t i = 0; i < d_o.values.size(); ++i)
      if (!mask[i / width]) d_o.values[i] = kNaN;
    OnEveryTarget([&] {
      ExpectSequencesStandAlone(mixer(), p, tokens, 0);
      ExpectZeroElsewhere(Fast(mixer(), p, true), tokens);
      ExpectClose(mixer(), Fast(mixer(), p, true), Reference(mixer(), p, true));
    });
  }
}

TEST_P(MixerSuite, LengthsEqualTheCutSequence) {
  for (const bool causal : CausalAndNot()) {
    const Problem p = MakeProblem(
        mixer(), {.B = 3, .T = 11, .causal = causal, .states = true, .lengths = {11, 7, 0}});
    const std::vector<std::vector<int64_t>> tokens = {Range(0, 11), Range(11, 18), {}};
    ExpectSequencesStandAlone(mixer(), p, tokens, 0);
    ExpectZeroElsewhere(Fast(mixer(), p, true), tokens);
  }
}

// The lengths of A37, and empty segments at the ends and between.
TEST_P(MixerSuite, PackedEqualsOneByOne) {
  const std::vector<int64_t> bounds = {0, 0, 50, 114, 114, 316, 408, 531, 531};
  for (const bool causal : CausalAndNot()) {
    const Problem p = MakeProblem(
        mixer(),
        {.B = 1, .T = 531, .group = 2, .causal = causal, .states = true, .boundaries = bounds});
    std::vector<std::vector<int64_t>> tokens;
    for (size_t n = 0; n + 1 < bounds.size(); ++n)
      tokens.push_back(Range(bounds[n], bounds[n + 1]));
    ExpectSequencesStandAlone(mixer(), p, tokens, 1e-6);
  }
}

// A36: A = 5 tokens, B = 6.
TEST_P(MixerSuite, PackedSequencesDoNotSeeEachOther) {
  Problem p = MakeProblem(mixer(), {.B = 1, .T = 11, .boundaries = {0, 5, 11}});
  auto& d_o = p.cotangents["d_o"].values;
  std::fill_n(d_o.begin(), d_o.size() / 11 * 5, 0.0);  // a loss of B only
  const Results before = Fast(mixer(), p, true);
  for (const char* name : {"d_q", "d_k", "d_v"}) {
    const auto& x = before.at(name).values;
    for (size_t i = 0; i < x.size() / 11 * 5; ++i) EXPECT_EQ(x[i], 0) << name << "[" << i << "]";
  }
  for (const char* name : {"q", "k", "v"}) {
    auto& x = p.inputs[name].values;
    for (size_t i = x.size() / 11 * 4; i < x.size() / 11 * 5; ++i) x[i] += 3;
  }
  const Results after = Fast(mixer(), p, true);
  for (const char* name : {"o", "d_q", "d_k", "d_v"}) {
    const auto &x = before.at(name).values, &y = after.at(name).values;
    EXPECT_TRUE(std::equal(x.begin() + x.size() / 11 * 5, x.end(), y.begin() + y.size() / 11 * 5))
        << name;
  }
}

// ---- Memory, heads, dtypes ----

// A28: q, k, v as column slices of one [B,T,3D] array; states that are slices of larger ones.
TEST_P(MixerSuite, HonoursStrides) {
  const Problem p = MakeProblem(mixer(), {.T = 37, .heads = 2, .K = 8, .V = 8, .states = true});
  const Results expected = Fast(mixer(), p, true);
  Call call(mixer(), p, DType::kF32, DType::kF32);
  const int64_t D = 16, B = 2, T = 37;
  std::vector<float> fused(B * T * 3 * D, NAN), fused_o(B * T * 3 * D, NAN);
  const auto spread = [&](std::vector<float>& memory, Array& a, int64_t slot, bool copy) {
    Array to = a;
    to.data = memory.data() + slot * D;
    to.stride = {T * 3 * D, 3 * D, 8, 1};
    for (int64_t b = 0; b < B && copy; ++b)
      for (int64_t t = 0; t < T; ++t)
        for (int64_t h = 0; h < 2; ++h) std::copy_n(a.At<float>(b, t, h), 8, to.At<float>(b, t, h));
    a = to;
  };
  spread(fused, call.in.q, 0, true), spread(fused, call.in.k, 1, true);
  spread(fused, call.in.v, 2, true), spread(fused_o, call.out.o, 0, false);
  std::vector<float> fused_d(B * T * 3 * D, NAN);
  spread(fused_d, call.grad.d_q, 0, false), spread(fused_d, call.grad.d_k, 1, false);
  spread(fused_d, call.grad.d_v, 2, false);
  mixer().forward(call.in, call.out, Scratch(mixer(), call.in).get());
  mixer().backward(call.in, call.out, call.grad, Scratch(mixer(), call.in).get());
  const auto expect = [&](const char* name, const Array& a) {
    const float* x = nullptr;
    for (int64_t i = 0; i < B * T * D; ++i) {
      x = a.At<float>(i / (T * D), i / D % T, i / 8 % 2, i % 8);
      ASSERT_EQ(*x, expected.at(name).values[i]) << name << "[" << i << "]";
    }
  };
  expect("o", call.out.o);
  expect("d_q", call.grad.d_q), expect("d_k", call.grad.d_k), expect("d_v", call.grad.d_v);
}

// Address space of which only what is touched takes memory.
class SparseMemory {
 public:
  explicit SparseMemory(int64_t floats)
      : bytes_(floats * 4),
        data_(::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {}
  ~SparseMemory() {
    if (ok()) ::munmap(data_, bytes_);
  }
  SparseMemory(const SparseMemory&) = delete;
  bool ok() const { return data_ != MAP_FAILED; }
  float* data() const { return static_cast<float*>(data_); }

 private:
  size_t bytes_;
  void* data_;
};

// A26: tokens so far apart that offsets pass 2^31 elements and 2^32 bytes.
TEST_P(MixerSuite, A26OffsetsAre64Bit) {
  const Problem p = MakeProblem(mixer(), {.B = 2, .T = 35, .heads = 2, .K = 8, .V = 8});
  const Results expected = Fast(mixer(), p, true);
  constexpr int64_t kToken = int64_t{1} << 25, kRow = 35 * kToken, kArray = 1 << 12;
  const SparseMemory memory(2 * kRow);
  if (!memory.ok()) GTEST_SKIP() << "no address space of " << 8 * kRow << " bytes";
  Call call(mixer(), p, DType::kF32, DType::kF32);
  MixerGradients& d = call.grad;
  int64_t slot = 0;
  for (Array* a : {&call.in.q, &call.in.k, &call.in.v, &call.in.g, &call.in.beta, &d.d_o,
                   &call.out.o, &call.out.norm, &d.d_q, &d.d_k, &d.d_v, &d.d_g, &d.d_beta}) {
    if (!a->present()) continue;
    Array far = *a;
    far.data = memory.data() + kArray * slot++;
    far.stride[0] = kRow, far.stride[1] = kToken;
    for (int64_t i = 0; i < 2 * 35; ++i)
      std::copy_n(a->At<float>(i / 35, i % 35), a->stride[1], far.At<float>(i / 35, i % 35));
    *a = far;
  }
  mixer().forward(call.in, call.out, Scratch(mixer(), call.in).get());
  mixer().backward(call.in, call.out, call.grad, Scratch(mixer(), call.in).get());
  for (const auto& [name, a] : {std::pair{"o", call.out.o},
                                {"d_q", d.d_q},
                                {"d_k", d.d_k},
                                {"d_v", d.d_v},
                                {"d_g", d.d_g},
                                {"d_beta", d.d_beta}}) {
    if (!a.present()) continue;
    const auto& values = expected.at(name).values;
    const int64_t width = static_cast<int64_t>(values.size()) / 70;
    for (int64_t i = 0; i < 70 * width; ++i)
      ASSERT_EQ(a.At<float>(i / width / 35, i / width % 35)[i % width], values[i]) << name << i;
  }
}

TEST_P(MixerSuite, RefusesWhatItWouldMisread) {
  const Problem p = MakeProblem(mixer(), {.T = 11});
  const auto message = [&](const std::function<void(MixerInputs&)>& spoil) {
    Call call(mixer(), p, DType::kF32, DType::kF32);
    spoil(call.in);
    return MessageOf([&] { mixer().forward(call.in, call.out, Scratch(mixer(), call.in).get()); });
  };
  EXPECT_EQ(message([](MixerInputs&) {}), "no error");
  EXPECT_THAT(message([](MixerInputs& in) { std::swap(in.v.stride[3], in.v.stride[2]); }),
              HasSubstr("v must be contiguous along its last axis"));
  EXPECT_THAT(
      message([](MixerInputs& in) { in.v.shape[1] = 10; }),
      testing::AllOf(HasSubstr("v must be"), HasSubstr("[2,11,2,6]"), HasSubstr("[2,10,2,6]")));
  EXPECT_THAT(message([](MixerInputs& in) { in.k.dtype = DType::kI32; }),
              HasSubstr("k must be F32"));
  Call wide(mixer(), p, DType::kF32, DType::kF64);
  EXPECT_THAT(MessageOf([&] { mixer().forward(wide.in, wide.out, Scratch(mixer(), wide.in).get()); }),
              HasSubstr("o must be F32"));
  Call floats(mixer(), p, DType::kF32, DType::kF32);
  EXPECT_THAT(MessageOf([&] { mixer().forward_ref(floats.in, floats.out); }),
              HasSubstr("q must be F64 for the reference"));
  Call doubles(mixer(), p, DType::kF64, DType::kF32);
  doubles.out.norm = doubles.out.ST = doubles.out.zT = {};
  EXPECT_THAT(MessageOf([&] {
                mixer().forward(doubles.in, doubles.out, Scratch(mixer(), doubles.in).get());
              }),
              HasSubstr("q must be F32, BF16 or F16"));
  EXPECT_THAT(message([](MixerInputs& in) { in.q.rank = 3; }), HasSubstr("q must be [B,T,H,K]"));
  const std::vector<int64_t> longer = {12, 3}, bounds = {0, 5, 11};
  EXPECT_THAT(
      message([&](MixerInputs& in) { in.segments.lengths = MakeArray(longer.data(), {2}); }),
      testing::AllOf(HasSubstr("T=11"), HasSubstr("12")));
  const std::vector<uint8_t> square(121, 1), ones(22, 1);
  EXPECT_THAT(message([&](MixerInputs& in) {
                in.segments.mask = MakeArray(square.data(), {11, 11});
              }),
              testing::AllOf(HasSubstr("[2,11]"), HasSubstr("[11,11]")));
  EXPECT_THAT(message([&](MixerInputs& in) {
                in.segments.k_mask = MakeArray(ones.data(), {2, 11});
              }),
              HasSubstr("without options.cross"));
  EXPECT_THAT(message([&](MixerInputs& in) {
                in.segments.boundaries = MakeArray(bounds.data(), {3});
                in.segments.mask = MakeArray(ones.data(), {2, 11});
              }),
              HasSubstr("at most one of lengths, mask and boundaries"));  // A3
  EXPECT_THAT(
      message([&](MixerInputs& in) { in.segments.boundaries = MakeArray(bounds.data(), {3}); }),
      HasSubstr("B=1"));
}

// A29: value head j (cache mixers: query head j) reads head j / group.
TEST_P(MixerSuite, GroupedHeadsEqualRepeatedOnes) {
  const Problem p = MakeProblem(mixer(), {.T = 37, .heads = 2, .group = 3});
  Problem repeated = p;
  repeated.H = repeated.HV = 6;
  for (const char* name : {"q", "k", "v"}) {
    const Tensor& x = p.inputs.at(name);
    if (x.shape[2] == 6) continue;
    Tensor y({x.shape[0], x.shape[1], 6, x.shape[3]});
    const int64_t C = x.shape[3];
    for (size_t i = 0; i < y.values.size(); ++i)
      y.values[i] = x.values[(i / C / 6 * 2 + i / C % 6 / 3) * C + i % C];
    repeated.inputs[name] = y;
  }
  OnEveryTarget([&] {
    EXPECT_EQ(RelativeError(Fast(mixer(), p).at("o"), Fast(mixer(), repeated).at("o")), 0);
  });
}

TEST_P(MixerSuite, RefusesHeadsThatDoNotDivide) {
  Problem p = MakeProblem(mixer(), {.T = 5, .heads = 2});
  const char* grown = state() ? "v" : "q";
  p.inputs[grown].shape[2] = 3;
  p.inputs[grown].values.resize(p.inputs[grown].values.size() / 2 * 3);
  Call call(mixer(), p, DType::kF32, DType::kF32);
  EXPECT_THAT(MessageOf([&] { mixer().forward(call.in, call.out, nullptr); }),
              testing::AllOf(HasSubstr("must be a multiple of the key heads"), HasSubstr("3")));
}

// Inputs that both types hold exactly: what is left is float32 arithmetic. Short outputs are
// rounded once.
TEST_P(MixerSuite, ReadsAndWritesShortFloats) {
  const Problem p =
      MakeProblem(mixer(), {.T = 70, .group = 2, .K = 17, .V = 33, .states = true, .exact = true});
  const Results ref = Reference(mixer(), p, true);
  OnEveryTarget([&] {
    for (const DType dtype : {DType::kBF16, DType::kF16}) {
      SCOPED_TRACE(NameOf(dtype));
      ExpectClose(mixer(), Fast(mixer(), p, true, dtype), ref);
      const Results low = Fast(mixer(), p, true, dtype, dtype);
      const double rounding = dtype == DType::kBF16 ? 0x1p-8 : 0x1p-11;
      EXPECT_LE(RelativeError(low.at("o"), ref.at("o")), 1.01 * rounding);
      for (const char* name : {"d_q", "d_k", "d_v", "d_g", "d_beta"})
        if (ref.count(name)) {
          EXPECT_LE(RelativeError(low.at(name), ref.at(name)), 4 * rounding) << name;
        }
    }
  });
}

}  // namespace
}  // namespace linattn
