#include "runtime/generate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <omp.h>

#include <cmath>
#include <limits>
#include <numbers>

#include "base/error.h"
#include "runtime/full_pass.h"
#include "runtime/reference_model.h"
#include "runtime/score.h"

namespace linattn {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

ModelConfig Text(std::vector<std::string> mixers = {"linear", "softmax"}) {
  ModelConfig c;
  c.task = "text", c.position = "learned", c.head = "categorical";
  c.vocab = 17, c.max_len = 60, c.dim = 16, c.heads = c.value_heads = 2;
  c.head_dim = c.value_dim = 8, c.mlp_dim = 24, c.mixers = std::move(mixers);
  return c;
}

ModelConfig Images() {
  ModelConfig c = Text({"linear", "linear"});
  c.task = "images", c.position = "image", c.head = "logistic_mixture", c.vocab = 256;
  c.height = c.width = 6, c.channels = 1, c.max_len = 36, c.classes = 4, c.mixtures = 3;
  return c;
}

std::vector<Request> Blank(const ModelConfig& c, int64_t n) {
  std::vector<Request> requests(n);
  for (int64_t i = 0; i < n; ++i) {
    requests[i].symbols.assign(c.max_len, kUnknown);
    requests[i].stream = static_cast<uint64_t>(i);
    requests[i].label = c.classes ? i % c.classes : 0;
  }
  return requests;
}

std::vector<std::vector<int32_t>> Made(const PackedModel& model, std::vector<Request> requests,
                                       const GenerateOptions& options) {
  Generate(model, requests, options);
  std::vector<std::vector<int32_t>> symbols;
  for (Request& request : requests) symbols.push_back(std::move(request.symbols));
  return symbols;
}

std::string MessageOf(const PackedModel& model, std::vector<Request> requests,
                      const GenerateOptions& options = {}) {
  try {
    Generate(model, requests, options);
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

TEST(GenerateTest, SameForAnyBatchAndThreadCount) {  // A5, B18
  for (const ModelConfig& c : {Text(), Images()}) {
    const PackedModel model(c, reference::DenseTensors(c, 1));
    const int threads = omp_get_max_threads();
    GenerateOptions options;
    options.seed = 7;
    options.sampler.temperature = 0.8;
    omp_set_num_threads(1);
    const auto want = Made(model, Blank(c, 19), options);
    for (const int count : {2, 4}) {
      omp_set_num_threads(count);
      for (const int64_t batch : {1, 5, 19, 64}) {
        options.batch = batch;
        EXPECT_EQ(Made(model, Blank(c, 19), options), want) << count << " " << batch;
      }
    }
    omp_set_num_threads(threads);
    EXPECT_NE(want[0], want[4]);  // streams differ
    options.seed = 8;
    EXPECT_NE(Made(model, Blank(c, 19), options), want);
  }
}

TEST(GenerateTest, UncachedMakesTheSameSymbols) {
  for (const ModelConfig& c : {Text(), Images(), Text({"softmax", "softmax"})}) {
    const PackedModel model(c, reference::DenseTensors(c, 1));
    GenerateOptions options;
    options.seed = 3;
    std::vector<Request> requests = Blank(c, 3);
    requests[1].symbols.resize(20);  // another length
    requests[2].symbols[0] = 5;
    const auto want = Made(model, requests, options);
    options.cached = false;
    EXPECT_EQ(Made(model, requests, options), want);
  }
}

TEST(GenerateTest, PromptsOfAnyLengthMatchThemAlone) {  // A4, A5, B16
  const ModelConfig c = Text();
  const PackedModel model(c, reference::DenseTensors(c, 1));
  std::vector<Request> requests;
  for (const int64_t length : {0, 2, 5, 40}) {
    Request request;
    for (int64_t i = 0; i < length; ++i) request.symbols.push_back(static_cast<int32_t>(i % 17));
    request.symbols.resize(length + 20, kUnknown);
    requests.push_back(request);
  }
  GenerateOptions options;
  options.sampler.temperature = 0;
  const auto together = Made(model, requests, options);
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(Made(model, {requests[i]}, options)[0], together[i]);
  }
}

TEST(GenerateTest, TemperatureZeroIsTheArgMaxOfTheDefinition) {  // C1
  const ModelConfig c = Text();
  const PackedModel::Tensors tensors = reference::DenseTensors(c, 1);
  const PackedModel model(c, tensors);
  const reference::Model definition(c, tensors);
  std::vector<int32_t> tokens = {static_cast<int32_t>(c.start_token(0))}, want;
  for (int64_t t = 0; t < c.max_len; ++t) {
    const reference::Vector logits = definition.Forward(tokens).back();
    want.push_back(
        static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin()));
    tokens.push_back(want.back());
  }
  GenerateOptions options;
  options.sampler.temperature = 0;
  for (uint64_t repeat = 0; repeat < 20; ++repeat) {
    options.seed = repeat;
    EXPECT_EQ(Made(model, Blank(c, 1), options)[0], want);
  }
}

TEST(GenerateTest, KnownSymbolsStayWhereverTheyAre) {
  const ModelConfig c = Images();
  const PackedModel model(c, reference::DenseTensors(c, 1));
  std::vector<Request> requests = Blank(c, 2);
  for (int64_t t = 0; t < 36; t += t < 12 ? 1 : 5) requests[1].symbols[t] = static_cast<int32_t>(t);
  const auto made = Made(model, requests, {});
  for (int64_t t = 0; t < 36; ++t) {
    if (requests[1].symbols[t] != kUnknown) {
      EXPECT_EQ(made[1][t], t);
    } else {
      EXPECT_TRUE(made[1][t] >= 0 && made[1][t] <= 255);
    }
  }
  std::vector<Request> all_known = {requests[0]};
  all_known[0].symbols.assign(36, 9);
  EXPECT_EQ(Made(model, all_known, {})[0], all_known[0].symbols);
}

TEST(GenerateTest, WrongRequestsAreRefusedBeforeAnyWork) {  // B21, B24
  const ModelConfig c = Text();
  const PackedModel model(c, reference::DenseTensors(c, 1));
  std::vector<Request> requests = Blank(c, 2);
  requests[1].symbols.push_back(kUnknown);
  EXPECT_THAT(MessageOf(model, requests),
              AllOf(HasSubstr("from 1 to 60 tokens"), HasSubstr("sequence 1 has 61")));
  for (const int32_t id : {-2, 17, 65536}) {
    requests = Blank(c, 1);
    requests[0].symbols[3] = id;
    EXPECT_THAT(MessageOf(model, requests),
                HasSubstr("token 3 of sequence 0 must be from 0 to 16 (a vocabulary of 17), but "
                          "is " +
                          std::to_string(id)));
  }
  requests = Blank(c, 1);
  requests[0].label = 1;
  EXPECT_THAT(MessageOf(model, requests), HasSubstr("class must be from 0 to 0, but is 1"));
  EXPECT_EQ(MessageOf(model, Blank(c, 1)), "no error");
  GenerateOptions options;
  options.sampler.temperature = -1;
  EXPECT_THAT(MessageOf(model, Blank(c, 1), options), HasSubstr("temperature"));
}

TEST(GenerateTest, NonFiniteOutputsStopNamingTheToken) {  // C7
  for (const ModelConfig& c : {Text(), Images()}) {
    PackedModel::Tensors tensors = reference::DenseTensors(c, 1);
    tensors["layers.1.mlp.up_proj.weight"][5] = std::numeric_limits<float>::quiet_NaN();
    EXPECT_THAT(MessageOf(PackedModel(c, tensors), Blank(c, 2)),
                HasSubstr("must be finite, but hold nan for token 0 of sequence 0"));
    // A NaN that only the ninth position meets.
    tensors = reference::DenseTensors(c, 1);
    auto& rows = tensors[c.task == "text" ? "position.weight" : "position.row.weight"];
    const int64_t row = c.task == "text" ? 12 : 2;  // row 2 of the picture begins at token 12
    rows[row * c.dim] = std::numeric_limits<float>::infinity();
    EXPECT_THAT(MessageOf(PackedModel(c, tensors), Blank(c, 2)),
                HasSubstr("for token 12 of sequence 0"));
  }
}

TEST(GenerateTest, SampledSymbolsFollowTheModelsProbabilities) {
  ModelConfig c = Text();
  c.vocab = 3, c.max_len = 2;
  const PackedModel::Tensors tensors = reference::DenseTensors(c, 1);
  const PackedModel model(c, tensors);
  constexpr int64_t kCount = 20'000;
  GenerateOptions options;
  options.batch = 1000;
  std::vector<double> counts(3, 0.0);
  for (const auto& symbols : Made(model, Blank(c, kCount), options)) counts[symbols[0]] += 1;
  const reference::Vector logits =
      reference::Model(c, tensors).Forward({static_cast<int32_t>(c.start_token(0))})[0];
  double sum = 0;
  for (const double x : logits) sum += std::exp(x);
  for (int i = 0; i < 3; ++i) {
    const double p = std::exp(logits[i]) / sum;
    EXPECT_NEAR(counts[i] / kCount, p, 5 * std::sqrt(p * (1 - p) / kCount)) << i;
  }
}

TEST(ScoreTest, MatchesTheDefinition) {
  const ModelConfig c = Text();
  const PackedModel::Tensors tensors = reference::DenseTensors(c, 1);
  const PackedModel model(c, tensors);
  FullPass pass(model);
  const std::vector<int32_t> symbols = {3, 16, 0, 7, 7, 1, 2, 3};  // [2,4]
  const std::vector<double> nats = ScoreSequences(pass, symbols, {}, 2);
  for (size_t b = 0; b < 2; ++b) {
    const std::vector<int32_t> row(symbols.begin() + b * 4, symbols.begin() + b * 4 + 4);
    const reference::Matrix logits =
        reference::Model(c, tensors)
            .Forward({static_cast<int32_t>(c.start_token(0)), row[0], row[1], row[2]});
    double want = 0;
    for (size_t t = 0; t < 4; ++t) {
      double sum = 0;
      for (const double x : logits[t]) sum += std::exp(x);
      want += std::log(sum) - logits[t][row[t]];
    }
    EXPECT_NEAR(nats[b], want, 1e-5 * want);
  }
}

TEST(ScoreTest, EqualComponentsScoreAsOneLogistic) {
  ModelConfig c = Images();
  c.classes = 0;
  PackedModel::Tensors tensors = reference::DenseTensors(c, 1, 0.0);
  for (int64_t i = 0; i < c.mixtures; ++i) tensors["head.bias"][2 * c.mixtures + i] = 0.5;
  const PackedModel model(c, tensors);
  FullPass pass(model);
  std::vector<int32_t> symbols(c.max_len, 128);
  // One logistic of mean 0 and scale e^0.5 at x = 128/127.5 - 1.
  const double d = std::exp(-0.5) / 255, u = (128 / 127.5 - 1) * std::exp(-0.5);
  const auto sigma = [](double x) { return 1 / (1 + std::exp(-x)); };
  const double want = -36 * std::log(sigma(u + d) - sigma(u - d));
  EXPECT_NEAR(ScoreSequences(pass, symbols, {}, 1)[0], want, 1e-5 * want);
}

TEST(ScoreTest, LabelsAndIdsAreChecked) {
  const ModelConfig c = Images();
  const PackedModel model(c, reference::DenseTensors(c, 1));
  FullPass pass(model);
  const std::vector<int32_t> symbols(c.max_len, 1);
  const auto message = [&](std::vector<int32_t> x, std::vector<int64_t> labels) {
    try {
      ScoreSequences(pass, x, labels, 1);
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string("no error");
  };
  EXPECT_EQ(message(symbols, {3}), "no error");
  EXPECT_THAT(message(symbols, {4}), HasSubstr("must be from 0 to 3, but is 4"));
  EXPECT_THAT(message(symbols, {}), HasSubstr("labels must be [1]"));
  std::vector<int32_t> last = symbols;
  last.back() = 256;
  EXPECT_THAT(message(last, {0}), HasSubstr("token 35 must be from 0 to 255, but is 256"));
  EXPECT_THAT(message(std::vector<int32_t>(37, 1), {0}),
              AllOf(HasSubstr("36"), HasSubstr("37")));  // B24
}

}  // namespace
}  // namespace linattn
