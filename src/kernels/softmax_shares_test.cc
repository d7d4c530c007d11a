// Softmax backward where there are fewer key heads than threads, which then share a head's keys.
#include <omp.h>

#include "kernels/mixer_testing.h"

namespace linattn {
namespace {

using namespace mixer_testing;

Spec OneHead() { return {.B = 1, .T = 300, .heads = 1, .group = 2, .K = 9, .V = 7}; }

TEST(SoftmaxSharesTest, MatchesTheReference) {
  const Mixer& mixer = MixerByName("softmax");
  Spec full = OneHead(), masked = OneHead(), packed = OneHead();
  full.causal = false;
  for (int64_t t = 0; t < masked.T; ++t) masked.mask.push_back(t % 5 != 0);
  packed.boundaries = {0, 140, 140, 300};
  for (const Spec& spec : {OneHead(), full, masked, packed}) {
    const Problem p = MakeProblem(mixer, spec);
    const Results ref = Reference(mixer, p, true);
    for (const int threads : {2, 3, 8}) {  // 300 keys are 3 blocks: some shares are empty
      const Threads some(threads);
      OnEveryTarget([&] { ExpectClose(mixer, Fast(mixer, p, true), ref); });
    }
  }
}

TEST(SoftmaxSharesTest, SameFromRunToRun) {
  const Mixer& mixer = MixerByName("softmax");
  const Problem p = MakeProblem(mixer, OneHead());
  const Threads some(3);
  const Results first = Fast(mixer, p, true), second = Fast(mixer, p, true);
  for (const auto& [name, x] : first) EXPECT_EQ(x.values, second.at(name).values) << name;
}

}  // namespace
}  // namespace linattn
