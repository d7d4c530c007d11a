#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <string>

#include "base/file.h"
#include "base/png.h"
#include "base/temporary_directory.h"
#include "data/image_set.h"
#include "kernels/mixer.h"
#include "model/model_file.h"
#include "program_testing.h"
#include "runtime/reference_model.h"

// The program `linattn`, as a user runs it.
namespace linattn {
namespace {

using program_testing::Result;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
namespace fs = std::filesystem;

class CliTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    directory_ = new TemporaryDirectory();
    ModelConfig c;
    c.height = c.width = 28, c.channels = 1, c.max_len = 784, c.classes = 10;
    c.dim = 16, c.heads = c.value_heads = 2, c.head_dim = c.value_dim = 8, c.mlp_dim = 24;
    c.mixers = {"linear", "linear"}, c.mixtures = 2;
    c.class_names = {"zero", "one", "two",   "three", "four",
                     "five", "six", "seven", "Eight", "nine"};
    SaveModel(Images(), c, reference::DenseTensors(c, 1));
    c.task = "text", c.position = "learned", c.head = "categorical", c.classes = 0,
    c.class_names.clear();
    c.max_len = 200, c.mixers = {"linear", "softmax"};
    const PackedModel::Tensors tensors = reference::DenseTensors(c, 2);
    SaveModel(Text(), c, tensors);
    PackedModel::Tensors broken = tensors;
    broken["position.weight"][7 * c.dim] = std::numeric_limits<float>::quiet_NaN();
    SaveModel(*directory_ / "nan.safetensors", c, broken);
  }
  static void TearDownTestSuite() { delete directory_; }

  static std::string Images() { return *directory_ / "images.safetensors"; }
  static std::string Text() { return *directory_ / "text.safetensors"; }
  static std::string Path(const std::string& name) { return *directory_ / name; }

  // Runs "linattn `arguments`", or a whole shell command in which $LINATTN is the program.
  static Result Shell(const std::string& command) {
    return program_testing::Shell("LINATTN=" LINATTN_BIN "/linattn; " + command,
                                  directory_->path());
  }
  static Result Run(const std::string& arguments) { return Shell("$LINATTN " + arguments); }

  static TemporaryDirectory* directory_;
};
TemporaryDirectory* CliTest::directory_ = nullptr;

std::string SeedIn(const std::string& text) {
  std::smatch match;
  return std::regex_search(text, match, std::regex("seed ([0-9]+)")) ? match[1].str() : "";
}

TEST_F(CliTest, HelpVersionAndUsageErrors) {
  const Result help = Run("--help");
  EXPECT_EQ(help.status, 0);
  for (const char* verb : {"generate", "complete", "eval", "inspect", "bench", "train", "export"}) {
    EXPECT_THAT(help.out, HasSubstr(verb));
  }
  for (const char* verb : {"generate", "complete", "eval", "inspect", "bench decode", "plot"}) {
    const Result own = Run(std::string(verb) + " --help");
    EXPECT_EQ(own.status, 0);
    EXPECT_THAT(own.out, AllOf(HasSubstr("Examples:"), HasSubstr("--threads"))) << verb;
    const Result wrong = Run(std::string(verb) + " --nonsense .");
    EXPECT_EQ(wrong.status, 2) << verb;
    EXPECT_THAT(wrong.error, HasSubstr("--nonsense"));
  }
  EXPECT_EQ(Run("--quiet inspect --threads 2 " + Images()).status, 0);
  EXPECT_EQ(Run("inspect --threads 0 " + Images()).status, 2);
  EXPECT_THAT(Run("--version").out, HasSubstr("linattn 0."));
  EXPECT_EQ(Run("").status, 2);
  const Result dance = Run("dance");
  EXPECT_EQ(dance.status, 2);
  EXPECT_THAT(dance.error, HasSubstr("'dance' is no verb"));
  const Result negative = Run("generate " + Images() + " --temperature -1");
  EXPECT_EQ(negative.status, 2);
  EXPECT_LT(negative.error.size(), 200u) << negative.error;
  const Result missing = Run("generate");
  EXPECT_EQ(missing.status, 2);
  EXPECT_THAT(missing.error, HasSubstr("a model file must be given"));
  const Result absent = Run("inspect " + Path("none.safetensors"));
  EXPECT_EQ(absent.status, 2);
  EXPECT_THAT(absent.error, HasSubstr("none.safetensors"));
  EXPECT_EQ(absent.out, "");
}

