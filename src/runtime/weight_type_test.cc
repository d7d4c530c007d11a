// What short weights cost: outputs against the definition in float64, over as many steps as a
// CIFAR-10 picture has.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "base/temporary_directory.h"
#include "runtime/session_file.h"
#include "runtime/session_testing.h"

namespace linattn {
namespace {

constexpr WeightType kTypes[] = {WeightType::kFloat32, WeightType::kBFloat16, WeightType::kInt8};

#ifdef LINATTN_SANITIZED  // twenty times slower
constexpr int64_t kSteps = 384;
#else
constexpr int64_t kSteps = 3072;
#endif

ModelConfig Pictures(const std::string& mixers) {
  ModelConfig c;
  c.height = c.width = 32, c.channels = 3, c.max_len = 3072;
  c.dim = 64, c.heads = c.value_heads = 4, c.head_dim = c.value_dim = 16, c.mlp_dim = 128;
  c.mixtures = 4, c.mixers = ExpandMixers(mixers, 2);
  return c;
}

// The largest error of outputs over all steps, relative to the largest output.
double ErrorOf(const PackedModel& model, std::span<const int32_t> tokens,
               const reference::Matrix& want) {
  const ModelConfig& c = model.config();
  Session session(model, 1);
  double error = 0, size = 0;
  for (size_t t = 0; t < tokens.size(); ++t) {
    session.Step(std::vector<int64_t>{0}, tokens.subspan(t, 1));
    for (int64_t i = 0; i < c.outputs(); ++i) {
      error = std::max(error, std::abs(session.outputs(0)[i] - want[t][i]));
      size = std::max(size, std::abs(want[t][i]));
    }
  }
  return error / size;
}

// Weights and activations of bfloat16 are wrong by 2^-9 each, of int8 by up to 1/254 of the largest
// of a row; the errors of a layer's sums are as random as the roundings. Errors do not grow with
// the steps: the state is float32, and each write to it is wrong by itself.
TEST(WeightTypeTest, OutputsStayNearFloat64OverManySteps) {
  for (const char* mixers : {"linear", "gated_delta"}) {
    SCOPED_TRACE(mixers);
    const ModelConfig c = Pictures(mixers);
    const PackedModel::Tensors tensors = reference::DenseTensors(c, 1);
    const std::vector<int32_t> tokens = Tokens(c, kSteps, 0);
    const reference::Matrix want = reference::Model(c, tensors).Forward(tokens);
    constexpr double kBounds[] = {1e-5, 2e-2, 8e-2};
    for (const WeightType type : kTypes) {
      const double error = ErrorOf(PackedModel(c, tensors, type), tokens, want);
      RecordProperty(std::string(WeightTypeName(type)), fmt::format("{:.1e}", error));
      EXPECT_LT(error, kBounds[static_cast<size_t>(type)]) << WeightTypeName(type);
      EXPECT_GT(error, 0);
    }
  }
}

// Wide enough that two threads share a token.
ModelConfig Wide(const std::string& mixers) {
  ModelConfig c = SmallConfig();
  c.dim = 96, c.heads = c.value_heads = 4, c.head_dim = 16, c.value_dim = 24, c.mlp_dim = 320;
  c.mixers = ExpandMixers(mixers, 2), c.block = "modern", c.position = "none", c.max_len = 40;
  c.lsh_buckets = 2, c.lsh_chunk = 8;
  return c;
}

std::vector<float> OutputsAfter(const PackedModel& model, int threads, int64_t sequences) {
  const int before = omp_get_max_threads();
  omp_set_num_threads(threads);
  Session session(model, sequences);
  std::vector<int64_t> slots(sequences);
  std::iota(slots.begin(), slots.end(), 0);
  for (int32_t t = 0; t < 6; ++t) session.Step(slots, std::vector<int32_t>(sequences, t));
  omp_set_num_threads(before);
  std::vector<float> all = Copied(session.outputs(0));
  all.insert(all.end(), session.state(0).begin(), session.state(0).end());
  return all;
}

TEST(WeightTypeTest, ResultsDoNotDependOnThreadsOrBatch) {
  for (const char* mixers : {"linear", "softmax", "kda", "3x gated_delta + 1x lsh", "retention"}) {
    const ModelConfig c = Wide(mixers);
    const PackedModel::Tensors tensors = reference::DenseTensors(c, 1);
    for (const WeightType type : kTypes) {
      SCOPED_TRACE(std::string(mixers) + " " + std::string(WeightTypeName(type)));
      const PackedModel model(c, tensors, type);
      ASSERT_GE(model.layer(0).products(), 1 << 16);
      const std::vector<float> want = OutputsAfter(model, 1, 1);
      for (const int64_t sequences : {1, 3, 9, 40})
        for (const int threads : {1, 2, 3})
          EXPECT_EQ(OutputsAfter(model, threads, sequences), want);
    }
  }
}

TEST(WeightTypeTest, StatesOfOneTypeAreRefusedByAnother) {
  const TemporaryDirectory directory;
  const std::string path = directory.path() + "/state";
  const ModelConfig c = SmallConfig();
  const PackedModel::Tensors tensors = reference::DenseTensors(c, 1);
  const PackedModel wide(c, tensors), narrow(c, tensors, WeightType::kBFloat16);
  Session from(wide, 1), to(narrow, 1);
  SaveState(from, 0, path);
  EXPECT_THROW(LoadState(to, 0, path), Error);
  EXPECT_NO_THROW(LoadState(from, 0, path));
}

}  // namespace
}  // namespace linattn
