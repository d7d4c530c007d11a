#include "data/speech_set.h"

#include <gmock/gmock.h>

#include <filesystem>

#include "base/error.h"
#include "base/error_testing.h"
#include "base/file.h"
#include "base/temporary_directory.h"
#include "data/audio.h"
#include "data/manifest.h"
#include "data/transcript.h"

namespace linattn {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Manifest, TsvWithAndWithoutNames) {
  const auto plain = ParseManifest("a.wav\tHello.\nsub/b.flac\tGood day\ttest\r\n\n", "m.tsv");
  ASSERT_EQ(plain.size(), 2u);
  EXPECT_EQ(plain[0].audio, "a.wav");
  EXPECT_EQ(plain[0].split, "");
  EXPECT_EQ(plain[1].text, "Good day");
  EXPECT_EQ(plain[1].split, "test");
  const auto named =
      ParseManifest("file\tseconds\tnormalised\toriginal\nx.wav\t0.7\tadded\tAdded.", "m.tsv");
  ASSERT_EQ(named.size(), 1u);
  EXPECT_EQ(named[0].audio, "x.wav");
  EXPECT_EQ(named[0].text, "added");
}

TEST(Manifest, JsonLines) {
  const auto list = ParseManifest(R"({"audio_filepath": "a.wav", "text": "hi", "duration": 1.5})"
                                  "\n"
                                  R"({"audio": "b.wav", "text": "you", "split": "train"})",
                                  "m.jsonl");
  ASSERT_EQ(list.size(), 2u);
  EXPECT_EQ(list[0].audio, "a.wav");
  EXPECT_EQ(list[1].split, "train");
}

TEST(Manifest, SaysWhichLineIsWrong) {
  const auto message = [](const char* text) {
    return MessageOf([&] { ParseManifest(text, "m"); });
  };
  EXPECT_THAT(message(""), HasSubstr("m: must list at least one recording"));
  EXPECT_THAT(message("a.wav\n"), HasSubstr("m, line 1: must have 2 or 3 fields"));
  EXPECT_THAT(message("a\tb\n\nc\n"), HasSubstr("m, line 3"));
  EXPECT_THAT(message("a\tb\tdev\n"), HasSubstr("must be train, validation or test, but is 'dev'"));
  EXPECT_THAT(message("file\ttext\nx\n"), HasSubstr("m, line 2: must have 2 fields"));
  EXPECT_THAT(message("{\"audio\": \"a\"}"), HasSubstr("lacks 'text'"));
  EXPECT_THAT(message("{\"audio\": 3, \"text\": \"\"}"), HasSubstr("'audio' must be a string"));
  EXPECT_THAT(message("{\"audio\": \"a\", \"file\": \"a\", \"text\": \"\"}"),
              HasSubstr("says again"));
  EXPECT_THAT(message("{\"audio\""), HasSubstr("m, line 1 is not valid JSON"));
}

TEST(Manifest, ByteOrderMarksAndBlanksInFront) {
  const std::string mark = "\xEF\xBB\xBF";
  for (const char* text :
       {"a.wav\thi\n", "audio\ttext\na.wav\thi\n", "{\"audio\": \"a.wav\", \"text\": \"hi\"}\n",
        " \t{\"audio\": \"a.wav\", \"text\": \"hi\"}\n"}) {
    for (const std::string& before : {std::string(), mark}) {
      const auto list = ParseManifest(before + text, "m");
      ASSERT_EQ(list.size(), 1u) << text;
      EXPECT_EQ(list[0].audio, "a.wav");
      EXPECT_EQ(list[0].text, "hi");
    }
  }
  EXPECT_THAT(MessageOf([&] { ParseManifest(mark, "m"); }), HasSubstr("is empty"));
}

TEST(Manifest, OtherEncodingsAreRefusedWithTheLine) {
  EXPECT_THAT(MessageOf([] { ParseManifest("a\tb\nc\tcaf\xE9\n", "m.tsv"); }),
              HasSubstr("m.tsv, line 2: must be UTF-8, but has the byte 0xE9 (if it is of Latin-1, "
                        "iconv -f LATIN1 -t UTF-8 converts it)"));
  EXPECT_THAT(MessageOf([] {
                ParseManifest(
                    "\xFF\xFE"
                    "a",
                    "m.tsv");
              }),
              HasSubstr("m.tsv: must be UTF-8, but is UTF-16 (iconv -f UTF-16"));
}

TEST(Transcript, IsWhatIsSpoken) {
  EXPECT_EQ(NormaliseTranscript("Press 1 -- or 42, 'please'..."), "press one or forty two please");
  EXPECT_EQ(NormaliseTranscript("party's  last\tname"), "party's last name");
  EXPECT_EQ(NormaliseTranscript("..."), "");
  EXPECT_EQ(NormaliseTranscript("dial 911"), std::nullopt);
  EXPECT_EQ(NormaliseTranscript("w00t"), std::nullopt);
  EXPECT_EQ(NormaliseTranscript("na\xC3\xAFve"), "na\xC3\xAFve");
  EXPECT_THAT(Characters("a\xC3\xAF"
                         "\xFF"),
              ElementsAre("a", "\xC3\xAF", "\xFF"));
}