// State mixers keep as much for any length, caches more with every token.
TEST_F(CliTest, InspectDrawsMemoryAgainstLength) {
  const std::string svg = Path("states.svg");
  const Result all = Run("inspect --plot-state " + svg + " --json --tokens 1000");
  ASSERT_EQ(all.status, 0) << all.error;
  EXPECT_THAT(std::string(AsText(ReadFile(svg))), HasSubstr(">softmax: "));
  const auto json = nlohmann::json::parse(all.out);
  EXPECT_EQ(json["tokens"].back(), 1000);
  std::map<std::string, std::vector<int64_t>> bytes;
  for (const auto& series : json["series"]) series["bytes"].get_to(bytes[series["name"]]);
  EXPECT_EQ(bytes.size(), AllMixers().size());
  EXPECT_EQ(bytes["gla"].front(), bytes["gla"].back());
  EXPECT_EQ(bytes["softmax"].back(), 1000 * bytes["softmax"].front());

  const Result two = Run("inspect " + Images() + " " + Text() + " --json --plot-state " + svg);
  ASSERT_EQ(two.status, 0) << two.error;
  const auto models = nlohmann::json::parse(two.out);
  EXPECT_EQ(models["series"].size(), 2u);
  EXPECT_EQ(models["tokens"].back(), 784);
  // linear's S and z: 2 layers of 2 heads of 8 x 8 + 8 floats.
  EXPECT_EQ(models["series"][0]["bytes"][0], 2 * 2 * (8 * 8 + 8) * 4);
  EXPECT_EQ(Run("inspect " + Images() + " --size mnist").status, 2);
  const Result unknown = Run("inspect --plot-state " + svg + " --size giant");
  EXPECT_EQ(unknown.status, 2);
  EXPECT_THAT(unknown.error, HasSubstr("mnist, cifar10, fashion-small"));
}

TEST_F(CliTest, ThePrintedSeedReproducesTheGrid) {  // B20
  const std::string first = Path("first.png"), again = Path("again.png");
  const Result made = Run("generate " + Images() + " --n 5 --columns 3 --scale 2 --out " + first);
  ASSERT_EQ(made.status, 0) << made.error;
  const std::string seed = SeedIn(made.out);
  ASSERT_NE(seed, "");
  const Image grid = ReadPng(first);
  EXPECT_EQ(grid.width, 3 * 56 + 4 * 2);  // two pixels between pictures and around
  EXPECT_EQ(grid.height, 2 * 56 + 3 * 2);
  const Result same = Run("generate --model " + Images() + " --n 5 --columns 3 --scale 2 --seed " +
                          seed + " --batch 2 --threads 1 --quiet --out " + again);
  ASSERT_EQ(same.status, 0) << same.error;
  EXPECT_EQ(same.out + same.error, "");
  EXPECT_EQ(ReadFile(again), ReadFile(first));
  const Result uncached =
      Run("generate " + Images() + " --n 1 --scale 1 --seed " + seed + " --out " + again);
  ASSERT_EQ(uncached.status, 0) << uncached.error;
  EXPECT_EQ(ReadPng(again).At(2, 2), grid.At(2, 2));
}

TEST_F(CliTest, ClassesByNumberAndName) {
  const std::string start = "generate " + Images() + " --n 2 --seed 1 --out ";
  EXPECT_EQ(Run(start + Path("number.png") + " --class 3").status, 0);
  EXPECT_EQ(Run(start + Path("name.png") + " --class three").status, 0);
  EXPECT_EQ(Run(start + Path("other.png") + " --class 4").status, 0);
  EXPECT_EQ(ReadFile(Path("number.png")), ReadFile(Path("name.png")));
  EXPECT_NE(ReadFile(Path("number.png")), ReadFile(Path("other.png")));
  EXPECT_EQ(Run(start + Path("x.png") + " --top-p 0.9").status, 2);  // not of a mixture
  for (const char* wrong : {"10", "-1", "ten"}) {
    const Result refused = Run(start + Path("x.png") + " --class=" + wrong);
    EXPECT_EQ(refused.status, 2);
    EXPECT_THAT(refused.error, AllOf(HasSubstr("from 0 to 9"), HasSubstr(wrong)));
  }
  const Result unconditional = Run("generate " + Text() + " --class 0");
  EXPECT_EQ(unconditional.status, 2);
  EXPECT_THAT(unconditional.error, HasSubstr("no classes"));
  EXPECT_FALSE(fs::exists(Path("x.png")));
}

