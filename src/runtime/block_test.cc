// What every mixer must do inside a model, in both block styles, and hybrids of them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <omp.h>

#include <limits>
#include <numeric>

#include "base/temporary_directory.h"
#include "runtime/generate.h"
#include "runtime/score.h"
#include "runtime/session_file.h"
#include "runtime/session_testing.h"

namespace linattn {
namespace {

ModelConfig Of(const std::string& mixers, const std::string& block) {
  ModelConfig c = SmallConfig();
  c.mixers = ExpandMixers(mixers, 2);
  c.block = block, c.position = "none";
  c.lsh_buckets = 2, c.lsh_chunk = 8, c.sparse_stride = 6, c.sparse_summary = 2;
  return c;
}

// 3:1 of the two families, with all that such models have.
ModelConfig Hybrid() {
  ModelConfig c = Of("linear", "modern");
  c.mixers = ExpandMixers("3x gated_delta + 1x softmax", 4);
  c.value_heads = 4, c.attn_heads = 4, c.attn_head_dim = 6, c.kv_heads = 2;
  c.qkv_bias = true, c.window = 9, c.negative_eigenvalues = true;
  return c;
}

// Every registered mixer in both styles, and the hybrid.
std::vector<std::pair<std::string, ModelConfig>> AllModels() {
  std::vector<std::pair<std::string, ModelConfig>> models;
  for (const Mixer* mixer : AllMixers()) {
    const std::string name(mixer->name);
    for (const char* block : {"classic", "modern"})
      models.emplace_back(name + " " + block, Of(name, block));
  }
  models.emplace_back("hybrid", Hybrid());
  ModelConfig convolved = Of("softmax", "modern");
  convolved.attn_conv_size = 3;
  models.emplace_back("softmax behind a convolution", convolved);
  return models;
}

TEST(BlockTest, AllPathsMatchFloat64ForEveryMixerInBothStyles) {  // B1
  for (const auto& [name, c] : AllModels()) {
    SCOPED_TRACE(name);
    ExpectAllPathsMatch(c);
  }
}

TEST(BlockTest, OptionsOfBlocksMatchFloat64) {
  const auto with = [](const char* mixers, const char* block, auto change) {
    ModelConfig c = Of(mixers, block);
    change(c);
    SCOPED_TRACE(mixers);
    ExpectAllPathsMatch(c);
  };
  with("gla", "modern", [](auto& c) { c.gate_rank = 3, c.gate_divisor = 4, c.value_heads = 4; });
  with("kda", "modern", [](auto& c) { c.output_gate = "swish", c.value_heads = 4; });
  with("delta", "modern", [](auto& c) { c.output_gate = "swish", c.qk_norm = "none"; });
  with("gated_delta", "classic", [](auto& c) { c.conv_size = 3, c.output_gate = "sigmoid"; });
  with("simple_gla", "modern", [](auto& c) { c.output_norm = "none", c.conv_size = 0; });
  with("retention", "modern", [](auto& c) { c.decay_schedule = "lightning", c.conv_size = 1; });
  with("linear", "modern", [](auto& c) { c.feature_map = "hedgehog"; });
  with("linear", "classic", [](auto& c) { c.feature_map = "taylor2"; });
  with("linear", "modern", [](auto& c) { c.feature_map = "exp", c.map_dim = 7; });
  with("linear", "modern",
       [](auto& c) { c.feature_map = "hadamard", c.map_dim = 8, c.attn_normalise = false; });
  with("performer", "classic", [](auto& c) { c.features = 24; });
  with("softmax", "modern", [](auto& c) { c.heads = c.value_heads = 4, c.kv_heads = 2; });
  with("softmax", "modern", [](auto& c) { c.attn_conv_size = 3; });
  with("lsh", "classic", [](auto& c) { c.attn_conv_size = 4; });
  ModelConfig encoder = Of("linear,softmax", "modern");
  encoder.causal = false;
  ExpectAllPathsMatch(encoder);
}

TEST(BlockTest, RotaryPositionsMatchFloat64) {
  for (const char* mixers : {"softmax", "retention"}) {
    SCOPED_TRACE(mixers);
    ModelConfig c = Of(mixers, "modern");
    c.head_dim = 6, c.rope_theta = 100;
    ExpectAllPathsMatch(c);
  }
}

std::vector<float> OutputsOf(const PackedModel& model, std::span<const int32_t> tokens,
                             const std::vector<int64_t>& pieces, bool steps) {
  Session session(model, 1);
  for (const int64_t n : pieces) {
    if (steps && n == 1)
      session.Step(std::vector<int64_t>{0}, tokens.first(1));
    else
      session.Prefill(0, tokens.first(n));
    tokens = tokens.subspan(n);
  }
  return Copied(session.outputs(0));
}

TEST(BlockTest, EverySplitOfASequenceIsTheSame) {  // A7
  for (const auto& [name, c] : AllModels()) {
    SCOPED_TRACE(name);
    const PackedModel model(c, reference::DenseTensors(c, 3));
    const std::vector<int32_t> tokens = Tokens(c, 10, 0);
    const std::vector<float> want = OutputsOf(model, tokens, {10}, false);
    for (const bool steps : {false, true}) {
      ExpectClose(OutputsOf(model, tokens, {3, 4, 3}, steps), want);
      ExpectClose(OutputsOf(model, tokens, {9, 1}, steps), want);
      ExpectClose(OutputsOf(model, tokens, std::vector<int64_t>(10, 1), steps), want);
      ExpectClose(OutputsOf(model, tokens, {2, 1, 1, 1, 5}, steps), want);
    }
  }
}

TEST(BlockTest, AUsedSlotStartsFromZero) {  // B12, B13
  for (const auto& [name, c] : AllModels()) {
    SCOPED_TRACE(name);
    const PackedModel model(c, reference::DenseTensors(c, 3));
    Session fresh(model, 1), used(model, 1);
    const std::vector<float> poison(used.state_floats(), std::numeric_limits<float>::quiet_NaN());
    used.Restore(0, poison, std::vector<float>(c.outputs(), 1e30f), 60);
    used.Reset(0);
    for (Session* session : {&fresh, &used})
      session->Step(std::vector<int64_t>{0}, std::vector<int32_t>{3});
    EXPECT_EQ(Copied(used.outputs(0)), Copied(fresh.outputs(0)));
    EXPECT_EQ(Copied(used.state(0)), Copied(fresh.state(0)));
  }
}

TEST(BlockTest, SnapshotsRollBackExactlyAlsoThroughAFile) {  // B10, A40
  const TemporaryDirectory directory;
  for (const auto& [name, c] : AllModels()) {
    SCOPED_TRACE(name);
    const PackedModel model(c, reference::DenseTensors(c, 3));
    const std::vector<int32_t> tokens = Tokens(c, 13, 0);
    for (const int64_t prompt : {1, 2, 10}) {
      Session session(model, 2);
      session.Prefill(0, std::span(tokens).first(prompt));
      session.Copy(0, 1);
      SaveState(session, 0, directory / "state");
      const std::vector<float> kept = Copied(session.state(0));
      session.Prefill(0, std::span(tokens).subspan(prompt, 3));
      const std::vector<float> after = Copied(session.outputs(0));
      EXPECT_NE(Copied(session.state(0)), kept);
      session.Copy(1, 0);
      EXPECT_EQ(Copied(session.state(0)), kept);
      session.Prefill(0, std::span(tokens).subspan(prompt, 3));
      EXPECT_EQ(Copied(session.outputs(0)), after);
      LoadState(session, 0, directory / "state");
      EXPECT_EQ(Copied(session.state(0)), kept);
      EXPECT_EQ(session.length(0), prompt);
    }
  }
}

// The state of T = 1 is laid out as that of a prompt, whichever way it came about.
TEST(BlockTest, OneTokenLeavesTheSameStateAsAPromptOfOne) {  // A40
  for (const auto& [name, c] : AllModels()) {
    SCOPED_TRACE(name);
    const PackedModel model(c, reference::DenseTensors(c, 3));
    Session session(model, 2);
    session.Prefill(0, std::vector<int32_t>{3});
    session.Step(std::vector<int64_t>{1}, std::vector<int32_t>{3});
    ExpectClose(session.state(0), session.state(1));
    int64_t floats = 0;
    for (int64_t i = 0; i < c.layers(); ++i) floats += StateFloats(c, i, session.capacity());
    EXPECT_EQ(session.state_floats(), floats);
  }
}

TEST(BlockTest, RowsDependNeitherOnTheBatchNorOnThreads) {  // A5, B16, B18
  const int threads = omp_get_max_threads();
  for (const auto& [name, c] : AllModels()) {
    SCOPED_TRACE(name);
    const PackedModel model(c, reference::DenseTensors(c, 3));
    std::vector<Request> requests;
    for (const int64_t length : {2, 5, 9, 40}) {
      Request request;
      for (int64_t i = 0; i < length; ++i)
        request.symbols.push_back(static_cast<int32_t>(i * 3 % c.vocab));
      request.symbols.resize(length + 20, kUnknown);
      request.stream = static_cast<uint64_t>(length);
      requests.push_back(request);
    }
    GenerateOptions options;
    options.sampler.temperature = 0.8;
    omp_set_num_threads(1);
    std::vector<Request> together = requests;
    Generate(model, together, options);
    for (const int count : {2, 4}) {
      omp_set_num_threads(count);
      std::vector<Request> again = requests;
      Generate(model, again, options);
      for (size_t i = 0; i < requests.size(); ++i) {
        EXPECT_EQ(again[i].symbols, together[i].symbols);
        std::vector<Request> alone = {requests[i]};
        Generate(model, alone, options);
        EXPECT_EQ(alone[0].symbols, together[i].symbols);
      }
    }
    omp_set_num_threads(threads);
  }
}

// Keys and values in bfloat16: half the memory, outputs within its rounding (2^-9 of each).
TEST(BlockTest, AShortCacheHalvesTheState) {
  for (const char* mixer : {"softmax", "sparse", "lsh"}) {
    SCOPED_TRACE(mixer);
    ModelConfig c = Of(mixer, "modern");
    const PackedModel wide(c, reference::DenseTensors(c, 3));
    c.cache_dtype = "bf16";
    const PackedModel narrow(c, reference::DenseTensors(c, 3));
    Session a(wide, 1), b(narrow, 1);
    EXPECT_LT(b.state_floats(), 0.7 * static_cast<double>(a.state_floats()));
    const std::vector<int32_t> tokens = Tokens(c, 40, 0);
    for (Session* session : {&a, &b}) {
      session->Prefill(0, std::span(tokens).first(30));
      for (const int32_t token : std::span(tokens).subspan(30))
        session->Step(std::vector<int64_t>{0}, std::vector<int32_t>{token});
    }
    ExpectClose(b.outputs(0), a.outputs(0), 2e-2);
    EXPECT_NE(Copied(b.outputs(0)), Copied(a.outputs(0)));
  }
}

// The best of n continuations, whose states are forked from one prompt, is the one that full
// recomputation finds, with the same likelihood; and n = 1 is plain generation.
TEST(BlockTest, BestOfForkedSequencesEqualsFullRecomputation) {  // B15
  constexpr int64_t kForks = 5, kNew = 12;
  for (const auto& [name, c] : AllModels()) {
    SCOPED_TRACE(name);
    const PackedModel model(c, reference::DenseTensors(c, 3));
    const std::vector<int32_t> prompt = Tokens(c, 6, 0);
    Session session(model, kForks);
    session.Prefill(0, prompt);
    for (int64_t i = 1; i < kForks; ++i) session.Copy(0, i);
    std::vector<int64_t> slots(kForks);
    std::iota(slots.begin(), slots.end(), 0);
    std::vector<double> nats(kForks);
    std::vector<std::vector<int32_t>> texts(kForks);
    SamplerScratch scratch;
    for (int64_t t = 0; t < kNew; ++t) {
      std::vector<int32_t> next;
      for (const int64_t i : slots) {
        Random random(7, static_cast<uint64_t>(i * kNew + t));
        const std::span<const float> logits = session.outputs(i);
        next.push_back(static_cast<int32_t>(SampleCategorical(logits, {}, random, scratch)));
        double sum = 0;
        for (const float x : logits) sum += std::exp(double{x});
        nats[i] += std::log(sum) - logits[next.back()];
        texts[i].push_back(next.back());
      }
      session.Step(slots, next);
    }
    FullPass pass(model);
    std::vector<double> again;
    for (const auto& text : texts) {
      std::vector<int32_t> symbols(prompt.begin() + 1, prompt.end());
      const double before = ScoreSequences(pass, symbols, {}, 1)[0];
      symbols.insert(symbols.end(), text.begin(), text.end());
      again.push_back(ScoreSequences(pass, symbols, {}, 1)[0] - before);
    }
    for (int64_t i = 0; i < kForks; ++i) EXPECT_NEAR(nats[i], again[i], 1e-3);
    EXPECT_EQ(std::min_element(nats.begin(), nats.end()) - nats.begin(),
              std::min_element(again.begin(), again.end()) - again.begin());
  }
}

TEST(BlockTest, IdsOutOfRangeHarmNothing) {  // B21
  const ModelConfig c = Hybrid();
  const PackedModel model(c, reference::DenseTensors(c, 3));
  Session session(model, 1);
  session.Prefill(0, std::vector<int32_t>{1, 2});
  const std::vector<float> kept = Copied(session.state(0));
  for (const int32_t id : {-1, 256, 65536})
    EXPECT_THROW(session.Step(std::vector<int64_t>{0}, std::vector<int32_t>{id}), Error) << id;
  EXPECT_EQ(Copied(session.state(0)), kept);
  EXPECT_NO_THROW(session.Step(std::vector<int64_t>{0}, std::vector<int32_t>{1}));
}

}  // namespace
}  // namespace linattn
