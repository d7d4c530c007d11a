// What the mixers that keep their tokens owe beyond the shared suite, over their options: patterns,
// windows with sinks, rounds; rings and bfloat16 caches; slots that are reused, copied, rolled
// back.
#include "kernels/cache_mixer.h"

#include <gmock/gmock.h>

#include "base/error.h"
#include "kernels/mixer_testing.h"

namespace linattn {
namespace {

using namespace mixer_testing;

struct Variant {
  std::string name, mixer;
  MixerOptions options;
};

Variant Window(int64_t window, int64_t sinks) {
  MixerOptions options;
  options.window = window, options.sinks = sinks;
  return {"window" + std::to_string(window) + "sinks" + std::to_string(sinks), "softmax", options};
}

Variant Sparse(SparsePattern pattern, int64_t stride, int64_t summary) {
  MixerOptions options;
  options.sparse = {.pattern = pattern, .stride = stride, .summary = summary};
  const bool strided = pattern == SparsePattern::kStrided;
  return {(strided ? "strided" : "fixed") + std::to_string(stride) + "summary" +
              std::to_string(summary),
          "sparse", options};
}

Variant Lsh(int64_t rounds, int64_t buckets, int64_t chunk) {
  MixerOptions options;
  options.lsh = {.rounds = rounds, .buckets = buckets, .chunk = chunk, .seed = 7};
  return {"rounds" + std::to_string(rounds) + "buckets" + std::to_string(buckets) + "chunk" +
              std::to_string(chunk),
          "lsh", options};
}

std::vector<Variant> Variants() {
  constexpr auto kStrided = SparsePattern::kStrided, kFixed = SparsePattern::kFixed;
  return {{"full", "softmax", {}},
          Window(9, 0),
          Window(9, 3),
          Window(1, 1),
          Window(40, 70),
          Sparse(kStrided, 8, 1),
          Sparse(kStrided, 1, 1),
          Sparse(kStrided, 100, 1),
          Sparse(kFixed, 8, 2),
          Sparse(kFixed, 4, 4),
          Sparse(kFixed, 64, 1),
          Lsh(1, 2, 4),
          Lsh(4, 4, 5),
          Lsh(2, 8, 1),
          Lsh(1, 2, 64),
          Lsh(4, 16, 7)};
}

class CacheMixerTest : public testing::TestWithParam<Variant> {
 protected:
  const Mixer& mixer() const { return MixerByName(GetParam().mixer); }

  Problem MakeProblem(const Spec& spec) const {
    Problem p = mixer_testing::MakeProblem(mixer(), spec);
    p.options = GetParam().options;
    p.options.causal = spec.causal;
    return p;
  }

