// What training computes and what the lean runtime computes of its export are the same model.
#include <gtest/gtest.h>
#include <torch/utils.h>

#include <map>

#include "base/error.h"
#include "kernels/mixer.h"
#include "nn/loss.h"
#include "nn/transformer.h"
#include "runtime/full_pass.h"
#include "runtime/session.h"

namespace linattn {
namespace {

using at::Tensor;

ModelConfig Text(const std::string& mixers, const std::string& block) {
  ModelConfig c;
  c.task = "text", c.head = "categorical", c.position = "none", c.vocab = 19, c.max_len = 40;
  c.dim = 24, c.heads = c.value_heads = 2, c.head_dim = 6, c.value_dim = 10, c.mlp_dim = 40;
  c.mixers = ExpandMixers(mixers, 2), c.block = block;
  c.lsh_buckets = 2, c.lsh_chunk = 8, c.sparse_stride = 6;
  return c;
}

std::vector<std::pair<std::string, ModelConfig>> AllModels() {
  std::vector<std::pair<std::string, ModelConfig>> models;
  for (const Mixer* mixer : AllMixers())
    for (const char* block : {"classic", "modern"}) {
      const std::string name(mixer->name);
      models.emplace_back(name + " " + block, Text(name, block));
    }
  ModelConfig hybrid = Text("linear", "modern");
  hybrid.mixers = ExpandMixers("3x gated_delta + 1x softmax", 4);
  hybrid.value_heads = 4, hybrid.attn_heads = 4, hybrid.attn_head_dim = 6, hybrid.kv_heads = 2;
  hybrid.qkv_bias = true, hybrid.window = 9, hybrid.rope_theta = 100;
  models.emplace_back("hybrid", hybrid);
  ModelConfig maps = Text("linear,retention", "modern");
  maps.feature_map = "hedgehog", maps.rope_theta = 100, maps.output_gate = "swish";
  maps.decay_schedule = "lightning";
  models.emplace_back("hedgehog and retention", maps);
  return models;
}

// A few steps of plain gradient descent, so that nothing is as it was drawn.
Transformer Trained(const ModelConfig& c) {
  torch::manual_seed(3);
  Transformer model(c);
  for (int step = 0; step < 5; ++step) {
    const Tensor tokens = at::randint(0, c.vocab, {4, 24}, at::kLong);
    TokenLoss(c, model.Forward(tokens), tokens.roll(-1, 1)).mean().backward();
    torch::NoGradGuard no_grad;
    for (const auto& [name, p] : model.NamedParameters()) {
      p.add_(p.grad(), -1.0 / std::max(1.0, p.grad().norm().item<double>()));
      p.grad().zero_();
    }
  }
  model.SetTraining(false);
  return model;
}

PackedModel Exported(const Transformer& model) {
  PackedModel::Tensors tensors;
  for (const auto& [name, values] : model.Export()) tensors[name] = values;
  return PackedModel(model.config(), tensors);
}

double Worst(std::span<const float> got, const Tensor& want) {
  const Tensor flat = want.contiguous().view(-1);
  EXPECT_EQ(static_cast<int64_t>(got.size()), flat.numel());
  double worst = 0;
  for (int64_t i = 0; i < flat.numel(); ++i)
    worst = std::max(worst, std::abs(got[i] - flat[i].item<double>()));
  return worst / flat.abs().max().item<double>();
}

// Both are float32; sums are taken in another order.
constexpr double kBound = 2e-5;

TEST(NnAndRuntime, FullPassesAgreeForEveryMixerInBothStyles) {
  for (const auto& [name, c] : AllModels()) {
    SCOPED_TRACE(name);
    Transformer model = Trained(c);
    const PackedModel packed = Exported(model);
    FullPass pass(packed);
    torch::NoGradGuard no_grad;
    const Tensor tokens = at::randint(0, c.vocab, {2, 33}, at::kLong);
    const Tensor ids = tokens.to(at::kInt).contiguous();
    const std::span<const int32_t> flat(ids.data_ptr<int32_t>(), static_cast<size_t>(ids.numel()));
    EXPECT_LT(Worst(pass.Run(flat, 2), model.Forward(tokens)), kBound);
  }
}

// Sequences of different lengths, left-padded in one batch there, each in its slot here, in pieces.
TEST(NnAndRuntime, RaggedBatchesAndHandedOnStatesAgree) {
  const std::vector<int64_t> lengths = {1, 5, 10, 24};
  for (const auto& [name, c] : AllModels()) {
    SCOPED_TRACE(name);
    Transformer model = Trained(c);
    const PackedModel packed = Exported(model);
    torch::NoGradGuard no_grad;
    const auto B = static_cast<int64_t>(lengths.size()), T = lengths.back();
    const Tensor tokens = at::randint(0, c.vocab, {B, T}, at::kLong);
    Tensor mask = at::zeros({B, T}, at::kBool);
    for (int64_t b = 0; b < B; ++b) mask[b].narrow(0, T - lengths[b], lengths[b]).fill_(true);
    const Tensor want = model.Forward(tokens, &mask).select(1, T - 1);
    Session session(packed, B);
    for (int64_t b = 0; b < B; ++b) {
      for (int64_t t = T - lengths[b]; t < T;) {
        const int64_t piece = std::min<int64_t>(T - t, 1 + (t * 7 + b) % 5);
        std::vector<int32_t> run;
        for (int64_t i = 0; i < piece; ++i)
          run.push_back(static_cast<int32_t>(tokens[b][t + i].item<int64_t>()));
        piece == 1 ? session.Step(std::vector<int64_t>{b}, run) : session.Prefill(b, run);
        t += piece;
      }
      EXPECT_LT(Worst(session.outputs(b), want[b]), kBound) << "length " << lengths[b];
    }
  }
}

// Of speech: frames in, an encoder of any mixer in both styles. Shorter sequences have masked rows
// behind them there, and stand alone here.
TEST(NnAndRuntime, EncodersOfFramesAgreeForEveryMixer) {
  const std::vector<int64_t> lengths = {1, 5, 10, 24};
  for (auto [name, c] : AllModels()) {
    SCOPED_TRACE(name);
    c.task = "speech", c.input_features = 5, c.subsample = 3, c.sample_rate = 8000;
    c.causal = false, c.position = "sinusoidal", c.window = 0;
    torch::manual_seed(4);
    Transformer model(c);
    model.SetTraining(false);
    const PackedModel packed = Exported(model);
    FullPass pass(packed);
    torch::NoGradGuard no_grad;
    const auto B = static_cast<int64_t>(lengths.size()), T = lengths.back();
    const Tensor frames = at::randn({B, T, c.row_width()});
    const Tensor mask = at::arange(T, at::kLong).unsqueeze(0).lt(at::tensor(lengths).unsqueeze(1));
    const Tensor want = model.Forward(frames, &mask);
    for (int64_t b = 0; b < B; ++b) {
      const Tensor alone = frames[b].narrow(0, 0, lengths[b]).contiguous();
      const std::span<const float> rows(alone.data_ptr<float>(),
                                        static_cast<size_t>(alone.numel()));
      EXPECT_LT(Worst(pass.RunFrames(rows, 1), want[b].narrow(0, 0, lengths[b])), kBound)
          << "length " << lengths[b];
    }
    // Both ends of a sequence are seen from its middle.
    Tensor changed = frames.clone();
    changed[3][0].add_(1), changed[2][9].add_(1);
    const Tensor moved = (model.Forward(changed, &mask) - want).abs().sum(-1);
    EXPECT_GT(moved[3][12].item<float>(), 0);
    EXPECT_GT(moved[2][4].item<float>(), 0);
    EXPECT_EQ(moved[1].narrow(0, 0, 5).max().item<float>(), 0);
  }
}

TEST(NnAndRuntime, AStreamOfFramesIsTheWholePass) {
  ModelConfig c = Text("gated_delta,linear", "modern");
  c.task = "speech", c.input_features = 5, c.subsample = 2, c.sample_rate = 8000;
  torch::manual_seed(5);
  Transformer model(c);
  model.SetTraining(false);
  const PackedModel packed = Exported(model);
  torch::NoGradGuard no_grad;
  const Tensor frames = at::randn({1, 30, c.row_width()});
  const Tensor want = model.Forward(frames);
  Session session(packed, 2);
  for (int64_t t = 0; t < 30; ++t) {
    const Tensor row = frames[0][t].contiguous();
    session.StepFrames(std::vector<int64_t>{1},
                       {row.data_ptr<float>(), static_cast<size_t>(row.numel())});
    EXPECT_LT(Worst(session.outputs(1), want[0][t]), kBound) << t;
  }
}

TEST(NnAndRuntime, LstmsAreForTrainingOnly) {
  ModelConfig c = Text("linear", "lstm");
  c.task = "speech", c.input_features = 5, c.sample_rate = 8000, c.causal = false;
  Transformer model(c);
  model.SetTraining(false);
  const Tensor frames = at::randn({2, 9, c.row_width()});
  const Tensor mask = at::arange(9, at::kLong).unsqueeze(0).lt(at::tensor({4, 9}).unsqueeze(1));
  const Tensor padded = model.Forward(frames, &mask);
  const Tensor alone = model.Forward(frames.narrow(0, 0, 1).narrow(1, 0, 4));
  EXPECT_LT((padded[0].narrow(0, 0, 4) - alone[0]).abs().max().item<double>(), 1e-5);
  padded.sum().backward();
  for (const auto& [name, tensor] : model.NamedParameters())
    EXPECT_TRUE(tensor.grad().defined()) << name;
  EXPECT_THROW(Exported(model), Error);
}

}  // namespace
}  // namespace linattn