TEST_F(CliTest, CompletionsKeepWhatIsVisible) {
  const std::string out = Path("completions.png"), data = "mnist:" LINATTN_TESTDATA "/mnist";
  const Result made = Run("complete " + Images() + " --data " + data +
                          " --n 3 --first 4 --samples 2 --rows 10 --scale 1 --out " + out);
  ASSERT_EQ(made.status, 0) << made.error;
  const ImageSet test = LoadImages(data, Split::kTest);
  const Image grid = ReadPng(out);
  ASSERT_EQ(grid.width, 4 * 28 + 5 * 2);
  ASSERT_EQ(grid.height, 3 * 28 + 4 * 2);
  int64_t changed = 0;
  for (int64_t i = 0; i < 3; ++i) {
    const Image original = test.ImageAt(4 + i);
    for (int64_t y = 0; y < 28; ++y) {
      for (int64_t x = 0; x < 28; ++x) {
        const auto at = [&](int64_t column) {
          return grid.At(2 + 30 * i + y, 2 + 30 * column + x);
        };
        ASSERT_EQ(at(0), original.At(y, x));
        ASSERT_EQ(at(1), y < 10 ? original.At(y, x) : 127);
        ASSERT_TRUE(y >= 10 || (at(2) == at(0) && at(3) == at(0)));
        changed += y >= 10 && at(2) != at(3);
      }
    }
  }
  EXPECT_GT(changed, 1000);

  // One picture from a file, with a box hidden.
  WritePng(Path("one.png"), test.ImageAt(0));
  const std::string one = "complete " + Images() + " --image " + Path("one.png") +
                          " --samples 1 --scale 1 --out " + out;
  const Result no_class = Run(one);
  EXPECT_EQ(no_class.status, 2);
  EXPECT_THAT(no_class.error, HasSubstr("--class must be given"));
  ASSERT_EQ(Run(one + " --class 7 --hide 8:12,3:20").status, 0);
  const Image box = ReadPng(out);
  for (int64_t y = 0; y < 28; ++y) {
    for (int64_t x = 0; x < 28; ++x) {
      const bool hidden = y >= 8 && y < 12 && x >= 3 && x < 20;
      ASSERT_TRUE(hidden || box.At(2 + y, 62 + x) == test.ImageAt(0).At(y, x)) << y << " " << x;
    }
  }
  for (const char* wrong : {"8:29", "5:5", "3", "1:2,3", "1:2,0:29", "1:2x", "-1:3"}) {
    EXPECT_EQ(Run(one + " --class 7 --hide=" + wrong).status, 2) << wrong;
  }
}

TEST_F(CliTest, EvalIsTheModelsLikelihood) {
  const std::string data = "mnist:" LINATTN_TESTDATA "/mnist";
  const Result made = Run("eval " + Images() + " --data " + data + " --limit 2 --json");
  ASSERT_EQ(made.status, 0) << made.error;
  const nlohmann::json json = nlohmann::json::parse(made.out);
  EXPECT_EQ(json["count"], 2);
  const double bits = json["bits_per_dim"], nats = json["nats_per_token"];
  EXPECT_NEAR(bits * std::log(2.0), nats, 1e-12);

  // The definition in float64, with the mixture's formula written out.
  const ModelFile file = LoadModel(Images());
  const reference::Model definition(file.config, file.tensors);
  const ImageSet test = LoadImages(data, Split::kTest);
  double want = 0;
  for (int64_t i = 0; i < 2; ++i) {
    const uint8_t* pixels = test.At(i);
    std::vector<int32_t> tokens = {static_cast<int32_t>(file.config.start_token(test.labels[i]))};
    tokens.insert(tokens.end(), pixels, pixels + 783);
    const reference::Matrix outputs = definition.Forward(tokens);
    for (int64_t t = 0; t < 784; ++t) {
      const reference::Vector& p = outputs[t];
      double probability = 0, total = 0;
      for (int m = 0; m < 2; ++m) {
        const double scale = std::exp(-std::max(p[4 + m], -7.0));
        const double x = pixels[t] / 127.5 - 1, u = (x - p[2 + m]) * scale, d = scale / 255;
        const auto sigma = [](double z) { return 1 / (1 + std::exp(-z)); };
        const double upper = pixels[t] == 255 ? 1 : sigma(u + d);
        const double lower = pixels[t] == 0 ? 0 : sigma(u - d);
        probability += std::exp(p[m]) * (upper - lower);
        total += std::exp(p[m]);
      }
      want -= std::log(probability / total) / (2 * 784);
    }
  }
  EXPECT_NEAR(nats, want, 1e-5 * want);

  const Result text =
      Run("eval " + Text() + " --data " LINATTN_TESTDATA "/text/shakespeare-head.txt --limit 3");
  EXPECT_EQ(text.status, 0) << text.error;
  EXPECT_THAT(text.out, AllOf(HasSubstr("bits_per_byte"), HasSubstr("nats/token")));
  const Result wrong = Run("eval " + Images() + " --data cifar10:" LINATTN_TESTDATA "/cifar10");
  EXPECT_EQ(wrong.status, 2);
  EXPECT_THAT(wrong.error, AllOf(HasSubstr("28 x 28 x 1"), HasSubstr("32 x 32 x 3")));
}

