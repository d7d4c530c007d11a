#include "data/vocabulary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/error_testing.h"

namespace linattn {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(VocabularyTest, BytesAndIds) {
  const Vocabulary bytes(256, {});
  EXPECT_TRUE(bytes.bytes());
  EXPECT_THAT(bytes.Encode("a\xFF"), ElementsAre(97, 255));
  EXPECT_EQ(bytes.Decode(bytes.Encode("a\xFF\n")), "a\xFF\n");
  const Vocabulary ids(1000, {});
  EXPECT_THAT(ids.Encode(" 7, 999\n0"), ElementsAre(7, 999, 0));
  EXPECT_THAT(ids.Encode(""), ElementsAre());
  EXPECT_EQ(ids.Decode(std::vector<int32_t>{7, 999, 0}), "7 999 0");
  for (const char* wrong : {"1000", "-1", "word", "3x"}) {
    EXPECT_THAT(MessageOf([&] { ids.Encode(wrong); }),
                testing::AllOf(HasSubstr("from 0 to 999"), HasSubstr(wrong)));
  }
}

// testdata/text/pieces.model: 512 pieces of the play beside it, bytes for what they lack.
TEST(VocabularyTest, PiecesAreTheLibrarysAndLoseNothing) {
  const Vocabulary pieces = Vocabulary::Open(LINATTN_TESTDATA "/text/pieces.model");
  EXPECT_EQ(pieces.size(), 512);
  const Bytes play = ReadFile(LINATTN_TESTDATA "/text/shakespeare-head.txt");
  const std::vector<int32_t> symbols = pieces.Encode(AsText(play));
  EXPECT_LT(symbols.size(), play.size() * 2 / 3);
  EXPECT_EQ(pieces.Decode(symbols), AsText(play));
  const std::string rare = "  na\xC3\xAFve \xF0\x9F\x98\x80\n\n end ";
  EXPECT_EQ(pieces.Decode(pieces.Encode(rare)), rare);
  // A character in parts: byte pieces.
  const std::vector<int32_t> smile = pieces.Encode("\xF0\x9F\x98\x80");
  ASSERT_EQ(smile.size(), 4u);
  EXPECT_EQ(pieces.TextOf(smile[1], false), "\x9F");
  // The file as a model file carries it.
  const Vocabulary again(512, pieces.file());
  EXPECT_EQ(again.Encode("What is the city but the people?"),
            pieces.Encode("What is the city but the people?"));
}

TEST(VocabularyTest, LongTextsAreCutBehindNewlines) {
  const Vocabulary pieces = Vocabulary::Open(LINATTN_TESTDATA "/text/pieces.model");
  std::string text;
  std::vector<int32_t> want;
  while (text.size() < 200'000) {
    const std::string line = "First Citizen, line " + std::to_string(text.size()) + ":\n";
    text += line;
    for (const int32_t id : pieces.Encode(line)) want.push_back(id);
  }
  EXPECT_EQ(pieces.Encode(text), want);
}

TEST(VocabularyTest, WrongFilesAreNamed) {
  const Bytes file = ReadFile(LINATTN_TESTDATA "/text/pieces.model");
  EXPECT_THAT(MessageOf([&] { Vocabulary(256, file); }), HasSubstr("256 symbols, but has 512"));
  EXPECT_THAT(MessageOf([&] { Vocabulary(512, std::span(file).first(1000)); }),
              HasSubstr("SentencePiece"));
  EXPECT_THAT(MessageOf([&] { Vocabulary::Open(LINATTN_TESTDATA "/text/shakespeare-head.txt"); }),
              testing::AllOf(HasSubstr("shakespeare-head.txt"), HasSubstr("SentencePiece")));
  EXPECT_THAT(MessageOf([&] { Vocabulary::Open("none.model"); }), HasSubstr("none.model"));
}

}  // namespace
}  // namespace linattn