  // o of the sequences in pieces: those of one token by step, longer ones by prefill.
  Tensor InPieces(const Problem& p, const States& states,
                  const std::vector<int64_t>& pieces) const {
    const Call call(mixer(), p, DType::kF32, DType::kF32);
    int64_t t = 0;
    for (const int64_t length : pieces) {
      (length == 1 ? StepTokens : PrefillTokens)(mixer(), call, states, t, t + length);
      t += length;
    }
    return call.Read(false).at("o");
  }
};

INSTANTIATE_TEST_SUITE_P(All, CacheMixerTest, testing::ValuesIn(Variants()),
                         [](const auto& info) { return info.param.mixer + "_" + info.param.name; });

TEST_P(CacheMixerTest, MatchesReferences) {
  for (const int64_t T : {1, 5, 70, 200}) {
    for (const bool causal : {true, false}) {
      if (!causal && GetParam().options.window > 0) continue;
      SCOPED_TRACE(testing::Message() << "T=" << T << " causal " << causal);
      const Problem p = MakeProblem({.T = T, .group = 2, .K = 9, .V = 7, .causal = causal});
      const Results ref = Reference(mixer(), p, true);
      OnEveryTarget([&] { ExpectClose(mixer(), Fast(mixer(), p, true), ref); });
    }
  }
}

const std::vector<std::vector<int64_t>> kSplits = {
    {60}, std::vector<int64_t>(60, 1), {25, 35}, {7, 1, 30, 1, 1, 20}, {59, 1}, {2, 58}};

TEST_P(CacheMixerTest, AnySplitEqualsForward) {
  const Problem p = MakeProblem({.T = 60, .group = 2, .K = 9, .V = 7});
  OnEveryTarget([&] {
    const Tensor whole = Fast(mixer(), p).at("o");
    for (const auto& split : kSplits) {
      SCOPED_TRACE(testing::PrintToString(split));
      EXPECT_LE(RelativeError(InPieces(p, States(mixer(), p, 60), split), whole),
                mixer().tolerance.forward);
    }
  });
}

// A bfloat16 cache gives what float32 gives for the rounded keys and values. What lsh rounds are
// the keys' directions, and not what it hashes, so that it is only held to the size of the
// rounding.
TEST_P(CacheMixerTest, BFloat16CacheIsFloat32OfRoundedValues) {
  Problem p = MakeProblem({.T = 60, .group = 2, .K = 20, .V = 24});
  Problem rounded = p;
  p.options.cache = DType::kBF16;
  const bool hashed = mixer().shared_qk;
  for (const char* name : {"k", "v"})
    for (double& x : rounded.inputs[name].values)
      if (!hashed) x = ToFloat(ToBF16(static_cast<float>(x)));
  OnEveryTarget([&] {
    const Tensor whole = Fast(mixer(), rounded).at("o");
    for (const auto& split : kSplits)
      EXPECT_LE(RelativeError(InPieces(p, States(mixer(), p, 60), split), whole),
                hashed ? 0x1p-7 : mixer().tolerance.forward);
  });
  const MixerDims dims{.H = p.H, .HV = p.HV, .K = 20, .F = 20, .V = 24, .N = 1};
  const int64_t saved =
      mixer().state_floats(dims, rounded.options, 60) - mixer().state_floats(dims, p.options, 60);
  const int64_t slots = CacheLayout(p.options, p.HV, 20, 24, 60).slots;
  EXPECT_EQ(saved, p.HV * slots * (20 + 24) / 2);
}

// B13: whatever a block holds, length 0 begins a new sequence.
TEST_P(CacheMixerTest, PoisonedBlockIsReusable) {
  const Problem p = MakeProblem({.B = 1, .T = 60, .K = 9, .V = 7});
  for (const auto& split : kSplits) {
    const Tensor clean = InPieces(p, States(mixer(), p, 60), split);
    for (const float poison : {std::numeric_limits<float>::quiet_NaN(), 1e30f}) {
      const States states(mixer(), p, 60);
      std::fill_n(states.block(0), states.blocks()[0].size(), poison);
      EXPECT_EQ(InPieces(p, states, split).values, clean.values);
    }
  }
}

// B10, B15: a copy is a snapshot; what follows it does not depend on what was tried in between.
TEST_P(CacheMixerTest, CopiedBlockRollsBackExactly) {
  const Problem p = MakeProblem({.B = 1, .T = 60, .K = 9, .V = 7});
  const Call call(mixer(), p, DType::kF32, DType::kF32);
  const States states(mixer(), p, 60);
  PrefillTokens(mixer(), call, states, 0, 40);
  const std::vector<float> snapshot = states.blocks()[0];
  StepTokens(mixer(), call, states, 40, 60);
  const Results first = call.Read(false);
  const std::vector<float> last = states.blocks()[0];
  std::copy(snapshot.begin(), snapshot.end(), states.block(0));
  StepTokens(mixer(), call, states, 40, 60);
  EXPECT_EQ(call.Read(false).at("o").values, first.at("o").values);
  EXPECT_EQ(states.blocks()[0], last);
}

// B16: prompts of 2, 5 and 9 tokens, then 20 steps together, each as it is alone.
TEST_P(CacheMixerTest, SequencesOfOneStepMayHaveDifferentLengths) {
  const Problem p = MakeProblem({.B = 3, .T = 29, .K = 9, .V = 7});
  const int64_t prompts[] = {2, 5, 9};
  const Call together(mixer(), p, DType::kF32, DType::kF32),
      alone(mixer(), p, DType::kF32, DType::kF32);
  const States states(mixer(), p, 29), others(mixer(), p, 29);
  for (int64_t b = 0; b < 3; ++b) {
    for (const auto& [call, to] : {std::pair{&together, &states}, {&alone, &others}}) {
      MixerInputs in;
      in.options = p.options;
      in.q = Slice(call->in.q, b, 0, prompts[b]), in.k = Slice(call->in.k, b, 0, prompts[b]);
      in.v = Slice(call->in.v, b, 0, prompts[b]);
      mixer().prefill(in, Slice(call->out.o, b, 0, prompts[b]), to->block(b), 0, 29);
    }
  }
  const auto step = [&](const Call& call, const States& to, int64_t b, int64_t n, int64_t i) {
    std::vector<float> q, k, v, o(n * p.H * 7);
    std::vector<int64_t> length;
    for (int64_t s = b; s < b + n; ++s) {
      length.push_back(prompts[s] + i);
      for (auto [from, row] : {std::pair{&call.in.q, &q}, {&call.in.k, &k}, {&call.in.v, &v}}) {
        const float* x = from->At<float>(s, length.back());
        row->insert(row->end(), x, x + from->stride[1]);
      }
    }
    StepInputs in;
    in.q = MakeArray(q.data(), {n, p.H, 9}), in.k = MakeArray(k.data(), {n, p.HV, 9});
    in.v = MakeArray(v.data(), {n, p.HV, 7}), in.o = MakeArray(o.data(), {n, p.H, 7});
    in.state = to.pointers() + b, in.length = length.data();
    in.capacity = 29, in.options = p.options;
    mixer().step(in);
    return o;
  };
  for (int64_t i = 0; i < 20; ++i) {
    const std::vector<float> all = step(together, states, 0, 3, i);
    std::vector<float> each;
    for (int64_t b = 0; b < 3; ++b)
      for (const float x : step(alone, others, b, 1, i)) each.push_back(x);
    EXPECT_EQ(all, each) << i;
  }
}

TEST_P(CacheMixerTest, IsCausalToTheBit) {
  const Problem p = MakeProblem({.B = 1, .T = 150, .K = 9, .V = 7});
  const Tensor before = Fast(mixer(), p).at("o");
  for (const int64_t t : {1, 40, 77, 149}) {
    Problem changed = p;
    for (auto& [name, x] : changed.inputs)
      for (size_t i = x.values.size() / 150 * t; i < x.values.size(); ++i) x.values[i] *= -0.5;
    const Tensor after = Fast(mixer(), changed).at("o");
    EXPECT_TRUE(std::equal(before.values.begin(),
                           before.values.begin() + before.values.size() / 150 * t,
                           after.values.begin()))
        << t;
  }
}

TEST_P(CacheMixerTest, FullCacheIsRefusedUnlessItIsARing) {
  const Problem p = MakeProblem({.B = 1, .T = 1, .K = 9, .V = 7});
  const Call call(mixer(), p, DType::kF32, DType::kF32);
  const States states(mixer(), p, 20);
  const auto run = [&](int64_t length) {
    mixer().prefill(call.in, call.out.o, states.block(0), length, 20);
  };
  const MixerOptions& o = p.options;
  const bool ring = o.window > 0 && o.window + o.sinks <= 20;
  EXPECT_NO_THROW(run(0));
  if (ring) {
    EXPECT_NO_THROW(run(20));
  } else {
    EXPECT_THAT([&] { run(20); }, testing::ThrowsMessage<Error>(testing::AllOf(
                                      testing::HasSubstr("21"), testing::HasSubstr("20"))));
  }
}

TEST(CacheLayout, ARingHoldsWhatIsSeen) {
  MixerOptions options;
  options.window = 64, options.sinks = 4;
  const CacheLayout ring(options, 2, 8, 6, 100000);
  EXPECT_EQ(ring.slots, 68);
  EXPECT_EQ(ring.floats(), 2 * 68 * 14);
  EXPECT_EQ(CacheLayout(options, 2, 8, 6, 50).slots, 50);
  for (const auto& [t, slot] : std::vector<std::pair<int64_t, int64_t>>{
           {0, 0}, {3, 3}, {4, 4}, {67, 67}, {68, 4}, {131, 67}, {132, 4}})
    EXPECT_EQ(ring.Slot(t), slot) << t;
  options.window = std::numeric_limits<int64_t>::max(), options.sinks = options.window;
  EXPECT_EQ(CacheLayout(options, 2, 8, 6, 100).slots, 100);
}

// A34: 8191 and 5 tokens with a window, stride or chunk of 64; a ring of 64 decodes all of them.
TEST(CacheMixer, A34AnyLength) {
  for (const Variant& variant : {Window(64, 0), Sparse(SparsePattern::kStrided, 64, 1),
                                 Sparse(SparsePattern::kFixed, 64, 8), Lsh(2, 64, 64)}) {
    SCOPED_TRACE(variant.mixer + "_" + variant.name);
    const Mixer& mixer = MixerByName(variant.mixer);
    for (const int64_t T : {8191, 1023, 5}) {
      Problem p = MakeProblem(mixer, {.B = 1, .T = T, .K = 4, .V = 3});
      p.options = variant.options;
      const Results fast = Fast(mixer, p, true);
      if (T < 8191) ExpectClose(mixer, fast, Reference(mixer, p, true));
      for (const auto& [name, x] : fast)
        for (const double y : x.values) ASSERT_TRUE(std::isfinite(y)) << name;
      const Call call(mixer, p, DType::kF32, DType::kF32);
      const States states(mixer, p, T);
      PrefillTokens(mixer, call, states, 0, T / 2);
      StepTokens(mixer, call, states, T / 2, T);
      EXPECT_LE(RelativeError(call.Read(false).at("o"), fast.at("o")), mixer.tolerance.forward);
    }
  }
}

TEST(CacheMixer, RefusesOptionsThatItWouldMisread) {
  const auto message = [](std::string_view name, const std::function<void(MixerOptions&)>& spoil) {
    const Mixer& mixer = MixerByName(name);
    Problem p = MakeProblem(mixer, {.B = 1, .T = 5});
    spoil(p.options);
    std::string text;
    const Call call(mixer, p, DType::kF32, DType::kF32);
    const States states(mixer, MakeProblem(mixer, {.B = 1, .T = 5}), 5);
    for (int way = 0; way < 3; ++way) {
      try {
        if (way == 0) mixer.forward(call.in, call.out, nullptr);
        if (way == 1) StepTokens(mixer, call, states, 0, 1);
        if (way == 2) PrefillTokens(mixer, call, states, 0, 5);
        return std::string("no error");
      } catch (const Error& error) {
        text = error.what();
      }
    }
    return text;
  };
  using testing::HasSubstr;
  for (const char* name : {"softmax", "sparse", "lsh"}) {
    EXPECT_THAT(message(name, [](MixerOptions& o) { o.window = -1; }), HasSubstr("window"));
    EXPECT_THAT(message(name, [](MixerOptions& o) { o.sinks = 2; }), HasSubstr("sinks"));
    EXPECT_THAT(message(name, [](MixerOptions& o) { o.cache = DType::kF16; }), HasSubstr("F16"));
  }
  EXPECT_THAT(message("sparse", [](MixerOptions& o) { o.window = 4; }), HasSubstr("window"));
  EXPECT_THAT(message("sparse", [](MixerOptions& o) { o.sparse.stride = 0; }), HasSubstr("stride"));
  EXPECT_THAT(message("sparse",
                      [](MixerOptions& o) {
                        o.sparse = {.pattern = SparsePattern::kFixed, .stride = 8, .summary = 9};
                      }),
              HasSubstr("summary"));
  EXPECT_THAT(message("lsh", [](MixerOptions& o) { o.lsh.rounds = 0; }), HasSubstr("rounds"));
  EXPECT_THAT(message("lsh", [](MixerOptions& o) { o.lsh.buckets = 5; }), HasSubstr("buckets"));
  EXPECT_THAT(message("lsh", [](MixerOptions& o) { o.lsh.chunk = 0; }), HasSubstr("chunk"));
  for (const char* name : {"sparse", "lsh"}) {
    const Mixer& mixer = MixerByName(name);
    const Problem p = MakeProblem(mixer, {.B = 1, .T = 5, .S = 7, .causal = false});
    const Call call(mixer, p, DType::kF32, DType::kF32);
    EXPECT_THROW(mixer.forward(call.in, call.out, nullptr), Error);
  }
}

}  // namespace
}  // namespace linattn