TEST(Transcript, TypographyAndCapitalsOutsideAscii) {
  EXPECT_EQ(NormaliseTranscript(
                "\u2018Don\u2019t\u2019\u00A0go\u2026 \u00ABno\u00BB\u2014he\u2010said\u201D"),
            "don't go no he said");
  EXPECT_EQ(NormaliseTranscript("\u00C9t\u00E9 \u00C6\u00D8\u00DE\u00D7\u00DF"),
            "\u00E9t\u00E9 \u00E6\u00F8\u00FE \u00DF");
  EXPECT_EQ(NormaliseTranscript("\u0141\u00F3d\u017A \u0160\u0179\u0178\u0130"),
            "\u0142\u00F3d\u017A \u0161\u017A\u00FFi");
  EXPECT_EQ(NormaliseTranscript("\u039A\u0391\u038A \u0416\u0401\u1E9E\u1EA6"),
            "\u03BA\u03B1\u03AF \u0436\u0451\u00DF\u1EA7");
  // Small letters, other scripts and what is not UTF-8 stay.
  for (const char* text :
       {"\u0138\u0149\u017E\u00FF", "\u4F60\u597D", "\U00020000", "a\xC3", "\xFF"})
    EXPECT_EQ(NormaliseTranscript(text), text);
}

TEST(Transcript, Phonemes) {
  const auto dictionary =
      Pronunciations::Parse("read R EH D\nread(2) R IY D\nit IH T\n", "dictionary");
  EXPECT_THAT(*dictionary.Phonemes("read it"), ElementsAre("R", "EH", "D", "IH", "T"));
  std::string unknown;
  EXPECT_EQ(dictionary.Phonemes("read that", &unknown), std::nullopt);
  EXPECT_EQ(unknown, "that");
  EXPECT_THROW(Pronunciations::Parse("\n", "empty"), Error);
  EXPECT_THAT(*Pronunciations::Parse("READ  R EH1 D\n", "capitals").Phonemes("read"),
              ElementsAre("R", "EH1", "D"));
}

TEST(SpeechSet, WordsInFoldersAndDigitsInNames) {
  const TemporaryDirectory directory;
  const Audio audio{8000, std::vector<float>(400)};
  std::filesystem::create_directories(directory / "stop");
  std::filesystem::create_directories(directory / "caf\xE9");
  for (const char* name :
       {"stop/a.wav", "stop/b.WAV", "7_jackson_0.wav", "notes.txt", "caf\xE9/a.wav"})
    WriteWav(directory / name, audio);
  const SpeechSet set = LoadSpeech({"wav:" + directory.path(), "characters", ""});
  ASSERT_EQ(set.utterances.size(), 3u);
  EXPECT_EQ(set.utterances[0].name, "7_jackson_0.wav");
  EXPECT_THAT(set.utterances[0].units, ElementsAre("s", "e", "v", "e", "n"));
  EXPECT_THAT(set.utterances[2].units, ElementsAre("s", "t", "o", "p"));
  EXPECT_EQ(CountReasons(set.left_out), "1 left out (1 text that is not UTF-8)");
  EXPECT_THAT(MessageOf([&] {
                LoadSpeech({"wav:" + directory / "none", "characters", ""});
              }),
              HasSubstr("must be a folder"));
}

TEST(SpeechSet, PathsAreRelativeToTheManifestAndSplitsAreFixed) {
  const TemporaryDirectory directory;
  std::string text;
  for (int i = 0; i < 100; ++i) text += fmt::format("clips/{}.wav\tword {}\n", i, i % 10);
  WriteFileAtomic(directory / "m.tsv", text + "x.wav\t...\ny.wav\tone\ttest\n");
  const SpeechSet set = LoadSpeech({directory / "m.tsv", "characters", ""});
  ASSERT_EQ(set.utterances.size(), 101u);
  ASSERT_EQ(set.left_out.size(), 1u);
  EXPECT_EQ(ToString(set.left_out[0]), "x.wav: no words");
  int64_t count[3] = {};
  for (const Utterance& u : set.utterances) ++count[static_cast<int>(u.split)];
  EXPECT_EQ(set.utterances[0].path, directory / "clips/0.wav");
  EXPECT_EQ(set.utterances.back().split, Split::kTest);
  // What is trained on today must not be tested on tomorrow.
  EXPECT_EQ(set.utterances[0].split, Split::kTrain);
  EXPECT_EQ(count[1], 7);
  EXPECT_EQ(count[2], 8);
}

TEST(SpeechSet, TheSplitDoesNotDependOnHowTheManifestIsSpelled) {
  const TemporaryDirectory directory;
  std::filesystem::create_directories(directory / "sub");
  std::string text;
  for (int i = 0; i < 40; ++i)
    text += fmt::format("{}{}.wav\tword\n",
                        i % 3 == 0   ? "./clips//"
                        : i % 3 == 1 ? "clips/x/../"
                                     : directory / "clips/",
                        i);
  WriteFileAtomic(directory / "m.tsv", text);
  const SpeechSet plain = LoadSpeech({directory / "m.tsv", "characters", ""});
  EXPECT_EQ(plain.utterances.back().name, "clips/9.wav");
  const std::filesystem::path here = std::filesystem::current_path();
  std::filesystem::current_path(directory.path());
  for (const std::string& spelled : {std::string("m.tsv"), std::string("./m.tsv"),
                                     std::string("sub/../m.tsv"), directory / "sub/..//m.tsv"}) {
    const SpeechSet other = LoadSpeech({spelled, "characters", ""});
    for (size_t i = 0; i < plain.utterances.size(); ++i) {
      EXPECT_EQ(other.utterances[i].name, plain.utterances[i].name) << spelled;
      EXPECT_EQ(other.utterances[i].split, plain.utterances[i].split) << spelled;
    }
  }
  std::filesystem::current_path(here);
}

TEST(SpeechSet, ReasonsAreCounted) {
  EXPECT_EQ(CountReasons({}), "");
  const std::vector<LeftOut> list = {
      {"a", "no words"}, {"b", "too short", "2 rows"}, {"c", "no words"}};
  EXPECT_EQ(CountReasons(list), "3 left out (2 no words, 1 too short)");
  EXPECT_EQ(ToString(list[1]), "b: too short: 2 rows");
}

}  // namespace
}  // namespace linattn
