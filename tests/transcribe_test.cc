// linattn transcribe as a user runs it, on a model of speech with random weights.
#include <gmock/gmock.h>
#include <sys/wait.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/random.h"
#include "base/temporary_directory.h"
#include "data/audio.h"
#include "data/resample.h"
#include "model/model_file.h"
#include "program_testing.h"
#include "runtime/packed_model.h"

namespace linattn {
namespace {

using program_testing::Result;
using ::testing::AllOf;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::StartsWith;

ModelConfig Config(bool causal) {
  ModelConfig c;
  c.task = "speech", c.head = "categorical", c.sample_rate = 8000, c.input_features = 20;
  c.subsample = 3, c.vocab = 5, c.units = {"a", "b", "", "c", "d"}, c.blank = 2;
  c.unit_kind = "phonemes", c.max_len = 400, c.input_mean.assign(20, -9);
  c.input_deviation.assign(20, 3);
  c.dim = 16, c.heads = c.value_heads = 2, c.head_dim = c.value_dim = 8, c.mlp_dim = 24;
  c.causal = causal, c.block = causal ? "modern" : "classic";
  c.position = causal ? "none" : "sinusoidal";
  c.mixers = causal ? std::vector<std::string>{"gated_delta", "linear"}
                    : std::vector<std::string>{"linear", "gated_delta"};
  return c;
}

class TranscribeTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    directory_ = new TemporaryDirectory();
    for (const bool causal : {true, false}) {
      PackedModel::Tensors tensors = RandomTensors(Config(causal), 3);
      for (auto& [name, values] : tensors)
        if (name.ends_with("weight") && name.find("norm") == std::string::npos)
          for (float& x : values) x *= 12;  // so that the outputs depend on what is heard
      SaveModel(Path(causal ? "causal" : "both"), Config(causal), tensors);
      if (!causal) continue;
      ModelConfig brief = Config(true);
      brief.max_len = 40;
      SaveModel(Path("brief"), brief, tensors);
      ModelConfig bounded = brief;
      bounded.position = "sinusoidal";
      SaveModel(Path("bounded"), bounded, tensors);
      tensors["head.weight"][5] = NAN;
      SaveModel(Path("nan"), brief, tensors);
    }
    Random random(1);
    Audio audio{8000, {}};
    for (int i = 0; i < 24000; ++i)
      audio.samples.push_back(static_cast<float>(
          0.3 * std::sin(0.1 * i * (1 + i / 4000)) * std::sin(i * 0.002) + 0.01 * random.Normal()));
    WriteWav(Path("a.wav"), audio);
    const Bytes wav = ReadFile(Path("a.wav"));
    WriteFileAtomic(Path("a.pcm"), std::span(wav).subspan(44));
    Resampler resampler(8000, 22050);
    Audio copy{22050, {}};
    resampler.Push(audio.samples, copy.samples);
    resampler.Finish(copy.samples);
    WriteWav(Path("b.wav"), copy);
    WriteWav(Path("short.wav"), {8000, std::vector<float>(150)});
  }
  static void TearDownTestSuite() { delete directory_; }
  static std::string Path(const std::string& name) { return *directory_ / name; }

  static Result Run(const std::string& arguments, const std::string& before = "") {
    return program_testing::Shell(before + LINATTN_BIN "/linattn transcribe " + arguments,
                                  directory_->path());
  }

  static TemporaryDirectory* directory_;
};

TemporaryDirectory* TranscribeTest::directory_ = nullptr;

TEST_F(TranscribeTest, FilesByGreedyAndBeam) {
  const Result one = Run(Path("both") + " " + Path("a.wav"));
  ASSERT_EQ(one.status, 0) << one.error;
  EXPECT_GT(one.out.size(), 4u);
  const Result two =
      Run(Path("both") + " --json " + Path("a.wav") + " " + Path("b.wav") + " --beam 4");
  ASSERT_EQ(two.status, 0) << two.error;
  const auto json = nlohmann::json::parse(two.out.substr(0, two.out.find('\n')));
  EXPECT_EQ(json["file"], Path("a.wav"));
  EXPECT_TRUE(json["phonemes"].is_string());
  EXPECT_NEAR(json["audio_s"].get<double>(), 3, 1e-9);
  EXPECT_LT(json["log_probability"].get<double>(), 0);
  EXPECT_THAT(two.out, HasSubstr("b.wav"));
}

