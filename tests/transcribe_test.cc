// linattn transcribe as a user runs it, on a model of speech with random weights.
#include <gmock/gmock.h>
#include <sys/wait.h>

#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>

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
  for (const size_t at : {size_t{2}, size_t{12346}, size_t{40000}}) {
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
}

}  // namespace
}  // namespace linattn