TEST_F(CliTest, InspectTellsSizes) {
  const Result text = Run("inspect " + Images());
  ASSERT_EQ(text.status, 0) << text.error;
  EXPECT_THAT(text.out, AllOf(HasSubstr("sound"), HasSubstr("F32"), HasSubstr("nine")));
  const Result made = Run("inspect --json " + Text());
  ASSERT_EQ(made.status, 0) << made.error;
  const nlohmann::json json = nlohmann::json::parse(made.out);
  EXPECT_EQ(json["layers"][0]["state_bytes"], 4 * (2 * 8 * 8 + 2 * 8));  // S and z of two heads
  EXPECT_EQ(json["layers"][1]["state_bytes"], 4 * 200 * 2 * (8 + 8));    // keys and values
  EXPECT_EQ(json["config"]["max_len"], 200);
  int64_t parameters = 0;
  for (const auto& [name, data] : LoadModel(Text()).tensors) {
    parameters += static_cast<int64_t>(data.size());
  }
  EXPECT_EQ(json["parameters"], parameters);

  const Bytes whole = ReadFile(Text());
  WriteFileAtomic(Path("cut.safetensors"), std::span(whole).first(whole.size() - 1));
  const Result cut = Run("inspect " + Path("cut.safetensors"));
  EXPECT_EQ(cut.status, 2);
  EXPECT_THAT(cut.error, HasSubstr("cut.safetensors"));
}

TEST_F(CliTest, TextFromAnyPrompt) {  // B23, B24
  WriteFileAtomic(Path("empty"), std::string_view());
  WriteFileAtomic(Path("newline"), std::string_view("\n"));
  const std::string start = "generate " + Text() + " --tokens 50 --seed 3 ";
  const auto written = [](const std::string& arguments) {
    const Result result = Run(arguments + " --out " + Path("made"));
    EXPECT_EQ(result.status, 0) << result.error;
    return ReadFile(Path("made")).size();
  };
  const Result none = Run(start), empty = Run(start + "--prompt ''");
  const Result file = Run(start + "--prompt-file " + Path("empty"));
  const Result newline = Run(start + "--prompt-file " + Path("newline"));
  for (const Result& result : {none, empty, file, newline}) {
    EXPECT_EQ(result.status, 0) << result.error;
  }
  EXPECT_EQ(written(start), 50u);
  EXPECT_EQ(empty.out, none.out);
  EXPECT_EQ(file.out, none.out);
  EXPECT_NE(newline.out, none.out);
  EXPECT_EQ(written("generate " + Text() + " --prompt abc --tokens 197 --seed 1"), 197u);
  const Result longer = Run("generate " + Text() + " --prompt abc --tokens 198");
  EXPECT_EQ(longer.status, 2);
  EXPECT_THAT(longer.error, AllOf(HasSubstr("200"), HasSubstr("201")));

  const Result unseeded = Run("generate " + Text() + " --tokens 40");
  EXPECT_EQ(Run("generate " + Text() + " --tokens 40 --seed " + SeedIn(unseeded.error)).out,
            unseeded.out);
  const std::string greedy = "generate " + Text() + " --tokens 30 --temperature 0 --seed ";
  EXPECT_EQ(Run(greedy + "1").out, Run(greedy + "2").out);
  EXPECT_EQ(Run(start + "--top-k 100000").out, none.out);  // C3
  EXPECT_EQ(Run(start + "--no-cache").out, none.out);
  EXPECT_EQ(Run(start + "--threads 3").out, none.out);
}

