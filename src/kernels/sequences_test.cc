#include <gmock/gmock.h>

#include "base/error.h"
#include "kernels/mixer.h"

namespace linattn {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<int64_t> Tokens(const TokenList& list) {
  std::vector<int64_t> tokens;
  for (int64_t i = 0; i < list.length; ++i) tokens.push_back(list[i]);
  return tokens;
}

std::string Message(const MixerInputs& in, const MixerDims& dims) {
  try {
    ResolveSegments(in, dims);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(SequencesTest, MasksBecomeTokenLists) {
  const std::vector<uint8_t> mask = {0, 0, 1, 1, 1, 1, 0, 1, 0, 1, 0, 0, 0, 0, 0};
  MixerInputs in;
  in.segments.mask = MakeArray(mask.data(), {3, 5});
  const Sequences s = ResolveSegments(in, {.B = 3, .T = 5, .S = 5, .N = 3});
  EXPECT_THAT(Tokens(s.queries[0]), ElementsAre(2, 3, 4));
  EXPECT_EQ(s.queries[0].index, nullptr) << "an unbroken run needs no index";
  EXPECT_THAT(Tokens(s.queries[1]), ElementsAre(0, 2, 4));
  EXPECT_THAT(Tokens(s.queries[2]), ElementsAre());
  EXPECT_THAT(Tokens(s.keys[1]), ElementsAre(0, 2, 4));
  ASSERT_EQ(s.masked_q.size(), 3u);
  EXPECT_THAT(Tokens(s.masked_q[0]), ElementsAre(0, 1));
  EXPECT_THAT(Tokens(s.masked_q[1]), ElementsAre(1, 3));
  EXPECT_THAT(Tokens(s.masked_k[2]), ElementsAre(0, 1, 2, 3, 4));
  EXPECT_EQ(s.masked_k[2].row, 2);
}

TEST(SequencesTest, CrossAttentionHasItsOwnKeySide) {
  const std::vector<int64_t> lengths = {2, 3}, k_lengths = {0, 4};
  MixerInputs in;
  in.options.cross = true;
  in.segments.lengths = MakeArray(lengths.data(), {2});
  in.segments.k_lengths = MakeArray(k_lengths.data(), {2});
  const Sequences s = ResolveSegments(in, {.B = 2, .T = 3, .S = 4, .N = 2});
  EXPECT_THAT(Tokens(s.queries[0]), ElementsAre(0, 1));
  EXPECT_THAT(Tokens(s.keys[0]), ElementsAre());
  EXPECT_THAT(Tokens(s.keys[1]), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(Tokens(s.masked_q[0]), ElementsAre(2));
  EXPECT_THAT(Tokens(s.masked_k[0]), ElementsAre(0, 1, 2, 3));
}

TEST(SequencesTest, BoundariesMayHoldEmptySegments) {
  const std::vector<int64_t> bounds = {0, 0, 3, 3, 5};
  MixerInputs in;
  in.segments.boundaries = MakeArray(bounds.data(), {5});
  const Sequences s = ResolveSegments(in, {.B = 1, .T = 5, .S = 5, .N = 4});
  EXPECT_THAT(Tokens(s.queries[0]), ElementsAre());
  EXPECT_THAT(Tokens(s.queries[1]), ElementsAre(0, 1, 2));
  EXPECT_THAT(Tokens(s.queries[3]), ElementsAre(3, 4));
}

TEST(SequencesTest, BadBoundariesAreNamed) {
  const auto message = [](std::vector<int64_t> bounds) {
    MixerInputs in;
    const int64_t n = static_cast<int64_t>(bounds.size());
    in.segments.boundaries = MakeArray(bounds.data(), {n});
    return Message(in, {.B = 1, .T = 5, .S = 5, .N = n - 1});
  };
  EXPECT_EQ(message({0, 2, 5}), "no error");
  EXPECT_THAT(message({0, 2, 4}), HasSubstr("must run from 0 to T=5, but run from 0 to 4"));
  EXPECT_THAT(message({1, 2, 5}), HasSubstr("run from 1 to 5"));
  EXPECT_THAT(message({0, 4, 2, 5}), HasSubstr("must not decrease, but entries 1 and 2 are 4, 2"));
}

// A3: packed boundaries with an all-ones mask.
TEST(SequencesTest, BoundariesWithAMaskAreRefused) {
  const std::vector<int64_t> bounds = {0, 3, 6};
  const std::vector<uint8_t> mask(6, 1);
  MixerInputs in;
  in.segments.boundaries = MakeArray(bounds.data(), {3});
  in.segments.mask = MakeArray(mask.data(), {1, 6});
  EXPECT_THAT(Message(in, {.B = 1, .T = 6, .S = 6, .N = 2}),
              HasSubstr("[segments] at most one of lengths, mask and boundaries must be given, but "
                        "mask boundaries are"));
}

TEST(SequencesTest, CrossBoundariesComeInPairs) {
  const std::vector<int64_t> bounds = {0, 3, 6};
  MixerInputs in;
  in.options.cross = true;
  in.segments.boundaries = MakeArray(bounds.data(), {3});
  EXPECT_THAT(Message(in, {.B = 1, .T = 6, .S = 6, .N = 2}), HasSubstr("given together"));
}

TEST(RegistryTest, FindsMixersAndNamesThemInItsMessage) {
  EXPECT_EQ(MixerByName("linear").name, "linear");
  try {
    MixerByName("liner");
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::AllOf(HasSubstr("linear"), HasSubstr("'liner'")));
  }
}

}  // namespace
}  // namespace linattn
