#include "kernels/mixers/lsh.h"

#include <gmock/gmock.h>

#include <cmath>
#include <random>
#include <vector>

#include "base/error.h"
#include "kernels/lsh_hash.h"
#include "kernels/mixer_testing.h"

// What is special to lsh; what it shares is in kernels/mixer_suite_test.cc and cache_mixer_test.cc.
namespace linattn {
namespace {

using namespace mixer_testing;

MixerOptions Options(int64_t rounds, int64_t buckets, int64_t chunk) {
  MixerOptions options;
  options.lsh = {.rounds = rounds, .buckets = buckets, .chunk = chunk, .seed = 1};
  return options;
}

// One channel: a key's sign decides its bucket, in every round. q and v as given.
struct Line {
  std::vector<float> q, k, v;
  std::vector<float> o = std::vector<float>(k.size(), NAN), norm = o;

  void Run(const MixerOptions& options) {
    const int64_t T = static_cast<int64_t>(k.size());
    MixerInputs in;
    in.options = options;
    in.options.scale = 1;
    in.q = MakeArray(q.data(), {1, T, 1, 1}), in.k = MakeArray(k.data(), {1, T, 1, 1});
    in.v = MakeArray(v.data(), {1, T, 1, 1});
    const Scratch scratch(k_lsh, in);
    k_lsh.forward(in,
                  {.o = MakeArray(o.data(), {1, T, 1, 1}),
                   .norm = MakeArray(norm.data(), {1, T, 1}),
                   .ST = {},
                   .zT = {}},
                  scratch.get());
  }
};

TEST(Lsh, SeesItsBucketAndItselfOnlyWithoutOthers) {
  for (const int64_t rounds : {1, 4}) {
    Line x{.q = {0, 0, 0, 0, 0, 0}, .k = {1, 2, -1, 3, -5, 4}, .v = {1, 2, 4, 8, 16, 32}};
    x.Run(Options(rounds, 2, 32));
    // 0: itself; 1: 0; 2: itself; 3: 0, 1; 4: 2; 5: 0, 1, 3. A key counts once a round.
    const double R = std::log(static_cast<double>(rounds));
    const float o[] = {1, 1, 4, 1.5, 4, 11.f / 3}, keys[] = {1, 1, 1, 2, 1, 3};
    for (int t = 0; t < 6; ++t) {
      EXPECT_NEAR(x.o[t], o[t], 1e-5) << t;
      EXPECT_NEAR(x.norm[t], R + std::log(keys[t]), 1e-5) << t;
    }
  }
}

TEST(Lsh, SeesItsChunkAndTheOneBefore) {
  Line x{.q = {0, 0, 0, 0, 0, 0, 0}, .k = {1, 1, 1, 1, 1, 1, 1}, .v = {1, 2, 4, 8, 16, 32, 64}};
  x.Run(Options(1, 2, 2));
  EXPECT_THAT(x.o, testing::Pointwise(testing::FloatNear(1e-5f),
                                      {1.f, 1.f, 1.5f, 7.f / 3, 6.f, 28.f / 3, 24.f}));
  MixerOptions both = Options(1, 2, 2);
  both.causal = false;
  x.Run(both);
  EXPECT_THAT(x.o, testing::Pointwise(testing::FloatNear(1e-5f),
                                      {2.f, 1.f, 11.f / 3, 7.f / 3, 44.f / 3, 28.f / 3, 24.f}));
}

TEST(Lsh, KeysCountByTheirDirection) {
  // Query 3 with two visible keys of lengths 1 and 100: equal scores.
  Line x{.q = {0, 0, 5}, .k = {1, 100, 7}, .v = {2, 4, 0}};
  x.Run(Options(1, 2, 32));
  EXPECT_NEAR(x.o[2], 3, 1e-5);
  EXPECT_NEAR(x.norm[2], 5 + std::log(2.0), 1e-5);
}

TEST(Lsh, OppositeDirectionsNeverMeet) {
  const int64_t T = 64, K = 16;
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  std::vector<float> k(T * K), v(T), o(T);
  for (int64_t t = 0; t < T; ++t) {
    v[t] = t % 2 == 0 ? 1 : -1;
    for (int64_t c = 0; c < K; ++c) k[t * K + c] = v[t] * (c == 3) + 1e-3f * normal(random);
  }
  MixerInputs in;
  in.options = Options(4, 8, 4);
  in.q = in.k = MakeArray(k.data(), {1, T, 1, K}), in.v = MakeArray(v.data(), {1, T, 1, 1});
  const Scratch scratch(k_lsh, in);
  k_lsh.forward(in, {.o = MakeArray(o.data(), {1, T, 1, 1}), .norm = {}, .ST = {}, .zT = {}},
                scratch.get());
  for (int64_t t = 0; t < T; ++t) EXPECT_NEAR(o[t], v[t], 1e-5) << t;
}

TEST(Lsh, GradientsMatchFiniteDifferences) {
  for (const int64_t rounds : {1, 4}) {
    Problem p = MakeProblem(k_lsh, {.B = 1, .T = 9, .heads = 1, .group = 2, .K = 3, .V = 2});
    p.options = Options(rounds, 2, 2);
    const Results ref = Reference(k_lsh, p, true);
    const auto loss = [&](const Problem& moved) {
      const Tensor o = Reference(k_lsh, moved).at("o");
      double sum = 0;
      for (size_t i = 0; i < o.values.size(); ++i)
        sum += o.values[i] * p.cotangents["d_o"].values[i];
      return sum;
    };
    for (const char* name : {"q", "k", "v"}) {
      for (size_t i = 0; i < p.inputs[name].values.size(); ++i) {
        Problem up = p, down = p;  // steps too short to cross the border of a bucket
        up.inputs[name].values[i] += 1e-5, down.inputs[name].values[i] -= 1e-5;
        EXPECT_NEAR(ref.at(std::string("d_") + name).values[i], (loss(up) - loss(down)) / 2e-5,
                    1e-7)
            << rounds << " " << name << "[" << i << "]";
      }
    }
  }
}

// A block may come from a file that somebody damaged: a prompt refuses it, a step stays inside it.
TEST(Lsh, DamagedBlocksLeadNowhereOutside) {
  Problem p = MakeProblem(k_lsh, {.B = 1, .T = 30, .K = 5, .V = 4});
  p.options = Options(2, 4, 8);
  const Call call(k_lsh, p, DType::kF32, DType::kF32);
  std::mt19937 random(1);
  for (const float damage : {std::numeric_limits<float>::quiet_NaN(), 1e30f, -7.f, 25.f, 0.5f}) {
    for (int trial = 0; trial < 20; ++trial) {
      const States states(k_lsh, p, 30);
      PrefillTokens(k_lsh, call, states, 0, 20);
      const int64_t size = states.blocks()[0].size(), chains = size - 2 * (2 * (8 + 30) + 5);
      for (int i = 0; i < 8; ++i) states.block(0)[chains + random() % (size - chains)] = damage;
      StepTokens(k_lsh, call, states, 20, 24);
    }
    const States states(k_lsh, p, 30);
    PrefillTokens(k_lsh, call, states, 0, 20);
    const int64_t counts = states.blocks()[0].size() - 2 * (2 * (8 + 30) + 5);
    states.block(0)[counts] = damage;
    EXPECT_THROW(PrefillTokens(k_lsh, call, states, 20, 24), Error);
  }
}

TEST(LshHash, IsTheSameOnEveryTargetAndMachine) {
  const int64_t rows = 50, K = 37;
  std::vector<float> x(rows * K);
  for (int64_t i = 0; i < rows * K; ++i)  // no library's randomness: the buckets below are for good
    x[i] = static_cast<float>((i * 7919 + i * i * 31) % 2003 - 1001) / 512;
  std::fill_n(x.begin() + 3 * K, K, 0.0f);  // all equal: the first
  for (const int64_t buckets : {2, 10, 64, 202}) {
    MixerOptions options = Options(2, buckets, 1);
    options.lsh.seed = 42;
    std::vector<float> rotations(RotationFloats(options, K));
    FillRotations(options, K, rotations.data());
    std::vector<int32_t> expected;
    OnEveryTarget([&] {
      std::vector<int32_t> bucket(rows, -1);
      HashRows(x.data(), rows, K, rotations.data() + K * buckets / 2, buckets, bucket.data());
      for (const int32_t b : bucket) EXPECT_TRUE(b >= 0 && b < buckets);
      EXPECT_EQ(bucket[3], 0);
      if (expected.empty()) expected = bucket;
      EXPECT_EQ(bucket, expected);
    });
    if (buckets != 64) continue;
    EXPECT_THAT(std::vector<int32_t>(expected.begin(), expected.begin() + 8),
                testing::ElementsAre(61, 39, 31, 0, 39, 52, 9, 15));
  }
}

TEST(LshHash, RoundsDependOnTheirNumberAndSeed) {
  MixerOptions two = Options(2, 8, 1), four = Options(4, 8, 1), other = two;
  other.lsh.seed = 2;
  const auto rotations = [](const MixerOptions& options) {
    std::vector<float> x(RotationFloats(options, 5));
    FillRotations(options, 5, x.data());
    return x;
  };
  const auto a = rotations(two), b = rotations(four);
  EXPECT_TRUE(std::equal(a.begin(), a.end(), b.begin()));
  EXPECT_NE(a, rotations(other));
  EXPECT_FALSE(std::equal(a.begin(), a.begin() + 20, a.begin() + 20));
}

// What the hash is for: of keys, those near by share a bucket more often.
TEST(LshHash, NearKeysMeetMoreOften) {
  const int64_t K = 32, pairs = 400;
  const MixerOptions options = Options(1, 16, 1);
  std::vector<float> rotations(RotationFloats(options, K));
  FillRotations(options, K, rotations.data());
  std::mt19937 random(9);
  std::normal_distribution<float> normal;
  int met[3] = {};
  const float noise[] = {0.1f, 0.7f, 10.f};
  for (int64_t i = 0; i < pairs; ++i) {
    for (int n = 0; n < 3; ++n) {
      std::vector<float> x(2 * K);
      for (int64_t c = 0; c < K; ++c) x[c] = normal(random);
      for (int64_t c = 0; c < K; ++c) x[K + c] = x[c] + noise[n] * normal(random);
      int32_t bucket[2];
      HashRows(x.data(), 2, K, rotations.data(), 16, bucket);
      met[n] += bucket[0] == bucket[1];
    }
  }
  EXPECT_GT(met[0], 300);
  EXPECT_GT(met[0], met[1] + 50);
  EXPECT_GT(met[1], met[2] + 50);
  EXPECT_LT(met[2], 60);  // 1 of 16 by chance
}

}  // namespace
}  // namespace linattn