TEST_F(CliTest, NonFiniteOutputsEndTheProgram) {  // C7
  const Result result = Run("generate " + Path("nan.safetensors") + " --seed 1");
  EXPECT_EQ(result.status, 2);
  EXPECT_THAT(result.error, AllOf(HasSubstr("must be finite"), HasSubstr("token 7")));
  EXPECT_GE(result.out.size(), 7u);  // seven bytes, those that are no UTF-8 as three
}

TEST_F(CliTest, PipesInterruptsAndLogs) {
  // Whose reader has gone before the program starts.
  const Result pipe = Shell(
      "bash -c 'set -o pipefail; { trap \"\" PIPE; while echo; do sleep 0.01; done "
      "2>/dev/null; " LINATTN_BIN "/linattn generate " +
      Text() + " --tokens 200 --seed 1; } | true'");
  EXPECT_EQ(pipe.status, 0) << pipe.error;
  EXPECT_EQ(pipe.error, "");
  const std::string endless =
      "generate " + Images() + " --n 100000 --seed 1 --out " + Path("never.png");
  // As soon as it has shown progress.
  const Result interrupted =
      Shell("$LINATTN " + endless + " & for i in $(seq 3000); do grep -q pixel " + Path("stderr") +
            " && break; sleep 0.02; done; kill -INT $!; wait $!");
  EXPECT_EQ(interrupted.status, 130);
  EXPECT_THAT(interrupted.error, AllOf(HasSubstr("interrupted"), HasSubstr("pixel "),
                                       Not(HasSubstr("\r")), Not(HasSubstr("\x1b"))));
  EXPECT_FALSE(fs::exists(Path("never.png")));
}

TEST_F(CliTest, OutIsCheckedBeforeTheWork) {
  const std::string verbs[] = {"generate " + Images(), "generate " + Text(),
                               "complete " + Images() + " --data mnist:" LINATTN_TESTDATA "/mnist"};
  for (const std::string& verb : verbs) {
    for (const std::string& out : {Path("none/a.png"), directory_->path()}) {
      const Result refused = Run(verb + " --seed 1 --out " + out);
      EXPECT_EQ(refused.status, 2) << verb;
      EXPECT_THAT(refused.error, AllOf(HasSubstr("--out must be"), Not(HasSubstr("pixel"))));
    }
  }
}

TEST_F(CliTest, TrainNeedsItsProgram) {
  fs::copy_file(LINATTN_BIN "/linattn", Path("linattn"), fs::copy_options::overwrite_existing);
  const Result lean = Shell(Path("linattn") + " --threads 1 train x.toml --steps 3");
  EXPECT_EQ(lean.status, 2);
  EXPECT_THAT(lean.error, AllOf(HasSubstr("'linattn-train'"), HasSubstr("libtorch-dev")));
  // Beside the program it gets every argument, and its exit status is ours.
  WriteFileAtomic(Path("linattn-train"), std::string_view("#!/bin/sh\necho \"$@\"\nexit 7\n"));
  fs::permissions(Path("linattn-train"), fs::perms::owner_all);
  const Result found = Shell(Path("linattn") + " --threads 1 train x.toml --steps 3");
  EXPECT_EQ(found.status, 7);
  EXPECT_EQ(found.out, "train x.toml --steps 3 --threads 1\n");
  EXPECT_EQ(Shell(Path("linattn") + " -q train").out, "train -q\n");
  // What cannot be passed on must not end in silence and status 0.
  EXPECT_EQ(Shell(Path("linattn") + " --threads 1 --quiet=true train").status, 2);
}

// The rows that a verb of bench prints with --json.
std::vector<nlohmann::json> Rows(const std::string& out) {
  std::vector<nlohmann::json> rows;
  for (size_t begin = 0; begin < out.size();) {
    const size_t end = out.find('\n', begin);
    rows.push_back(nlohmann::json::parse(out.substr(begin, end - begin)));
    begin = end + 1;
  }
  return rows;
}

void ExpectNumbersAbove0(const nlohmann::json& row, const std::vector<const char*>& keys) {
  for (const char* key : keys) {
    ASSERT_TRUE(row.contains(key) && row[key].is_number()) << key << " in " << row;
    EXPECT_GT(row[key].get<double>(), 0.0) << key;
  }
}

