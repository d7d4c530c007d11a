#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <regex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/file.h"
#include "base/temporary_directory.h"
#include "data/vocabulary.h"
#include "model/model_file.h"
#include "model/parameters.h"
#include "program_testing.h"
#include "runtime/reference_model.h"

// `linattn generate` and `eval` on text, as a user runs them.
namespace linattn {
namespace {

using program_testing::Result;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

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
  // Saves a model whose likeliest symbol is the first of `symbols` at the start, then always the
  // next, round and round.
  static void SaveChain(const std::string& name, const std::vector<int32_t>& symbols,
                        std::span<const uint8_t> vocabulary = {}, int64_t vocab = 256) {
    ModelConfig c;
    c.task = "text", c.position = "none", c.head = "categorical", c.max_len = 64;
    c.vocab = vocab, c.dim = 8, c.heads = c.value_heads = 1, c.head_dim = c.value_dim = 4;
    c.mlp_dim = 4, c.mixers = {"linear"};
    PackedModel::Tensors tensors;
    for (const ParameterSpec& spec : Parameters(c)) tensors[spec.name].resize(ElementsOf(spec));
    for (float& x : tensors["norm.weight"]) x = 1;
    const int64_t n = std::ssize(symbols);
    for (int64_t i = 0; i <= n; ++i) {  // the start token last
      const int64_t from = i < n ? symbols[i] : c.start_token(0), channel = i;
      tensors["embed.weight"][from * c.dim + channel] = 10;
      tensors["head.weight"][symbols[i < n ? (i + 1) % n : 0] * c.dim + channel] = 1;
    }
    SaveModel(Path(name), c, tensors, DType::kF32, {}, vocabulary);
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

TEST_F(TextTest, CharactersAreWholeWhereverATextIsSaved) {  // C8, B7
  SaveChain("zhong", {0xE4, 0xB8, 0xAD, 'W', 'X'});
  const std::string text = "\xE4\xB8\xADWX\xE4\xB8\xADWX", generate = "$G zhong --temperature 0 ";
  ASSERT_EQ(Shell(generate + "--tokens 10").out, text);
  for (int cut = 0; cut <= 10; ++cut) {
    const std::string first = Shell(generate + fmt::format("--tokens {} --save-state s", cut)).out;
    const std::string rest = generate + fmt::format("--load-state s --tokens {}", 10 - cut);
    EXPECT_EQ(first + Shell(rest).out, text) << cut;
    EXPECT_EQ(first + Shell(rest).out, text) << cut << ", twice from one state";
    ASSERT_EQ(Shell(rest + " --out made").status, 0);
    EXPECT_EQ(TextOf("made"), text.substr(cut));
    // One by one.
    std::string parts = first;
    for (int i = cut; i < 10; ++i) {
      parts += Shell(generate + "--load-state s --save-state s --tokens 1").out;
    }
    EXPECT_EQ(parts, text) << cut;
  }
  EXPECT_EQ(Shell(generate + "--tokens 2").out, "\xEF\xBF\xBD");  // nothing comes behind it
  for (const char* how : {"", " --no-cache"}) {
    const std::string prompt = "printf 'x\\344\\270' | " + generate + "- --tokens ";
    EXPECT_EQ(Shell(prompt + "3" + how).out, "\xE4\xB8\xADWX");
    EXPECT_EQ(Shell(prompt + "0" + how).out, "");
  }
  const Vocabulary pieces = Vocabulary::Open(LINATTN_TESTDATA "/text/pieces.model");
  std::vector<int32_t> bytes;  // pieces of a byte
  for (int32_t id = 0; id < pieces.size(); ++id) {
    if (const std::string text = pieces.TextOf(id, false); text.size() == 1 && text[0] < 0) {
      bytes.push_back(id);
    }
  }
  ASSERT_EQ(bytes.size(), 128u);
  SaveChain("pieces-zhong", {bytes[0xE4 - 128], bytes[0xB8 - 128], bytes[0xAD - 128]},
            pieces.file(), pieces.size());
  const std::string in_pieces = "$G pieces-zhong --temperature 0 ";
  EXPECT_EQ(Shell(in_pieces + "--tokens 4 --save-state s").out, "\xE4\xB8\xAD");
  EXPECT_EQ(Shell(in_pieces + "--tokens 2 --load-state s --stop '\xE4\xB8\xAD'").out, "");
  EXPECT_EQ(Shell(in_pieces + "--tokens 2 --load-state s").out, "\xE4\xB8\xAD");
  const std::string cached = "--prompt-cache zhong.cache --tokens 2";
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(Shell("printf '\\344' | " + generate + "- " + cached).out, "\xE4\xB8\xAD");
  }
}

TEST_F(TextTest, StopStringsAreFoundAcrossStates) {
  SaveChain("zhong", {0xE4, 0xB8, 0xAD, 'W', 'X'});
  SaveChain("ws", {'W'});
  const std::string generate = "$G zhong --temperature 0 --stop WX --stop 'X\xE4\xB8\xADW' ";
  ASSERT_EQ(Shell("$G zhong --temperature 0 --tokens 9 --stop 'X\xE4\xB8\xADW'").out,
            "\xE4\xB8\xADW");
  ASSERT_EQ(Shell(generate + "--tokens 4 --save-state s").out, "\xE4\xB8\xADW");
  const Result across = Shell(generate + "--load-state s --save-state s --tokens 9");
  EXPECT_EQ(across.out, "");
  EXPECT_THAT(across.error, HasSubstr("1 tokens,"));
  EXPECT_EQ(Shell(generate + "--load-state s --tokens 9").out, "\xE4\xB8\xAD");  // the next one
  ASSERT_EQ(Shell("$G zhong --temperature 0 --tokens 5 --save-state s").status, 0);
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(Shell("$G zhong --temperature 0 --load-state s --save-state s --tokens 1").status, 0);
  }
  EXPECT_EQ(Shell(generate + "--load-state s --tokens 9 --out made").status, 0);
  EXPECT_EQ(TextOf("made"), "");

