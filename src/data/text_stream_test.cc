#include "data/text_stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"

namespace linattn {
namespace {

// Byte by byte.
template <class Stream>
std::vector<std::string> Pushed(Stream& stream, std::string_view bytes) {
  std::vector<std::string> out;
  for (const char& byte : bytes) out.push_back(stream.Push({&byte, 1}));
  out.push_back(stream.Finish());
  return out;
}

std::string Joined(const std::vector<std::string>& parts) {
  std::string all;
  for (const std::string& part : parts) all += part;
  return all;
}

TEST(Utf8StreamTest, CharactersAreHeldBackUntilTheyAreWhole) {  // C8
  Utf8Stream stream;
  EXPECT_THAT(Pushed(stream, "\xE8\xB5\x8B\xF0\x9F\x98\x80\xE8"),
              testing::ElementsAre("", "", "\xE8\xB5\x8B", "", "", "", "\xF0\x9F\x98\x80", "",
                                   "\xEF\xBF\xBD"));
  EXPECT_EQ(stream.Finish(), "");
  EXPECT_EQ(stream.Push("a\xC3\xA4 \xE2\x82"), "a\xC3\xA4 ");
  EXPECT_EQ(stream.Push("\xAC!"), "\xE2\x82\xAC!");
}

TEST(Utf8StreamTest, ThreeBytesTellWhatBeginsACharacter) {
  const std::string text = "a\xE4\x8B\x8B\xF0\x9F\x98\x80\x8B\xE4\x8Bz\xF0\x9F";
  for (size_t cut = 0; cut <= text.size(); ++cut) {
    Utf8Stream all, end;
    all.Push(text.substr(0, cut));
    end.Push(text.substr(cut - std::min<size_t>(3, cut), std::min<size_t>(3, cut)));
    const std::string rest = text.substr(cut) + "\x98\x80.";
    EXPECT_EQ(end.Push(rest), all.Push(rest)) << cut;
  }
}

TEST(Utf8StreamTest, WhatIsNotUtf8IsReplacedPieceByPiece) {
  const auto shown = [](std::string_view bytes) {
    Utf8Stream stream, at_once;
    const std::string all = at_once.Push(bytes) + at_once.Finish();
    EXPECT_EQ(Joined(Pushed(stream, bytes)), all);
    std::string marked;  // U+FFFD as '?'
    for (size_t i = 0; i < all.size(); ++i) {
      const bool replaced = all.compare(i, 3, "\xEF\xBF\xBD") == 0;
      marked += replaced ? '?' : all[i];
      i += replaced ? 2 : 0;
    }
    return marked;
  };
  EXPECT_EQ(shown("plain"), "plain");
  EXPECT_EQ(shown("\x80x\xBF"), "?x?");
  EXPECT_EQ(shown("\xE8\xB5x"), "?x");  // one for the two bytes that begin a character
  EXPECT_EQ(shown("\xC0\xAF\xE0\x80\xAF"), "?????");  // overlong: table 3-8
  EXPECT_EQ(shown("\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41"), "????????A");
  EXPECT_EQ(shown("\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42"), "?????A??B");
  EXPECT_EQ(shown("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41"), "????A");  // table 3-11
  EXPECT_EQ(shown(std::string_view("\0\x7F", 2)), std::string("\0\x7F", 2));
}

TEST(StopStringsTest, EndsBeforeTheFirstThatIsComplete) {
  StopStrings stops({"END", "\n\n"});
  EXPECT_EQ(stops.Push("some E"), "some ");
  EXPECT_EQ(stops.Push("N"), "");
  EXPECT_EQ(stops.Push("\n"), "EN");  // not END after all; a newline may be half of two
  EXPECT_FALSE(stops.stopped());
  EXPECT_EQ(stops.Push("EEND of it"), "\nE");
  EXPECT_TRUE(stops.stopped());
  EXPECT_EQ(stops.Push("more") + stops.Finish(), "");
  for (const char* text : {"aab", "aaab", "aaaab"}) {
    StopStrings one({"aab"});
    const std::string out = Joined(Pushed(one, text));
    EXPECT_EQ(out, std::string(text).substr(0, std::string(text).size() - 3));
    EXPECT_TRUE(one.stopped());
  }
  StopStrings none({});
  EXPECT_EQ(none.Push("all of it"), "all of it");
  StopStrings unfinished({"stop"});
  EXPECT_EQ(Joined(Pushed(unfinished, "a sto")), "a sto");
  EXPECT_FALSE(unfinished.stopped());
  EXPECT_THROW(StopStrings({"x", ""}), Error);
}

TEST(StopStringsTest, BeginInWhatCameBefore) {
  const std::string text = "ab WW, aWWb and WxWWW";
  for (size_t cut = 0; cut < text.size(); ++cut) {
    for (const char* stop : {"WWW", "WWb", "b an", "x"}) {
      StopStrings whole({stop, "WWW"}), end({stop, "WWW"});
      const std::string before = whole.Push(text.substr(0, cut));
      if (whole.stopped()) continue;
      end.Begin(text.substr(0, cut));
      std::string shown = end.Push(text.substr(cut));
      shown += end.Finish();
      EXPECT_TRUE(end.stopped()) << stop << cut;
      // All but what was held back before the cut, which has been given out then.
      const std::string expected = before + whole.Push(text.substr(cut));
      EXPECT_EQ(shown, expected.substr(std::min(cut, expected.size()))) << stop << cut;
    }
  }
  StopStrings again({"WW", "longer"});
  again.Begin("a WW");  // a stop string that is whole before does not end what comes
  EXPECT_EQ(again.Push(" W"), " ");
  EXPECT_EQ(again.Push("W"), "");
  EXPECT_TRUE(again.stopped());
  StopStrings never({"WW"});
  never.Begin("W");
  EXPECT_EQ(never.Push("xW"), "x");
  EXPECT_EQ(never.Finish(), "W");
}

}  // namespace
}  // namespace linattn