TEST_F(TranscribeTest, AStreamSaysWhatTheFileDoes) {
  const Result file = Run(Path("causal") + " " + Path("a.wav"));
  const Result stream = Run(Path("causal") + " - --rate 8000 < " + Path("a.pcm"));
  ASSERT_EQ(stream.status, 0) << stream.error;
  EXPECT_EQ(stream.out, file.out);
  EXPECT_GT(stream.out.size(), 4u);
  // However it comes, an odd byte at a time included.
  const Result slow = Run(
      Path("causal") + " - --rate 8000",
      "(head -c 1001 " + Path("a.pcm") + "; sleep 0.1; tail -c +1002 " + Path("a.pcm") + ") | ");
  EXPECT_EQ(slow.out, file.out);
}

TEST_F(TranscribeTest, AStateInMidStreamGoesOn) {
  const std::string stream = Path("causal") + " - --rate 8000 ";
  const Result whole = Run(stream + "< " + Path("a.pcm"));
  const Bytes pcm = ReadFile(Path("a.pcm"));
  for (const size_t at : {size_t{2}, size_t{12345}, size_t{40000}}) {  // in mid-sample too
    WriteFileAtomic(Path("1.pcm"), std::span(pcm).first(at));
    WriteFileAtomic(Path("2.pcm"), std::span(pcm).subspan(at));
    const Result first = Run(stream + "--save-state " + Path("s") + " < " + Path("1.pcm"));
    ASSERT_EQ(first.status, 0) << first.error;
    const Result second = Run(stream + "--load-state " + Path("s") + " < " + Path("2.pcm"));
    ASSERT_EQ(second.status, 0) << second.error;
    EXPECT_EQ(first.out.substr(0, first.out.size() - 1) + second.out, whole.out) << at;
  }
  const Result other =
      Run(Path("causal") + " - --rate 16000 --load-state " + Path("s") + " < " + Path("2.pcm"));
  EXPECT_EQ(other.status, 2);
  EXPECT_THAT(other.error, HasSubstr("16000 Hz"));
  Bytes state = ReadFile(Path("s"));
  state[state.size() - 3] ^= 1;
  WriteFileAtomic(Path("bad"), state);
  EXPECT_THAT(Run(stream + "--load-state " + Path("bad") + " < " + Path("2.pcm")).error,
              HasSubstr("checksum"));
}

TEST_F(TranscribeTest, RefusalsSayWhatToDo) {
  EXPECT_THAT(Run(Path("both") + " " + Path("short.wav")).error,
              HasSubstr("short.wav: must be at least one window of 25 ms long"));
  EXPECT_THAT(Run(Path("both") + " " + Path("a.pcm")).error,
              HasSubstr("must be a WAV, FLAC or Ogg"));
  EXPECT_THAT(Run(Path("both") + " - --rate 8000 < /dev/null").error,
              HasSubstr("a stream needs a causal model"));
  EXPECT_THAT(Run(Path("causal") + " - < /dev/null").error, HasSubstr("(--rate)"));
  EXPECT_THAT(Run(Path("causal") + " " + Path("a.wav") + " --rate 8000").error,
              HasSubstr("are for a stream"));
  EXPECT_THAT(Run(Path("causal") + " - --rate 8000 --beam 3 < /dev/null").error,
              HasSubstr("--beam must be left out"));
  EXPECT_THAT(Run(Path("causal") + " " + Path("a.wav") + " - < /dev/null").error,
              HasSubstr("must be the only file"));
  ModelConfig recall = Config(true);
  recall.task = "recall", recall.units.clear(), recall.input_features = 0, recall.subsample = 1;
  recall.input_mean.clear(), recall.input_deviation.clear();
  SaveModel(Path("recall"), recall, RandomTensors(recall, 3));
  EXPECT_THAT(Run(Path("recall") + " " + Path("a.wav")).error,
              HasSubstr("must be one of speech, but is one of recall"));
  // Before the stream is read, not behind it.
  EXPECT_THAT(Run(Path("causal") + " - --rate 8000 --save-state /nonexistent/x < " + Path("a.pcm")),
              AllOf(Field(&Result::status, 2), Field(&Result::out, ""),
                    Field(&Result::error, HasSubstr("--save-state must be in a directory that "
                                                    "exists, but '/nonexistent' does not"))));
}

