#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <regex>
#include <string>

#include "base/file.h"
#include "base/temporary_directory.h"
#include "data/vocabulary.h"
#include "model/model_file.h"
#include "program_testing.h"
#include "runtime/reference_model.h"

// `linattn generate` and `eval` on text, as a user runs them.
namespace linattn {
namespace {

using program_testing::Result;
using ::testing::AllOf;
using ::testing::HasSubstr;

class TextTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    directory_ = new TemporaryDirectory();
    ModelConfig c;
    c.task = "text", c.position = "none", c.head = "categorical", c.max_len = 64;
    c.dim = 16, c.heads = c.value_heads = 2, c.head_dim = c.value_dim = 8, c.mlp_dim = 24;
    c.mixers = {"linear", "gated_delta"};
    SaveModel(Path("bytes.safetensors"), c, reference::DenseTensors(c, 1));
    SaveModel(Path("other.safetensors"), c, reference::DenseTensors(c, 2));
    const Vocabulary pieces = Vocabulary::Open(LINATTN_TESTDATA "/text/pieces.model");
    c.vocab = pieces.size();
    SaveModel(Path("pieces.safetensors"), c, reference::DenseTensors(c, 3), DType::kF32, {},
              pieces.file());
    SaveModel(Path("ids.safetensors"), c, reference::DenseTensors(c, 3));
  }
  static void TearDownTestSuite() { delete directory_; }

  static std::string Path(const std::string& name) { return *directory_ / name; }
  static std::string TextOf(const std::string& name) {
    return std::string(AsText(ReadFile(Path(name))));
  }
  // A shell command in which $G is "linattn generate" and $B a model of bytes.
  static Result Shell(const std::string& command) {
    return program_testing::Shell("cd " + directory_->path() + "; L=" LINATTN_BIN "/linattn; " +
                                      "G=\"$L generate\"; B=bytes.safetensors; " + command,
                                  directory_->path());
  }

  static TemporaryDirectory* directory_;
};
TemporaryDirectory* TextTest::directory_ = nullptr;

TEST_F(TextTest, PromptsFromArgumentFileAndStandardInput) {
  const Result argument = Shell("$G $B --prompt 'To be' --seed 1 --tokens 80");
  ASSERT_EQ(argument.status, 0) << argument.error;
  EXPECT_THAT(argument.error, HasSubstr("prompt: 6 tokens evaluated"));  // and the start token
  EXPECT_EQ(Shell("printf 'To be' | $G $B - --seed 1 --tokens 80").out, argument.out);
  EXPECT_EQ(Shell("printf 'To be' >p; $G $B --prompt-file p --seed 1 --tokens 80").out,
            argument.out);
  EXPECT_EQ(Shell("printf 'To be' | $G $B --prompt-file - --seed 1 --tokens 80").out, argument.out);
  EXPECT_EQ(Shell("$G $B --prompt x -").status, 2);
  EXPECT_EQ(Shell("$G $B --prompt-file none").status, 2);
  EXPECT_EQ(Shell("$G $B --prompt-file .").status, 2);
}

TEST_F(TextTest, FilesKeepEveryByteAndTheScreenShowsWholeCharacters) {  // C8
  ASSERT_EQ(Shell("$G $B --seed 2 --tokens 300 --out made").status, 0);
  EXPECT_EQ(TextOf("made").size(), 300u);
  const Result shown = Shell("$G $B --seed 2 --tokens 300");
  EXPECT_THAT(shown.out, HasSubstr("\xEF\xBF\xBD"));
  ASSERT_EQ(Shell("iconv -f UTF-8 -t UTF-8 stdout >/dev/null").status, 0);
  EXPECT_EQ(Shell("$G $B --seed 2 --tokens 300 --out -").out, shown.out);
}

TEST_F(TextTest, TurnsWithStateFilesEqualOnePass) {  // B7, B14
  for (const char* how :
       {"--temperature 0", "--seed 5 --temperature 0.8 --repetition-penalty 1.2"}) {
    const std::string all = std::string(how) + " --out made";
    std::string whole, parts;
    ASSERT_EQ(Shell("$G $B " + all + " --prompt abc --tokens 50").status, 0);
    whole = TextOf("made");
    ASSERT_EQ(Shell("$G $B " + all + " --prompt abc --tokens 10 --save-state s").status, 0);
    parts = TextOf("made");
    for (int turn = 1; turn < 5; ++turn) {
      const Result next = Shell("$G $B " + all + " --load-state s --tokens 10 --save-state s");
      ASSERT_EQ(next.status, 0) << next.error;
      EXPECT_THAT(next.error, HasSubstr("prompt: 0 tokens evaluated"));
      parts += TextOf("made");
    }
    EXPECT_EQ(parts, whole);
    ASSERT_EQ(Shell("$G $B " + all + " --prompt abc --tokens 50 --save-state w").status, 0);
    EXPECT_EQ(std::filesystem::file_size(Path("w")), std::filesystem::file_size(Path("s")));
  }
  for (const char* wrong :
       {"$G other.safetensors --load-state s", "head -c 900 s >cut; $G $B --load-state cut",
        ": >empty; $G $B --load-state empty", "$G $B --load-state $B",
        "sed 's/\"tokens\":\"00/\"tokens\":\"01/' s >count; $G $B --load-state count"}) {
    const Result refused = Shell(wrong);
    EXPECT_EQ(refused.status, 2) << wrong;
    EXPECT_THAT(refused.error, HasSubstr("[state]")) << wrong;
    EXPECT_EQ(refused.out, "");
  }
}