  // Neither a prompt nor what has ended a text already is a part of one.
  const std::string ws = "$G ws --temperature 0 --stop WW --tokens 9 ";
  EXPECT_THAT(Shell(ws + "--prompt W --save-state s").error, HasSubstr("2 tokens,"));
  EXPECT_THAT(Shell(ws + "--load-state s").error, HasSubstr("2 tokens,"));
  ASSERT_EQ(Shell("$G ws --temperature 0 --tokens 1 --save-state s").out, "W");
  EXPECT_THAT(Shell(ws + "--load-state s").error, HasSubstr("1 tokens,"));
  EXPECT_THAT(Shell(ws + "--load-state s --prompt W").error, HasSubstr("2 tokens,"));
  EXPECT_EQ(Shell("$G ws --temperature 0 --load-state s --stop W").out, "");
}

TEST_F(TextTest, WhatCannotBeIsRefusedBeforeTheWork) {
  for (const auto& [wrong, why] : std::vector<std::pair<std::string, std::string>>{
           {"--top-p 1.5", "top_p must be in (0,1], but is 1.5"},
           {"--top-p 0", "top_p must be"},
           {"--stop ''", "at least one byte"},
           {"--stop x --stop ''", "at least one byte"},
           {"--n 3", "--n must be left out for a model of text"},
           {"--no-cache --tokens 65", "64 tokens, but are 65"}}) {
    const Result refused = Shell("$G $B --prompt abc " + wrong);
    EXPECT_EQ(refused.status, 2) << wrong;
    EXPECT_THAT(refused.error, AllOf(HasSubstr(why), Not(HasSubstr("prompt: ")))) << wrong;
    EXPECT_EQ(refused.out, "");
  }
  // Without the cache max_len is the end of every model.
  EXPECT_EQ(Shell("$G $B --seed 1 --no-cache --forever --prompt abc --out made").status, 0);
  EXPECT_EQ(TextOf("made").size(), 61u);
  EXPECT_EQ(Shell("$G $B --no-cache --tokens 0").status, 0);
}

TEST_F(TextTest, EachVerbSaysWhichOneFits) {
  ModelConfig c;
  c.task = "copy", c.position = "learned", c.head = "categorical", c.max_len = 16, c.vocab = 4;
  c.dim = 8, c.heads = c.value_heads = 2, c.head_dim = c.value_dim = 4, c.mlp_dim = 8;
  c.mixers = {"linear"};
  SaveModel(Path("copy"), c, reference::DenseTensors(c, 1));
  c.task = "speech", c.input_features = 40, c.sample_rate = 8000, c.vocab = 5, c.subsample = 3;
  SaveModel(Path("speech"), c, reference::DenseTensors(c, 1));
  for (const char* more : {"", " --tokens 3"}) {
    const std::string speech = "images or text, but is one of speech (see: linattn transcribe)";
    EXPECT_THAT(Shell(std::string("$G speech") + more).error, HasSubstr(speech));
    const Result copy = Shell(std::string("$G copy") + more);
    EXPECT_EQ(copy.status, 2);
    EXPECT_THAT(copy.error, HasSubstr("but is one of copy (see: linattn compare)"));
  }
  EXPECT_THAT(Shell("$L complete $B --image none.png").error,
              HasSubstr("images, but is one of text (see: linattn generate)"));
  EXPECT_THAT(Shell("$L inspect speech").out,
              HasSubstr("speech at 8000 Hz, 3 x 40 features a row, up to 16 rows; 4 characters and "
                        "a blank"));
  EXPECT_THAT(Shell("$L inspect copy").out, HasSubstr("copy, vocabulary 4, up to 16 tokens"));
  EXPECT_THAT(Shell("$L inspect $B").out, HasSubstr("text, vocabulary 256"));
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
  EXPECT_EQ(Shell("timeout --foreground -s INT 1 $G $B --forever --save-state i >/dev/null").status,
            124);
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
