#include "runtime/continuation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <limits>

#include "base/error.h"
#include "base/error_testing.h"
#include "base/file.h"
#include "base/temporary_directory.h"
#include "runtime/generate.h"
#include "runtime/reference_model.h"
#include "runtime/session_file.h"
#include "runtime/session_testing.h"

namespace linattn {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// A model without positions and without caches.
ModelConfig Endless() {
  ModelConfig c = SmallConfig();
  c.position = "none", c.mixers = {"linear", "gated_delta"}, c.conv_size = 3;
  return c;
}

std::vector<int32_t> Drawn(Continuation& text, int64_t n) {
  std::vector<int32_t> symbols;
  for (int64_t i = 0; i < n; ++i) symbols.push_back(text.Next());
  return symbols;
}

class ContinuationTest : public ::testing::Test {
 protected:
  ModelConfig config_ = Endless();
  PackedModel model_{config_, reference::DenseTensors(config_, 4)};
  std::vector<int32_t> prompt_ = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5};
  TemporaryDirectory directory_;
  std::string path_ = directory_ / "state";
};

TEST_F(ContinuationTest, DrawsWhatGenerateDraws) {
  for (const size_t length : {size_t{0}, prompt_.size()}) {
    const std::span<const int32_t> prompt = std::span(prompt_).first(length);
    Request request{{prompt.begin(), prompt.end()}};
    request.symbols.resize(length + 30, kUnknown);
    GenerateOptions options;
    options.seed = 5, options.sampler.temperature = 0.9, options.sampler.top_p = 0.95;
    Generate(model_, {&request, 1}, options);
    Continuation text(model_, {.seed = 5, .sampler = options.sampler});
    text.Read(prompt);
    const std::vector<int32_t> drawn = Drawn(text, 30);
    EXPECT_TRUE(std::equal(drawn.begin(), drawn.end(), request.symbols.begin() + length));
    EXPECT_EQ(text.length(), std::ssize(request.symbols));
    EXPECT_EQ(text.evaluated(), text.length());  // and the start token, but not the last symbol
  }
}

TEST_F(ContinuationTest, TurnsWithFilesEqualOnePass) {  // B7
  for (const double temperature : {0.0, 1.0}) {
    const ContinuationOptions options{
        .seed = 11, .sampler = {.temperature = temperature}, .repetition_penalty = 1.3};
    Continuation whole(model_, options);
    for (int turn = 0; turn < 5; ++turn) {
      Continuation part(model_, options);
      if (turn > 0) part.Load(path_);
      EXPECT_EQ(part.length(), whole.length());
      const auto prompt = std::span(prompt_).first(turn % 3 == 1 ? 0 : 3 + turn);
      whole.Read(prompt);
      part.Read(prompt);
      EXPECT_EQ(Drawn(part, 7), Drawn(whole, 7)) << turn;
      EXPECT_EQ(part.digest(), whole.digest());
      part.Save(path_);
    }
    Session a(model_, 1), b(model_, 1);
    whole.Save(directory_ / "whole");
    LoadState(a, 0, path_);
    LoadState(b, 0, directory_ / "whole");
    EXPECT_EQ(a.length(0), b.length(0));
    ExpectClose(a.outputs(0), b.outputs(0));
    ExpectClose(a.state(0), b.state(0));
  }
}

TEST_F(ContinuationTest, ALoadedPromptIsNotComputedAgain) {  // B9
  Continuation first(model_, {});
  first.Read(prompt_);
  EXPECT_EQ(first.evaluated(), std::ssize(prompt_) + 1);
  first.Save(path_);
  Continuation again(model_, {});
  again.Load(path_);
  EXPECT_EQ(again.evaluated(), 0);
  EXPECT_EQ(again.digest(), Continuation::Extended(again.empty_digest(), prompt_));
  EXPECT_EQ(again.Next(), first.Next());
  EXPECT_EQ(again.evaluated(), 0);
  again.Reset();  // B4: nothing is left of it
  Continuation fresh(model_, {});
  EXPECT_EQ(Drawn(again, 9), Drawn(fresh, 9));
}

TEST_F(ContinuationTest, AnyLengthIsOneSizeOfFileAndOfState) {
  std::vector<uintmax_t> sizes;
  Continuation text(model_, {});
  const int64_t bytes = text.state_bytes();
  for (const int64_t more : {0, 1, 500}) {
    Drawn(text, more);
    text.Save(path_);
    sizes.push_back(std::filesystem::file_size(path_));
  }
  EXPECT_EQ(text.length(), 501);  // max_len is 70
  EXPECT_THAT(sizes, ::testing::Each(sizes[0]));
  EXPECT_LT(sizes[0], static_cast<uintmax_t>(bytes) + 2048);
}

