#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "bench/decode_bench.h"
#include "bench/machine.h"
#include "bench/mixer_problem.h"
#include "bench/output.h"
#include "bench/process_memory.h"
#include "bench/timing.h"

namespace linattn::bench {
namespace {

void Nothing() {}

TEST(Timing, MedianAndQuartilesOfWhateverOrder) {
  const Timing odd = Summarise({5, 1, 3, 2, 4});
  EXPECT_DOUBLE_EQ(odd.median_s, 3);
  EXPECT_DOUBLE_EQ(odd.spread, (4.0 - 2.0) / 3);
  EXPECT_DOUBLE_EQ(Summarise({1, 2}).median_s, 1.5);
  EXPECT_THROW(Summarise({}), Error);
}

TEST(Timing, JobsComeInTurns) {
  std::string order;
  const auto timings = TimeInTurns(
      {{[&] { order += 'a'; }, [&] { order += 'p'; }}, {[&] { order += 'b'; }, nullptr}}, 0, 2,
      Nothing);
  EXPECT_EQ(order, "pabpabpab");  // one turn to warm up
  ASSERT_EQ(timings.size(), 2u);
  EXPECT_EQ(timings[0].rounds, 2);
}

TEST(Roof, TheSlowerOfComputeAndMemory) {
  Machine m;
  m.peak = {.threads = 1,
            .float32_gflops = 100,
            .bfloat16_gflops = 200,
            .int8_gops = 0,
            .l2_gbps = 100,
            .l3_gbps = 50,
            .memory_gbps = 10};
  m.l2_bytes = 1e6, m.l3_bytes = 3e7;
  Work work;
  work.f32 = 1e9, work.bf16 = 2e9;
  EXPECT_DOUBLE_EQ(RoofOf(m, work).seconds, 0.02);
  EXPECT_EQ(RoofOf(m, work).bound, "compute");
  work.int8 = 1e9;  // no such instructions: as float32
  EXPECT_DOUBLE_EQ(RoofOf(m, work).seconds, 0.03);
  work.weight_bytes = 2e7;  // 0.4 ms from L3
  EXPECT_EQ(RoofOf(m, work).bound, "compute");
  work.f32 = work.bf16 = work.int8 = 0;
  EXPECT_DOUBLE_EQ(RoofOf(m, work).seconds, 2e7 / 5e10);
  EXPECT_EQ(RoofOf(m, work).bound, "L3");
  work.state_footprint = 2e7, work.state_bytes = 4e7;  // together no longer in L3
  EXPECT_DOUBLE_EQ(RoofOf(m, work).seconds, 2e7 / 5e10 + 4e7 / 1e10);
  EXPECT_EQ(RoofOf(m, work).bound, "memory");
}

TEST(MixerProblem, EveryMixersPassesAreRightAndHaveOperations) {
  const Shape shape{2, 70, 2, 16, 16};
  for (const Mixer* mixer : AllMixers()) {
    SCOPED_TRACE(std::string(mixer->name));
    MixerProblem<float> problem(*mixer, shape);
    problem.AddGradients();
    EXPECT_EQ(CheckRight(*mixer, Pass::kForward, problem), 70);
    EXPECT_EQ(CheckRight(*mixer, Pass::kBackward, problem), 70);
    EXPECT_EQ(CheckStepRight(*mixer, shape), 71);
    for (const Pass pass : {Pass::kForward, Pass::kBackward, Pass::kStep})
      EXPECT_GT(FlopsOf(*mixer, pass, shape), 0);
  }
}

// A mixer that is wrong is not timed.
TEST(MixerProblem, RefusesWrongResults) {
  static const Mixer& right = MixerByName("linear");
  Mixer wrong = right;
  wrong.forward = [](const MixerInputs& in, const MixerOutputs& out, void* scratch) {
    right.forward(in, out, scratch);
    *out.o.At<float>(0, 60, 0, 3) += 0.01f;
  };
  MixerProblem<float> problem(wrong, {1, 64, 1, 8, 8});
  EXPECT_THROW(CheckRight(wrong, Pass::kForward, problem), Error);
  wrong.forward = [](const MixerInputs& in, const MixerOutputs& out, void* scratch) {
    right.forward(in, out, scratch);
    *out.o.At<float>(0, 60, 0, 3) = NAN;
  };
  EXPECT_THROW(CheckRight(wrong, Pass::kForward, problem), Error);
}

ModelConfig SmallConfig(const std::string& mixer) {
  ModelConfig c = NamedConfig("mnist", mixer);
  c.mixers = {mixer, mixer};
  c.dim = 16, c.heads = c.value_heads = 2, c.head_dim = c.value_dim = 8, c.mlp_dim = 32;
  return c;
}

TEST(Decode, StatesStandForAllAndCachesAreIntegrated) {
  for (const bool cached : {true, false}) {
    for (const char* mixer : {"linear", "softmax", "lsh"}) {
      SCOPED_TRACE(mixer);
      const PackedModel model = RandomModel(SmallConfig(mixer), WeightType::kFloat32);
      const DecodeSetting setting{.batch = 2, .length = 100, .seconds = 0.01, .cached = cached};
      const DecodeTiming t = MeasureDecode(model, setting, Nothing);
      EXPECT_EQ(t.integrated, !(cached && std::string(mixer) == "linear"));
      EXPECT_GT(t.seconds, 0);
      EXPECT_GT(t.roof_seconds, 0);
      EXPECT_GT(t.gflops, 0);
      EXPECT_FALSE(t.bound.empty());
      // No more than the slowest step for all, no less than the fastest.
      double least = 1e9, most = 0;
      for (const auto& place : t.places) {
        least = std::min(least, place.step.median_s), most = std::max(most, place.step.median_s);
        EXPECT_LT(place.position, 100);
      }
      EXPECT_GE(t.seconds, 0.999 * 100 * least);
      EXPECT_LE(t.seconds, 1.001 * 100 * most);
    }
  }
}

TEST(Rows, TableHasOneHeadAndJsonTheMachine) {
  std::string text;
  const auto print = [&](const std::string& part) { text += part; };
  const nlohmann::ordered_json row = {{"name", "x"}, {"share", 0.5}, {"none", nullptr}};
  RowPrinter table({.json = false, .print = print, .note = {}, .check = {}},
                   {{"name", "name", -6}, {"share", "share", 6, 100, "%"}, {"none", "none", 4}});
  table.Print(row), table.Print(row);
  EXPECT_EQ(text, "name     share  none\nx          50%     -\nx          50%     -\n");
  text.clear();
  const Output json{.json = true, .print = print, .note = {}, .check = {}};
  RowPrinter(json, {}).Print(row);
  const auto parsed = nlohmann::json::parse(text);
  EXPECT_EQ(parsed["share"], 0.5);
  EXPECT_GT(parsed["machine"]["f32_peak_gflops"], 0.0);
  EXPECT_EQ(text.back(), '\n');
}

TEST(ProcessMemory, PeakOfWhatCameSince) {
  ForgetPeakMemory();
  const int64_t before = ResidentBytes();
  if (before == 0) GTEST_SKIP() << "no /proc";
  {
    const std::vector<char> block(64 << 20, 1);
    EXPECT_GE(PeakMemoryBytes() - before, block[0] * (60 << 20));
  }
  ForgetPeakMemory();
  EXPECT_LT(PeakMemoryBytes() - before, 30 << 20);
}

}  // namespace
}  // namespace linattn::bench