TEST_F(TextTest, TheSamePromptIsNotReadTwice) {  // B9
  const std::string with = "$G $B --seed 3 --tokens 20 --prompt-cache c ";
  const Result first = Shell("rm -f c; " + with + "--prompt 'once upon a time'");
  EXPECT_THAT(first.error, AllOf(HasSubstr("miss"), HasSubstr("17 tokens evaluated")));
  const Result again = Shell(with + "--prompt 'once upon a time'");
  EXPECT_THAT(again.error, AllOf(HasSubstr("hit, 16"), HasSubstr("0 tokens evaluated")));
  EXPECT_EQ(again.out, first.out);
  const Result longer = Shell(with + "--prompt 'once upon a time there'");
  EXPECT_THAT(longer.error, AllOf(HasSubstr("hit, 16"), HasSubstr("6 tokens evaluated")));
  EXPECT_EQ(longer.out, Shell("$G $B --seed 3 --tokens 20 --prompt 'once upon a time there'").out);
  const Result other = Shell(with + "--prompt 'twice upon a time there'");
  EXPECT_THAT(other.error, AllOf(HasSubstr("miss, it is of another text"), HasSubstr("24 tokens")));
  const Result shorter = Shell(with + "--prompt 'twice'");
  EXPECT_THAT(shorter.error, AllOf(HasSubstr("miss"), HasSubstr("6 tokens evaluated")));
  const Result damaged = Shell("head -c 900 c >d; mv d c; " + with + "--prompt 'twice'");
  EXPECT_EQ(damaged.status, 0);
  EXPECT_THAT(damaged.error, AllOf(HasSubstr("miss"), HasSubstr("[state]")));
  EXPECT_EQ(damaged.out, shorter.out);
}

TEST_F(TextTest, EndsAtStopStringsAndAtNothing) {
  ASSERT_EQ(Shell("$G $B --seed 4 --tokens 200 --out made").status, 0);
  const std::string all = TextOf("made"), stop = all.substr(120, 2);
  WriteFileAtomic(Path("stop"), stop);
  ASSERT_EQ(
      Shell("$G $B --seed 4 --tokens 200 --out made --stop nonsense --stop \"$(cat stop)\"").status,
      0);
  EXPECT_EQ(TextOf("made"), all.substr(0, all.find(stop)));
  const Result none = Shell("$G $B --tokens 0 --prompt x --save-state s");
  EXPECT_EQ(none.status, 0);
  EXPECT_EQ(none.out, "");
  // Far beyond max_len, timed.
  const Result far = Shell("$G $B --tokens 500 --timing 250 --out /dev/null");
  EXPECT_EQ(far.status, 0);
  EXPECT_THAT(far.error, AllOf(HasSubstr("\"tokens\":500"), HasSubstr("us_per_token")));
  EXPECT_EQ(Shell("$G $B --forever --quiet | head -c 4000 >/dev/null").status, 0);
  EXPECT_EQ(Shell("timeout -s INT 1 $G $B --forever --save-state i >/dev/null").status, 124);
  EXPECT_EQ(Shell("$G $B --load-state i --tokens 1").status, 0);
}

TEST_F(TextTest, PiecesAreEncodedAndDecoded) {
  const Result made = Shell("$G pieces.safetensors --prompt 'First Citizen' --seed 1 --tokens 40");
  ASSERT_EQ(made.status, 0) << made.error;
  const Vocabulary pieces = Vocabulary::Open(LINATTN_TESTDATA "/text/pieces.model");
  const size_t tokens = pieces.Encode("First Citizen").size();
  EXPECT_THAT(made.error, HasSubstr(fmt::format("prompt: {} tokens", tokens + 1)));
  // The same model without its vocabulary takes and writes ids.
  std::string ids;
  for (const int32_t id : pieces.Encode("First Citizen")) ids += std::to_string(id) + " ";
  ASSERT_EQ(
      Shell("$G ids.safetensors --prompt '" + ids + "' --seed 1 --tokens 40 --out ids").status, 0);
  ASSERT_EQ(Shell("$G pieces.safetensors --prompt 'First Citizen' --seed 1 --tokens 40 --out text")
                .status,
            0);
  const std::vector<int32_t> drawn = Vocabulary(512, {}).Encode(TextOf("ids"));
  EXPECT_EQ(drawn.size(), 40u);
  EXPECT_EQ(pieces.Decode(drawn), TextOf("text"));

  const std::string data =
      " --data " LINATTN_TESTDATA "/text/shakespeare-head.txt --limit 5 --json";
  const Result scored = Shell("$L eval pieces.safetensors" + data);
  EXPECT_THAT(scored.out, HasSubstr("bits_per_byte"));
  std::smatch bits, nats;
  ASSERT_TRUE(std::regex_search(scored.out, bits, std::regex("bits_per_byte\":([0-9.]+)")));
  ASSERT_TRUE(std::regex_search(scored.out, nats, std::regex("nats_per_token\":([0-9.]+)")));
  const std::vector<int32_t> symbols =
      pieces.Encode(AsText(ReadFile(LINATTN_TESTDATA "/text/shakespeare-head.txt")));
  const double bytes = static_cast<double>(pieces.Decode(std::span(symbols).first(5 * 64)).size());
  EXPECT_NEAR(std::stod(bits[1]), std::stod(nats[1]) * 5 * 64 / bytes / std::log(2.0), 1e-6);
}

}  // namespace
}  // namespace linattn