TEST_F(TranscribeTest, OutputsThatAreNotFiniteAreNoText) {
  for (const std::string& arguments :
       {" " + Path("short1.wav"), " " + Path("short1.wav") + " --beam 4", " " + Path("a.wav"),
        " - --rate 8000 < " + Path("a.pcm")}) {
    WriteWav(Path("short1.wav"), {8000, std::vector<float>(2000, 0.1f)});
    const Result result = Run(Path("nan") + arguments);
    EXPECT_EQ(result.status, 2) << arguments;
    EXPECT_EQ(result.out, "") << arguments;
    EXPECT_THAT(result.error, HasSubstr("outputs must be finite, but hold nan in row 0"));
  }
}

TEST_F(TranscribeTest, WhoStopsAStreamLosesNothing) {
  // The first half of the sound, then silence on the line; the signal comes after `wait`.
  const auto interrupted = [](const std::string& options, const std::string& wait) {
    const std::string line = Path("line"), sound = "head -c 24000 " + Path("a.pcm");
    return Run(Path("causal") + " - --rate 8000 " + options + " & child=$!; " + wait +
                   "; kill -TERM $child; wait $child",
               "rm -f " + line + "; mkfifo " + line + "; (" + sound + "; sleep 9) > " + line +
                   " & < " + line + " ");
  };
  const Result whole = Run(Path("causal") + " - --rate 8000 < " + Path("a.pcm"));
  const Result text =
      interrupted("--save-state " + Path("t"),
                  "for i in $(seq 200); do [ -s " + Path("stdout") + " ] || sleep 0.05; done");
  EXPECT_EQ(text.status, 143) << text.error;
  ASSERT_GT(text.out.size(), 1u);
  EXPECT_THAT(whole.out, StartsWith(text.out.substr(0, text.out.size() - 1)));
  EXPECT_EQ(
      Run(Path("causal") + " - --rate 8000 --load-state " + Path("t") + " < /dev/null").status, 0);
  Result json;
  for (const char* wait : {"sleep 0.5", "sleep 2", "sleep 8"})
    if (json.out.empty()) json = interrupted("--json", wait);
  EXPECT_EQ(json.status, 143);
  EXPECT_TRUE(nlohmann::json::accept(json.out)) << json.out;
  // A reader that goes away: the state is there all the same.
  std::filesystem::remove(Path("t"));
  Run(Path("causal") + " - --rate 8000 --save-state " + Path("t") + " < " + Path("a.pcm") +
      " | true");
  EXPECT_TRUE(std::filesystem::exists(Path("t")));
}

TEST_F(TranscribeTest, AStreamThatIsTooLongKeepsWhatWasHeard) {
  const Result json = Run(Path("bounded") + " - --rate 8000 --json < " + Path("a.pcm"));
  EXPECT_EQ(json.status, 2);
  EXPECT_THAT(json.error, HasSubstr("40"));
  ASSERT_TRUE(nlohmann::json::accept(json.out)) << json.out;
  EXPECT_FALSE(nlohmann::json::parse(json.out)["phonemes"].get<std::string>().empty());
}

TEST_F(TranscribeTest, FilesLongerThanTheModelsMaximumAreReadAsStreams) {
  const Result brief = Run(Path("brief") + " " + Path("a.wav"));
  ASSERT_EQ(brief.status, 0) << brief.error;
  EXPECT_EQ(brief.out, Run(Path("causal") + " " + Path("a.wav")).out);
  EXPECT_THAT(Run(Path("brief") + " --beam 3 " + Path("a.wav")).error,
              HasSubstr("(1 s), but makes 100: leave out --beam"));
}

