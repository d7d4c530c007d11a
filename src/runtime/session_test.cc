#include "runtime/session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <limits>
#include <numeric>
#include <set>

#include "base/error.h"
#include "base/error_testing.h"
#include "base/file.h"
#include "base/temporary_directory.h"
#include "runtime/session_file.h"
#include "runtime/session_testing.h"

namespace linattn {
namespace {

using ::testing::HasSubstr;

TEST(SessionTest, StepsPrefillAndFullPassMatchFloat64) {
  for (const bool pre_norm : {true, false}) {
    for (const char* activation : {"gelu", "relu"}) {
      SCOPED_TRACE(activation);
      ModelConfig c = SmallConfig();
      c.pre_norm = pre_norm, c.activation = activation;
      ExpectAllPathsMatch(c);
    }
  }
}

TEST(SessionTest, ImagesTiedHeadsGroupedValuesAndEncodersMatchFloat64) {
  ExpectAllPathsMatch(SmallImages());
  ModelConfig tied = SmallConfig();
  tied.tied = true, tied.position = "none";
  ExpectAllPathsMatch(tied);
  ModelConfig grouped = SmallConfig();
  grouped.mixers = {"linear", "linear"}, grouped.value_heads = 6;
  ExpectAllPathsMatch(grouped);
  ModelConfig encoder = SmallConfig();
  encoder.causal = false;
  ExpectAllPathsMatch(encoder);
}

class SessionFixture : public ::testing::Test {
 protected:
  ModelConfig config_ = SmallConfig();
  PackedModel model_{config_, reference::DenseTensors(config_, 2)};
};

TEST_F(SessionFixture, TheStateIsUsed) {  // B3
  const std::vector<int32_t> tokens = Tokens(config_, 6, 0);
  Session session(model_, 3);
  session.Prefill(0, std::span(tokens).first(5));
  session.Prefill(0, std::span(tokens).last(1));
  session.Prefill(1, tokens);
  session.Prefill(2, std::span(tokens).last(1));
  ExpectClose(session.outputs(0), session.outputs(1));
  double difference = 0;
  for (int64_t i = 0; i < config_.vocab; ++i) {
    difference =
        std::max<double>(difference, std::abs(session.outputs(0)[i] - session.outputs(2)[i]));
  }
  EXPECT_GT(difference, 1e-2);
}

TEST_F(SessionFixture, AUsedSlotStartsFromZero) {  // B4, B12, B13
  Session fresh(model_, 1), used(model_, 2);
  const std::vector<int32_t> tokens = Tokens(config_, 20, 0), one = {3};
  const std::vector<float> poison(used.state_floats(), std::numeric_limits<float>::quiet_NaN());
  const std::vector<float> outputs(config_.outputs(), 1e30f);
  used.Restore(0, poison, outputs, 60);
  used.Prefill(1, tokens);
  for (const int64_t slot : {0, 1}) {
    used.Reset(slot);
    EXPECT_EQ(used.length(slot), 0);
    EXPECT_EQ(used.outputs(slot)[0], 0);
    used.Step(std::vector<int64_t>{slot}, one);
  }
  fresh.Prefill(0, std::span(one).first(0));
  EXPECT_EQ(fresh.length(0), 0);
  fresh.Step(std::vector<int64_t>{0}, one);
  EXPECT_EQ(Copied(used.outputs(0)), Copied(fresh.outputs(0)));
  EXPECT_EQ(Copied(used.outputs(1)), Copied(fresh.outputs(0)));
  EXPECT_EQ(Copied(used.state(0)), Copied(fresh.state(0)));
}

TEST_F(SessionFixture, RowsDependNeitherOnTheBatchNorOnThreads) {  // A5, B18
  constexpr int64_t kSlots = 37, kSteps = 9;
  const int threads = omp_get_max_threads();
  const auto run = [&](int thread_count, std::vector<int64_t> slots) {
    omp_set_num_threads(thread_count);
    Session session(model_, kSlots);
    for (int64_t t = 0; t < kSteps; ++t) {
      std::vector<int32_t> tokens;
      for (const int64_t slot : slots) tokens.push_back(static_cast<int32_t>((slot + t) % 11));
      session.Step(slots, tokens);
    }
    omp_set_num_threads(threads);
    std::vector<std::vector<float>> all(kSlots);
    for (const int64_t slot : slots) all[slot] = Copied(session.state(slot));
    for (const int64_t slot : slots) {
      all[slot].insert(all[slot].end(), session.outputs(slot).begin(), session.outputs(slot).end());
    }
    return all;
  };
  std::vector<int64_t> every(kSlots);
  std::iota(every.begin(), every.end(), 0);
  const auto want = run(1, every);
  for (const int count : {2, 3, 4}) EXPECT_EQ(run(count, every), want);
  for (const int64_t slot : {0, 17, 36}) {
    EXPECT_EQ(run(2, {slot})[slot], want[slot]);
    EXPECT_EQ(run(1, {slot, (slot + 5) % kSlots})[slot], want[slot]);
  }
}

TEST_F(SessionFixture, CopiesForkAndRollBack) {  // B10
  Session session(model_, 3);
  const std::vector<int32_t> tokens = Tokens(config_, 13, 0);
  session.Prefill(0, std::span(tokens).first(10));
  session.Copy(0, 1);
  const std::vector<float> snapshot = Copied(session.state(1));
  session.Prefill(0, std::span(tokens).last(3));
  EXPECT_NE(Copied(session.state(0)), snapshot);
  EXPECT_EQ(Copied(session.state(1)), snapshot);
  session.Copy(1, 0);
  EXPECT_EQ(Copied(session.state(0)), snapshot);
  EXPECT_EQ(session.length(0), 10);
  session.Copy(0, 0);
  EXPECT_EQ(Copied(session.state(0)), snapshot);
}

TEST_F(SessionFixture, IdsOutOfRangeAreNamedAndHarmNothing) {  // B21
  Session session(model_, 1);
  const std::vector<int64_t> slot = {0};
  const auto step = [&](int32_t id) {
    return MessageOf([&] { session.Step(slot, std::vector<int32_t>{id}); });
  };
  session.Step(slot, std::vector<int32_t>{11});  // the start token
  for (const int32_t id : {-1, 11, 65536}) {
    EXPECT_THAT(step(id), HasSubstr("token 1 must be from 0 to 10 (the model's vocabulary has 11 "
                                    "symbols), but is " +
                                    std::to_string(id)));
  }
  const std::vector<float> before = Copied(session.state(0));
  EXPECT_THAT(MessageOf([&] {
                session.Prefill(0, std::vector<int32_t>{1, 2, 256});
              }),
              HasSubstr("token 3 must be from 0 to 10"));
  EXPECT_EQ(Copied(session.state(0)), before);
  EXPECT_EQ(session.length(0), 1);
  EXPECT_EQ(step(10), "no error");  // still usable
  FullPass pass(model_);
  EXPECT_THAT(MessageOf([&] { pass.Run(std::vector<int32_t>{0, -1}, 1); }), HasSubstr("is -1"));
  EXPECT_THAT(MessageOf([&] { session.Step(std::vector<int64_t>{1}, std::vector<int32_t>{1}); }),
              HasSubstr("slot must be from 0 to 0, but is 1"));
  Session two(model_, 2);
  EXPECT_THAT(MessageOf([&] {
                two.Step(std::vector<int64_t>{1, 1}, std::vector<int32_t>{1, 2});
              }),
              HasSubstr("must be distinct, but 1 occurs twice"));
}

TEST_F(SessionFixture, TheLongestSequenceWorksAndOneMoreIsRefused) {  // B24
  const std::vector<int32_t> longest = Tokens(config_, 70, 0);
  Session session(model_, 1);
  session.Prefill(0, longest);
  EXPECT_THAT(MessageOf([&] { session.Step(std::vector<int64_t>{0}, std::vector<int32_t>{1}); }),
              ::testing::AllOf(HasSubstr("at most 70 tokens"), HasSubstr("would have 71")));
  session.Reset(0);
  EXPECT_THAT(MessageOf([&] { session.Prefill(0, Tokens(config_, 71, 0)); }), HasSubstr("71"));
  FullPass pass(model_);
  pass.Run(longest, 1);
  EXPECT_THAT(MessageOf([&] { pass.Run(Tokens(config_, 71, 0), 1); }),
              ::testing::AllOf(HasSubstr("70"), HasSubstr("71")));
  EXPECT_THAT(MessageOf([&] { Session(model_, 1, 71); }), HasSubstr("max_len = 70, but is 71"));
}

TEST_F(SessionFixture, StateFilesRestoreExactlyAndRefuseDamage) {  // B7, B14
  const TemporaryDirectory directory;
  const std::string path = directory / "state";
  const std::vector<int32_t> tokens = Tokens(config_, 12, 0);
  Session session(model_, 2);
  session.Prefill(0, std::span(tokens).first(9));
  SaveState(session, 0, path);
  LoadState(session, 1, path);
  EXPECT_EQ(Copied(session.state(1)), Copied(session.state(0)));
  EXPECT_EQ(Copied(session.outputs(1)), Copied(session.outputs(0)));
  session.Prefill(0, std::span(tokens).last(3));
  session.Prefill(1, std::span(tokens).last(3));
  EXPECT_EQ(Copied(session.outputs(1)), Copied(session.outputs(0)));

  const std::vector<float> before = Copied(session.state(1));
  const Bytes good = ReadFile(path);
  const auto refused = [&](const Bytes& bytes) {
    WriteFileAtomic(directory / "bad", bytes);
    const std::string message = MessageOf([&] { LoadState(session, 1, directory / "bad"); });
    EXPECT_EQ(Copied(session.state(1)), before);
    return message;
  };
  EXPECT_THAT(refused({}), HasSubstr("[state]"));
  EXPECT_THAT(refused(Bytes(good.begin(), good.end() - 1)), HasSubstr("[state]"));
  Bytes flipped = good;
  flipped[flipped.size() - 2] ^= 1;
  EXPECT_THAT(refused(flipped), HasSubstr("checksum"));
  Bytes counted = good;  // a token count that is off by one
  const std::string text = "\"tokens\":\"0000000000000000009\"";
  const auto at = std::search(counted.begin(), counted.end(), text.begin(), text.end());
  ASSERT_NE(at, counted.end());
  *(at + 28) = '8';
  EXPECT_THAT(refused(counted), HasSubstr("checksum"));

  const PackedModel other(config_, reference::DenseTensors(config_, 3));
  Session foreign(other, 1);
  EXPECT_THAT(MessageOf([&] { LoadState(foreign, 0, path); }), HasSubstr("is of model"));
  Session narrow(model_, 1, 20);
  EXPECT_THAT(MessageOf([&] { LoadState(narrow, 0, path); }), HasSubstr("capacity of 20"));
}

TEST_F(SessionFixture, StateFilesCarryExtrasUnderTheChecksum) {
  const TemporaryDirectory directory;
  const std::string path = directory / "state";
  Session session(model_, 1);
  session.Prefill(0, Tokens(config_, 5, 0));
  const StateExtras extras{{{"text", "a \"quoted\" line"}}, {{"tail", {0.5f, -1, 3}}}};
  SaveState(session, 0, path, extras);
  const StateExtras got = LoadState(session, 0, path);
  EXPECT_EQ(got.notes, extras.notes);
  EXPECT_EQ(got.tensors, extras.tensors);
  Bytes bytes = ReadFile(path);
  const std::string text = "quoted";
  const auto at = std::search(bytes.begin(), bytes.end(), text.begin(), text.end());
  ASSERT_NE(at, bytes.end());
  *at = 'Q';
  WriteFileAtomic(path, bytes);
  EXPECT_THAT(MessageOf([&] { LoadState(session, 0, path); }), HasSubstr("checksum"));
}

TEST(SessionTest, AStateOfFixedSizeHasNoEnd) {
  ModelConfig c = SmallConfig();
  c.mixers = {"linear", "linear"};
  EXPECT_EQ(LongestSequence(c), 70);  // learned positions
  c.position = "none";
  EXPECT_EQ(LongestSequence(c), kEndless);
  ModelConfig window = c;
  window.mixers = {"linear", "softmax"};
  EXPECT_EQ(LongestSequence(window), 70);
  window.window = 9, window.sinks = 2;
  EXPECT_EQ(LongestSequence(window), kEndless);
  const TemporaryDirectory directory;
  std::set<uintmax_t> sizes;
  for (ModelConfig& model : std::vector<ModelConfig>{c, window}) {
    const PackedModel packed(model, reference::DenseTensors(model, 2));
    Session session(packed, 2), reserved(packed, 1, 1000);
    const std::vector<int32_t> tokens = Tokens(model, 1000, 0);
    session.Prefill(0, std::span(tokens).first(999));
    session.Step(std::vector<int64_t>{0}, std::vector<int32_t>{tokens[999]});
    reserved.Prefill(0, tokens);
    ExpectClose(session.outputs(0), reserved.outputs(0));
    for (const int64_t n : {1, 12, 1000}) {
      session.Reset(1);
      session.Prefill(1, std::span(tokens).first(n));
      SaveState(session, 1, directory / "state");
      sizes.insert(std::filesystem::file_size(directory / "state"));
    }
    EXPECT_EQ(sizes.size(), 1u);
    sizes.clear();
  }
}

TEST_F(SessionFixture, BidirectionalModelsAreRefused) {
  ModelConfig c = config_;
  c.causal = false;
  const PackedModel encoder(c, reference::DenseTensors(c, 1));
  EXPECT_THAT(MessageOf([&] { Session(encoder, 1); }), HasSubstr("needs a causal model"));
}

TEST(PackedModelTest, FingerprintsLastAsLongAsTheModel) {
  ModelConfig c = SmallConfig();
  PackedModel::Tensors tensors = reference::DenseTensors(c, 1);
  for (auto& [name, values] : tensors) {
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 7) / 8;
  }
  const auto fingerprint = [&] { return PackedModel(c, tensors).fingerprint(); };
  // State files carry it: if it is another, the version in session_file.cc must be as well.
  const uint64_t own = 0x39802476068bfc85u;
  EXPECT_EQ(fingerprint(), own);
  c.dropout = 0.5, c.initial_decay = 1;  // what only training reads
  EXPECT_EQ(fingerprint(), own);
  c.attn_eps = 1e-3;
  EXPECT_NE(fingerprint(), own);
}

TEST(PackedModelTest, WrongTensorsAndMixersAreNamed) {
  const ModelConfig c = SmallConfig();
  PackedModel::Tensors tensors = reference::DenseTensors(c, 1);
  EXPECT_NE(PackedModel(c, tensors).fingerprint(),
            PackedModel(c, reference::DenseTensors(c, 2)).fingerprint());
  EXPECT_EQ(PackedModel(c, tensors).fingerprint(), PackedModel(c, tensors).fingerprint());
  ModelConfig unknown = c;
  unknown.mixers[1] = "mamba";
  EXPECT_THAT(MessageOf([&] { PackedModel(unknown, tensors); }), HasSubstr("'mamba'"));
  unknown = c;
  unknown.feature_map = "cosine";
  EXPECT_THAT(MessageOf([&] { PackedModel(unknown, tensors); }), HasSubstr("'cosine'"));
  unknown = c;
  unknown.value_heads = 4;
  tensors = reference::DenseTensors(unknown, 1);
  EXPECT_THAT(
      MessageOf([&] { PackedModel(unknown, tensors); }),
      HasSubstr(
          "layer 1: softmax must have as many value heads as heads = 2, but value_heads is 4"));
  tensors = reference::DenseTensors(c, 1);
  tensors.erase("norm.bias");
  EXPECT_THAT(MessageOf([&] { PackedModel(c, tensors); }),
              HasSubstr("tensor 'norm.bias' is missing"));
}

}  // namespace
}  // namespace linattn
