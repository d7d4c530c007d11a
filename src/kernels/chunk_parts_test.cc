// Sequences cut into parts: what the chunk kernels do where there are fewer heads than threads.
#include "kernels/chunk_parts.h"

#include <omp.h>

#include "kernels/mixer_testing.h"

namespace linattn {
namespace {

using namespace mixer_testing;

const char* const kNames[] = {"linear", "retention",   "simple_gla", "gla",
                              "delta",  "gated_delta", "kda"};

Spec OneHead(int64_t T) {
  return {.B = 1, .T = T, .heads = 1, .group = 2, .K = 5, .V = 7, .states = true};
}

void ExpectRight(const char* name, const Spec& spec, int threads) {
  SCOPED_TRACE(testing::Message() << name << " T=" << spec.T << " threads=" << threads);
  const Mixer& mixer = MixerByName(name);
  Problem p = MakeProblem(mixer, spec);
  if (mixer.write == Write::kDelta)  // keys of 5 channels are longer than 1
    for (double& beta : p.inputs["beta"].values) beta = static_cast<float>(beta / 8);
  const Results ref = Reference(mixer, p, true);
  const Threads many(threads);
  OnEveryTarget([&] { ExpectClose(mixer, Fast(mixer, p, true), ref); });
}

// Parts of 256 tokens, the last one short, full or a token.
TEST(ChunkPartsTest, EveryPolicyMatchesTheReference) {
  for (const char* name : kNames)
    for (const int64_t T : {512, 513, 700}) ExpectRight(name, OneHead(T), 4);
}

// Borders of sequences and of parts do not meet; one sequence is shorter than a part, one empty.
TEST(ChunkPartsTest, PackedSequences) {
  Spec spec = OneHead(900);
  spec.boundaries = {0, 300, 300, 310, 900};
  for (const char* name : {"linear", "kda"}) ExpectRight(name, spec, 16);
}

// Holes around the border of two parts, and everywhere: lists with an index.
TEST(ChunkPartsTest, MasksAcrossBorders) {
  Spec spec = OneHead(600);
  for (int64_t t = 0; t < spec.T; ++t) spec.mask.push_back(t % 7 != 0 && (t < 250 || t > 270));
  for (const char* name : {"linear", "gla", "gated_delta"}) ExpectRight(name, spec, 4);
}

TEST(ChunkPartsTest, Lengths) {
  Spec spec = OneHead(600);
  spec.lengths = {530};
  for (const char* name : {"linear", "kda"}) ExpectRight(name, spec, 4);
}

// Resets (g = -inf) cut the chain of states for good.
TEST(ChunkPartsTest, Resets) {
  for (const char* name : {"simple_gla", "gla", "kda"}) {
    SCOPED_TRACE(name);
    const Mixer& mixer = MixerByName(name);
    Problem p = MakeProblem(mixer, OneHead(600));
    auto& g = p.inputs["g"].values;
    for (size_t i = 0; i < g.size(); i += 97) g[i] = -std::numeric_limits<double>::infinity();
    if (mixer.write == Write::kDelta)
      for (double& beta : p.inputs["beta"].values) beta = static_cast<float>(beta / 8);
    const Results ref = Reference(mixer, p, true);
    const Threads many(4);
    OnEveryTarget([&] { ExpectClose(mixer, Fast(mixer, p, true), ref); });
  }
}

// Where a sequence is cut follows from its shape; that it is cut at all, from the threads.
TEST(ChunkPartsTest, SameForAnyThreadCountThatCuts) {
  for (const char* name : kNames) {
    SCOPED_TRACE(name);
    const Mixer& mixer = MixerByName(name);
    const Problem p = MakeProblem(mixer, OneHead(700));
    std::vector<Results> results;
    for (const int threads : {4, 4, 5, 8}) {
      const Threads some(threads);
      results.push_back(Fast(mixer, p, true));
    }
    for (const Results& other : results)
      for (const auto& [output, x] : other)
        EXPECT_EQ(x.values, results[0].at(output).values) << output;
  }
}

TEST(ChunkPartsTest, AreUsedOnlyWhereTheyPay) {
  const auto part = [](const char* name, int64_t heads, int threads) {
    const MixerDims dims{
        .B = 1, .T = 8192, .S = 8192, .H = heads, .HV = heads, .K = 64, .F = 64, .V = 64, .N = 1};
    return ShapeOfChunks(MixerByName(name), dims, threads).part;
  };
  EXPECT_EQ(part("linear", 1, 1), 0);
  EXPECT_EQ(part("linear", 1, 2), 256);
  EXPECT_EQ(part("linear", 2, 2), 0);
  EXPECT_EQ(part("linear", 8, 16), 256);
  EXPECT_EQ(part("kda", 1, 2), 0);
  EXPECT_EQ(part("kda", 1, 4), 256);
}

}  // namespace
}  // namespace linattn