TEST_F(TranscribeTest, OneBadFileDoesNotEndTheOthers) {
  std::filesystem::copy_file(Path("a.wav"), Path("\xE9.wav"),
                             std::filesystem::copy_options::overwrite_existing);
  const Result result = Run(Path("both") + " --json " + Path("a.wav") + " " + Path("none.wav") +
                            " " + Path("short.wav") + " " + Path("\xE9.wav"));
  EXPECT_EQ(result.status, 2);
  EXPECT_THAT(result.error, HasSubstr("none.wav'"));
  EXPECT_THAT(result.error, HasSubstr("short.wav: must be at least one window"));
  EXPECT_THAT(result.error, HasSubstr("all 4 files must be transcribed, but 2 could not be"));
  std::vector<nlohmann::json> lines;
  std::istringstream stream(result.out);
  for (std::string line; std::getline(stream, line);) lines.push_back(nlohmann::json::parse(line));
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_TRUE(lines[1].contains("error"));
  EXPECT_EQ(lines[0]["phonemes"], lines[3]["phonemes"]);
  Bytes cut = ReadFile(Path("a.wav"));
  cut.resize(cut.size() / 2);
  WriteFileAtomic(Path("cut.wav"), cut);
  const Result half = Run(Path("both") + " " + Path("cut.wav"));
  EXPECT_EQ(half.status, 0);
  EXPECT_THAT(half.error, HasSubstr("cut.wav: is cut"));
}

TEST_F(TranscribeTest, AWavStreamIsHeardAsItsFile) {
  const Result file = Run(Path("causal") + " " + Path("a.wav"));
  const Result stream = Run(Path("causal") + " - < " + Path("a.wav"));
  EXPECT_EQ(stream.out, file.out) << stream.error;
  EXPECT_THAT(Run(Path("causal") + " - --rate 16000 < " + Path("a.wav")).error,
              HasSubstr("8000 Hz by its WAV head"));
  EXPECT_THAT(Run(Path("causal") + " - --rate 16000", "echo fLaC1234 | ").error,
              HasSubstr("begins as a file of FLAC"));
}

TEST_F(TranscribeTest, EvalCountsErrorsAsTranscribeMakesThem) {
  const Result said = Run(Path("both") + " " + Path("a.wav"));
  std::string text = said.out.substr(0, said.out.size() - 1);
  std::erase(text, ' ');
  ASSERT_GT(text.size(), 2u);
  ModelConfig c = Config(false);
  c.unit_kind = "characters";
  const ModelFile file = LoadModel(Path("both"));
  SaveModel(Path("characters"), c, file.tensors);
  WriteFileAtomic(Path("m.tsv"), "a.wav\t" + text + "\ttest\n./a.wav\t" + text +
                                     "xx\ttest\nshort.wav\ta\ttest\nb.wav\td\ttrain\n");
  const auto eval = [](const std::string& arguments) {
    return program_testing::Shell(
        LINATTN_BIN "/linattn eval " + Path("characters") + " --data " + arguments,
        directory_->path());
  };
  const Result result = eval(Path("m.tsv") + " --json --quiet");
  ASSERT_EQ(result.status, 0) << result.error;
  const auto json = nlohmann::json::parse(result.out);
  EXPECT_EQ(json["count"], 2);
  EXPECT_EQ(json["errors"], 2);  // what the model cannot spell
  EXPECT_EQ(json["labels"], 2 * text.size() + 2);
  EXPECT_EQ(json["left_out"], 1);
  EXPECT_NEAR(json["character_error_rate"].get<double>(),
              2 / static_cast<double>(2 * text.size() + 2), 1e-9);
  const Result lines = eval(Path("m.tsv") + " --split all --beam 4");
  EXPECT_EQ(lines.status, 0) << lines.error;
  EXPECT_THAT(lines.out, HasSubstr("3 utterances of " + Path("m.tsv") + " (all)"));
  EXPECT_THAT(lines.error, HasSubstr("1 left out (1 too short for what is said)"));
  EXPECT_THAT(eval(Path("m.tsv") + " --split validation").error,
              HasSubstr("1 of train, 0 of validation and 3 of test"));
}

}  // namespace
}  // namespace linattn