TEST_F(CliTest, BenchDecodePrintsARowADtypeAndBatch) {
  for (const std::string& model : {Images(), Text()}) {
    const Result bench =
        Run("bench decode --model " + model +
            " --batch 1,3 --dtype f32,bf16,int8 --seconds 0.01 --threads 1 --quick --json");
    ASSERT_EQ(bench.status, 0) << bench.error;
    const auto rows = Rows(bench.out);
    ASSERT_EQ(rows.size(), 6u);
    EXPECT_EQ(rows[1]["batch"], 3);
    EXPECT_EQ(rows[5]["dtype"], "int8");
    for (const auto& row : rows) {
      ExpectNumbersAbove0(row, {"seconds_per_sequence", "sequences_per_second", "us_per_step",
                                "tokens_per_second", "fraction_of_peak", "gflops", "threads"});
      ExpectNumbersAbove0(row["machine"], {"f32_peak_gflops", "memory_gbps"});
      EXPECT_THAT((std::vector<std::string>{"compute", "L2", "L3", "memory"}),
                  testing::Contains(row["bound"].get<std::string>()));
      EXPECT_EQ(row["integrated"], model == Text());  // one of its layers keeps its tokens
      const double length = row["length"], batch = row["batch"],
                   seconds = row["seconds_per_sequence"];
      EXPECT_NEAR(row["tokens_per_second"].get<double>() * seconds, length * batch, 1e-6 * length);
      EXPECT_NEAR(row["sequences_per_second"].get<double>() * seconds, batch, 1e-6);
    }
  }
  const Result table = Run("bench decode fashion-small --mixer gla --seconds 0.01 --quick");
  EXPECT_THAT(table.out, AllOf(HasSubstr("6 layers of gla"), HasSubstr("measured now"),
                               HasSubstr("s/sequence")));
  EXPECT_EQ(Run("bench decode --dtype f8").status, 2);
  EXPECT_EQ(Run("bench decode --model none.safetensors").status, 2);
  EXPECT_EQ(Run("bench").status, 2);
}

TEST_F(CliTest, BenchKernelsMemoryAndPaperPrintTheirRows) {
  const Result kernels =
      Run("bench kernels --mixer linear,lsh --B 2 --H 2 --T 130 --K 16 --V 8 "
          "--seconds 0.01 --threads 1 --quick --json");
  ASSERT_EQ(kernels.status, 0) << kernels.error;
  const auto rows = Rows(kernels.out);
  ASSERT_EQ(rows.size(), 6u);
  for (const auto& row : rows) {
    ExpectNumbersAbove0(row, {"median_ms", "gflops", "fraction_of_peak", "checked_tokens"});
    // Null where there is no linattn-train, and no plain form of the mixer.
    EXPECT_TRUE(row.contains("ratio_to_libtorch"));
    EXPECT_TRUE(row["ratio_to_libtorch"].is_null() || row["ratio_to_libtorch"] > 0.0);
  }
  EXPECT_EQ(rows[1]["pass"], "backward");
  EXPECT_EQ(Run("bench kernels --mixer nonsense").status, 2);

  const Result memory =
      Run("bench memory --mixer linear,softmax --longest 1024 --H 1 --K 16 "
          "--threads 1 --quick --json --out " +
          Path("memory"));
  ASSERT_EQ(memory.status, 0) << memory.error;
  ASSERT_EQ(Rows(memory.out).size(), 8u);
  for (const auto& row : Rows(memory.out))
    ExpectNumbersAbove0(row, {"T", "median_ms", "array_bytes", "heads_run"});
  for (const char* name : {"memory-time.svg", "memory-bytes.svg"})
    EXPECT_THAT(std::string(AsText(ReadFile(Path(name)))), HasSubstr("linear, training"));

  const Result paper = Run("bench paper --help");
  EXPECT_THAT(paper.out, AllOf(HasSubstr("Examples:"), HasSubstr("integrated")));
  EXPECT_THAT(Run("bench all --help").out, HasSubstr("--quick"));
}