TEST_F(ContinuationTest, TellsTheLastSymbolsAndWhichWereDrawnInARow) {
  const auto last = [](const Continuation& text, int64_t n) {
    return std::vector<int32_t>(text.Last(n).begin(), text.Last(n).end());
  };
  const ContinuationOptions options{.sampler = {}, .repetition_window = 3, .kept = 5};
  Continuation text(model_, options);
  EXPECT_TRUE(text.Last(9).empty());
  text.Read(prompt_);
  EXPECT_EQ(last(text, 2), (std::vector<int32_t>{3, 5}));
  EXPECT_EQ(last(text, 99), (std::vector<int32_t>{2, 6, 5, 3, 5}));
  std::vector<int32_t> drawn;
  for (int turn = 1; turn < 5; ++turn) {  // across files
    const std::vector<int32_t> more = Drawn(text, 3);
    drawn.insert(drawn.end(), more.begin(), more.end());
    text.Save(path_);
    text.Reset();
    EXPECT_EQ(text.run(), 0);
    text.Load(path_);
    EXPECT_EQ(text.run(), 3 * turn);
    EXPECT_EQ(last(text, 3), more);
    EXPECT_EQ(text.Last(99).size(), 5u);
  }
  EXPECT_EQ(last(text, 5), std::vector<int32_t>(drawn.end() - 5, drawn.end()));
  Continuation other(model_, {});  // which keeps more
  other.Load(path_);
  EXPECT_EQ(last(other, 99), last(text, 99));
  text.Read(prompt_);
  EXPECT_EQ(text.run(), 0);
}

TEST_F(ContinuationTest, LearnedPositionsAndCachesHaveAnEnd) {
  const ModelConfig c = SmallConfig();
  const PackedModel model(c, reference::DenseTensors(c, 2));
  Continuation text(model, {});
  Drawn(text, 70);  // the last one is not read
  EXPECT_THAT(MessageOf([&] { text.Next(); }), AllOf(HasSubstr("at most 70"), HasSubstr("71")));
  EXPECT_THAT(MessageOf([&] { text.Save(path_); }), HasSubstr("71"));
}

TEST_F(ContinuationTest, OtherStatesAreRefusedAndChangeNothing) {  // B14
  Continuation text(model_, {});
  text.Read(prompt_);
  const uint64_t digest = text.digest();
  Session session(model_, 1);
  session.Prefill(0, Tokens(config_, 5, 0));
  SaveState(session, 0, path_);
  EXPECT_THAT(MessageOf([&] { text.Load(path_); }), HasSubstr("must be of a text"));
  const PackedModel other(config_, reference::DenseTensors(config_, 5));
  Continuation(other, {}).Save(path_);
  EXPECT_THAT(MessageOf([&] { text.Load(path_); }), HasSubstr("of model"));
  Bytes bytes = ReadFile(path_);
  bytes.pop_back();
  WriteFileAtomic(path_, bytes);
  EXPECT_THAT(MessageOf([&] { text.Load(path_); }), HasSubstr("cut short"));
  EXPECT_THAT(MessageOf([&] {
                text.Read(std::vector<int32_t>{1, 11});
              }),
              HasSubstr("is 11"));  // B21
  EXPECT_EQ(text.digest(), digest);
  EXPECT_EQ(text.length(), std::ssize(prompt_));
}

TEST_F(ContinuationTest, RepetitionIsPenalised) {
  const auto distinct = [&](double penalty) {
    Continuation text(
        model_,
        {.sampler = {.temperature = 0}, .repetition_penalty = penalty, .repetition_window = 5});
    const std::vector<int32_t> drawn = Drawn(text, 40);
    std::vector<int32_t> last(drawn.end() - 6, drawn.end());
    std::sort(last.begin(), last.end());
    return std::unique(last.begin(), last.end()) - last.begin();
  };
  EXPECT_LT(distinct(1), 6);
  EXPECT_EQ(distinct(1e6), 6);  // none of the last five comes again
}

TEST_F(ContinuationTest, BadOptionsAndOutputsAreNamed) {  // C7
  EXPECT_THAT(MessageOf([&] { Continuation(model_, {.sampler = {}, .repetition_penalty = 0}); }),
              HasSubstr("penalty must be above 0"));
  EXPECT_THAT(MessageOf([&] { Continuation(model_, {.sampler = {.top_p = 2}}); }),
              HasSubstr("top_p must be in (0,1]"));
  EXPECT_THAT(MessageOf([&] { Continuation(model_, {.sampler = {}, .repetition_window = -1}); }),
              HasSubstr("window"));
  EXPECT_THAT(MessageOf([&] { Continuation(model_, {.sampler = {}, .label = 1}); }),
              HasSubstr("class"));
  const ModelConfig images = SmallImages();
  const PackedModel painter(images, reference::DenseTensors(images, 1));
  EXPECT_THAT(MessageOf([&] { Continuation(painter, {}); }), HasSubstr("categorical"));
  PackedModel::Tensors tensors = reference::DenseTensors(config_, 4);
  tensors["embed.weight"][2 * config_.dim] = std::numeric_limits<float>::quiet_NaN();
  const PackedModel broken(config_, tensors);
  Continuation text(broken, {});
  text.Read(std::vector<int32_t>{1, 2});
  EXPECT_THAT(MessageOf([&] { text.Next(); }), AllOf(HasSubstr("finite"), HasSubstr("token 2")));
}

}  // namespace
}  // namespace linattn
