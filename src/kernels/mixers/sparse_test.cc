#include "kernels/mixers/sparse.h"

#include <gmock/gmock.h>

#include <cmath>
#include <set>
#include <vector>

#include "kernels/mixer_testing.h"

// What is special to sparse; what it shares is in kernels/mixer_suite_test.cc and
// cache_mixer_test.cc.
namespace linattn {
namespace {

using Keys = std::set<int64_t>;

// The keys that each of T queries of a head sees, read off equal weights: v_s is the s-th unit
// vector.
std::vector<Keys> Seen(const MixerOptions& options, int64_t head, int64_t T) {
  std::vector<float> zero(T * 2 * 3), v(T * 2 * T), o(T * 2 * T);
  for (int64_t s = 0; s < T; ++s)
    for (int64_t h = 0; h < 2; ++h) v[(s * 2 + h) * T + s] = 1;
  MixerInputs in;
  in.options = options;
  in.q = in.k = MakeArray(zero.data(), {1, T, 2, 3}), in.v = MakeArray(v.data(), {1, T, 2, T});
  const mixer_testing::Scratch scratch(k_sparse, in);
  k_sparse.forward(in, {.o = MakeArray(o.data(), {1, T, 2, T}), .norm = {}, .ST = {}, .zT = {}},
                   scratch.get());
  std::vector<Keys> seen(T);
  for (int64_t t = 0; t < T; ++t) {
    for (int64_t s = 0; s < T; ++s)
      if (o[(t * 2 + head) * T + s] != 0) seen[t].insert(s);
    for (int64_t s : seen[t])
      EXPECT_NEAR(o[(t * 2 + head) * T + s], 1.0 / static_cast<double>(seen[t].size()), 1e-6);
  }
  return seen;
}

MixerOptions Options(SparsePattern pattern, int64_t stride, int64_t summary, bool causal = true) {
  MixerOptions options;
  options.causal = causal;
  options.sparse = {.pattern = pattern, .stride = stride, .summary = summary};
  return options;
}

TEST(Sparse, StridedByHand) {
  const MixerOptions options = Options(SparsePattern::kStrided, 3, 1);
  EXPECT_THAT(Seen(options, 0, 7),
              testing::ElementsAre(Keys{0}, Keys{0, 1}, Keys{0, 1, 2}, Keys{1, 2, 3}, Keys{2, 3, 4},
                                   Keys{3, 4, 5}, Keys{4, 5, 6}));
  EXPECT_THAT(Seen(options, 1, 7), testing::ElementsAre(Keys{0}, Keys{1}, Keys{2}, Keys{0, 3},
                                                        Keys{1, 4}, Keys{2, 5}, Keys{0, 3, 6}));
}

TEST(Sparse, FixedByHand) {
  const MixerOptions options = Options(SparsePattern::kFixed, 3, 1);
  EXPECT_THAT(Seen(options, 0, 7), testing::ElementsAre(Keys{0}, Keys{0, 1}, Keys{0, 1, 2}, Keys{3},
                                                        Keys{3, 4}, Keys{3, 4, 5}, Keys{6}));
  // Tokens 0 and 1 have no summary before them and see themselves.
  EXPECT_THAT(Seen(options, 1, 7), testing::ElementsAre(Keys{0}, Keys{1}, Keys{2}, Keys{2}, Keys{2},
                                                        Keys{2, 5}, Keys{2, 5}));
}

TEST(Sparse, NotCausalByHand) {
  EXPECT_THAT(Seen(Options(SparsePattern::kStrided, 2, 1, false), 0, 4),
              testing::ElementsAre(Keys{0, 1}, Keys{0, 1, 2}, Keys{1, 2, 3}, Keys{2, 3}));
  EXPECT_THAT(Seen(Options(SparsePattern::kStrided, 2, 1, false), 1, 4),
              testing::ElementsAre(Keys{0, 2}, Keys{1, 3}, Keys{0, 2}, Keys{1, 3}));
  EXPECT_THAT(Seen(Options(SparsePattern::kFixed, 2, 1, false), 1, 5), testing::Each(Keys{1, 3}));
  EXPECT_THAT(Seen(Options(SparsePattern::kFixed, 9, 1, false), 1, 3),
              testing::ElementsAre(Keys{0}, Keys{1}, Keys{2}));
}

// Both factors together: within two layers every key reaches every later query (the paper's
// condition on factorised attention), for T up to stride^2.
TEST(Sparse, TwoLayersReachEverything) {
  for (const SparsePattern pattern : {SparsePattern::kStrided, SparsePattern::kFixed}) {
    const MixerOptions options = Options(pattern, 6, 1);
    const auto near = Seen(options, 0, 36), far = Seen(options, 1, 36);
    const bool strided = pattern == SparsePattern::kStrided;
    for (int64_t t = 0; t < 36; ++t) {
      Keys reached = near[t];
      for (int64_t middle : strided ? near[t] : far[t])
        for (int64_t s : strided ? far[middle] : near[middle]) reached.insert(s);
      // fixed: what lies in the query's own block comes by `near`, the rest over the summaries
      EXPECT_EQ(static_cast<int64_t>(reached.size()), t + 1) << t;
    }
  }
}

}  // namespace
}  // namespace linattn