TEST_F(CliTest, TheLeanProgramKnowsNoLibTorch) {
  const Result libraries = Shell("ldd " LINATTN_BIN "/linattn");
  EXPECT_EQ(libraries.status, 0);
  EXPECT_THAT(libraries.out, HasSubstr("libc.so"));
  const std::regex heavy("torch|libc10|dnnl|mkl|python");
  EXPECT_FALSE(std::regex_search(libraries.out, heavy)) << libraries.out;

  const std::regex include(R"(#\s*include\s*[<"](torch|ATen|c10|dnnl|oneapi)\b)");
  int64_t files = 0;
  for (const char* layer : {"base", "data", "model", "kernels", "runtime", "cli"}) {
    for (const auto& entry :
         fs::recursive_directory_iterator(LINATTN_SOURCE "/src/" + std::string(layer))) {
      if (!entry.is_regular_file()) continue;
      ++files;
      const Bytes bytes = ReadFile(entry.path().string());
      EXPECT_FALSE(std::regex_search(std::string(AsText(bytes)), include)) << entry.path();
    }
  }
  EXPECT_GT(files, 50);
}

// A checkpoint of another program becomes a model like others: token ids in, token ids out.
TEST_F(CliTest, ConvertMakesAModelOfACheckpoint) {
  const std::string checkpoint = LINATTN_TESTDATA "/fla/hybrid",
                    out = Path("converted.safetensors");
  const std::string convert = "convert --from fla " + checkpoint + " --out " + out;
  const Result made = Run(convert);
  ASSERT_EQ(made.status, 0) << made.error;
  EXPECT_EQ(made.out, out +
                          ": gated_deltanet, 3 layers (2 x gated_delta, 1 x softmax), dim 32, "
                          "vocabulary 40, up to 64 tokens\n52 tensors, 21904 parameters in F32\n"
                          "start token 40: as token 1\n");
  const Result generated = Run("generate " + out + " --prompt '3 17, 5' --tokens 6 --seed 4");
  EXPECT_TRUE(std::regex_match(generated.out, std::regex("([0-9]+ ){5}[0-9]+\n"))) << generated.out;
  EXPECT_EQ(
      Run("generate " + out + " --prompt '3 17 5' --tokens 6 --seed 4 --out " + Path("ids")).status,
      0);
  EXPECT_EQ(AsText(ReadFile(Path("ids"))), generated.out);
  for (const char* prompt : {"40", "-1", "3 x", "3.5", "99999999999"}) {
    const Result refused = Run("generate " + out + " --prompt=" + "'" + prompt + "'");
    EXPECT_EQ(refused.status, 2);
    EXPECT_THAT(refused.error, HasSubstr("must be token ids from 0 to 39")) << prompt;
  }
  EXPECT_EQ(Run(convert + " --dtype bf16 --max-len 4096 --quiet").out, "");
  EXPECT_THAT(Run("inspect " + out).out,
              AllOf(HasSubstr("in BF16"), HasSubstr("up to 4096 tokens")));
}

TEST_F(CliTest, ConvertWritesNothingUnlessAllIsRight) {
  const std::string checkpoint = Path("checkpoint"), out = Path("kept.safetensors");
  fs::copy(LINATTN_TESTDATA "/fla/gla", checkpoint);
  WriteFileAtomic(out, std::string_view("kept"));
  const std::string to = " --out " + out;
  const auto refuses = [&](const std::string& arguments, const std::string& message) {
    const Result result = Run("convert " + arguments);
    EXPECT_EQ(result.status, 2) << arguments;
    EXPECT_THAT(result.error, HasSubstr(message));
    EXPECT_EQ(result.out, "");
    EXPECT_EQ(AsText(ReadFile(out)), "kept");
  };
  const std::string weights = checkpoint + "/model.safetensors";
  const Bytes before = ReadFile(weights);
  refuses("--from fla " + checkpoint + " --out " + weights, "must not be a file of the checkpoint");
  EXPECT_EQ(ReadFile(weights), before);
  refuses("--from fla " + Path("absent") + to, "cannot read");
  refuses("--from fla " + out + to, "cannot read");
  refuses("--from gguf " + checkpoint + to, "--from");
  refuses("--from fla " + checkpoint, "--out is required");
  std::string config(AsText(ReadFile(checkpoint + "/config.json")));
  config.replace(config.find("\"vocab_size\": 40"), 16, "\"vocab_size\": 41");
  WriteFileAtomic(checkpoint + "/config.json", config);
  refuses("--from fla " + checkpoint + to, "lm_head.weight must be [41,32], but is [40,32]");
}

}  // namespace
}  // namespace linattn
