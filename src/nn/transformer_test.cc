#include "nn/transformer.h"

#include <gtest/gtest.h>
#include <torch/utils.h>

#include <cmath>
#include <limits>

#include "base/error.h"
#include "kernels/mixer.h"
#include "model/parameters.h"
#include "nn/carry.h"
#include "nn/loss.h"
#include "ops/gradcheck.h"

namespace linattn {
namespace {

using at::Tensor;

ModelConfig TextConfig(std::vector<std::string> mixers) {
  ModelConfig c;
  c.task = "text", c.head = "categorical", c.position = "learned";
  c.max_len = 32, c.vocab = 11, c.dim = 16;
  c.heads = c.value_heads = 2, c.head_dim = 4, c.value_dim = 6, c.mlp_dim = 24;
  c.mixers = std::move(mixers);
  return c;
}

ModelConfig ImageConfig(std::vector<std::string> mixers) {
  ModelConfig c = TextConfig(std::move(mixers));
  c.task = "images", c.head = "logistic_mixture", c.position = "image", c.mixtures = 3;
  c.height = 3, c.width = 2, c.channels = 3, c.max_len = 18, c.vocab = 256;
  return c;
}

// Small models of every registered mixer in both styles, and a hybrid, with their names.
std::vector<std::pair<std::string, ModelConfig>> AllModels() {
  std::vector<std::pair<std::string, ModelConfig>> models;
  for (const Mixer* mixer : AllMixers())
    for (const char* block : {"classic", "modern"}) {
      const std::string name(mixer->name);
      ModelConfig c = TextConfig({name, name});
      c.block = block, c.lsh_buckets = 2, c.lsh_chunk = 4, c.sparse_stride = 5;
      models.emplace_back(name + " " + block, c);
    }
  ModelConfig hybrid = TextConfig(ExpandMixers("3x gated_delta + 1x softmax", 4));
  hybrid.block = "modern", hybrid.value_heads = 4, hybrid.attn_heads = 4;
  hybrid.attn_head_dim = 6, hybrid.kv_heads = 2, hybrid.qkv_bias = true, hybrid.window = 3;
  hybrid.attn_conv_size = 3;
  hybrid.rope_theta = 100, hybrid.negative_eigenvalues = true;
  models.emplace_back("hybrid", hybrid);
  ModelConfig hedgehog = TextConfig({"linear", "retention"});
  hedgehog.block = "modern", hedgehog.feature_map = "hedgehog", hedgehog.rope_theta = 100;
  hedgehog.output_gate = "swish", hedgehog.decay_schedule = "lightning";
  models.emplace_back("hedgehog and retention", hedgehog);
  return models;
}

Tensor RandomTokens(const ModelConfig& c, int64_t B, int64_t T) {
  return at::randint(0, c.vocab, {B, T}, at::kLong);
}

Transformer Evaluating(const ModelConfig& c) {
  torch::manual_seed(1);
  Transformer model(c);
  model.SetTraining(false);
  return model;
}

TEST(Transformer, ParametersAreThoseOfTheFileFormat) {
  auto image = ImageConfig({"linear", "softmax"}), tied = TextConfig({"linear"});
  image.classes = 10;
  tied.tied = true;
  auto bare = TextConfig({"softmax"});
  bare.position = "none";
  std::vector<ModelConfig> configs = {image, tied, bare, NamedConfig("fashion-small")};
  for (const auto& [name, c] : AllModels()) configs.push_back(c);
  for (const auto& c : configs) {
    const auto list = Transformer(c).NamedParameters();
    auto specs = Parameters(c);
    EXPECT_EQ(Transformer(c).Export().size(), specs.size());
    std::erase_if(specs, [](const ParameterSpec& spec) { return !spec.trained; });
    ASSERT_EQ(list.size(), specs.size());
    for (size_t i = 0; i < specs.size(); ++i) {
      EXPECT_EQ(list[i].first, specs[i].name);
      EXPECT_EQ(list[i].second.sizes().vec(), specs[i].shape) << specs[i].name;
      EXPECT_TRUE(list[i].second.requires_grad());
    }
  }
}

TEST(Transformer, IsCausalBitForBit) {
  for (const auto& [mixer, c] : AllModels())
    for (const bool autocast : {false, true}) {
      auto model = Evaluating(c);
      model.SetAutocast(autocast);
      torch::NoGradGuard no_grad;
      Tensor tokens = RandomTokens(c, 2, 20);
      const Tensor before = model.Forward(tokens);
      tokens = tokens.clone();
      tokens[0][13] = (tokens[0][13] + 1) % c.vocab;
      const Tensor after = model.Forward(tokens);
      EXPECT_TRUE(at::equal(before.narrow(1, 0, 13), after.narrow(1, 0, 13))) << mixer;
      EXPECT_FALSE(at::equal(before[0][13], after[0][13])) << mixer;
      EXPECT_TRUE(at::equal(before[1], after[1])) << mixer;
    }
}

TEST(Transformer, EncoderSeesTheFuture) {
  auto c = TextConfig({"linear"});
  c.causal = false;
  auto model = Evaluating(c);
  const Tensor tokens = RandomTokens(c, 1, 9);
  Tensor other = tokens.clone();
  other[0][8] = (other[0][8] + 1) % c.vocab;
  EXPECT_FALSE(at::allclose(model.Forward(tokens)[0][0], model.Forward(other)[0][0]));
}

// The outputs of `tokens` [1,T] at the places of `index` in a row of 12, alone or beside another.
double PaddingError(Transformer& model, const Tensor& tokens, const std::vector<int64_t>& index,
                    int64_t rows) {
  torch::NoGradGuard no_grad;
  const Tensor expected = model.Forward(tokens), places = at::tensor(index, at::kLong);
  Tensor padded = at::full({rows, 12}, 3, at::kLong), mask = at::zeros({rows, 12}, at::kBool);
  padded.index_copy_(1, places, tokens.expand({rows, tokens.size(1)}));
  mask.index_fill_(1, places, 1);
  const Tensor out = model.Forward(padded, &mask).index_select(1, places);
  return (out - expected).abs().max().item<double>();
}

// A4, A33: padding on either side and within changes nothing for the tokens that are there, causal
// or not, through convolutions and rotary positions too.
TEST(Transformer, PaddingIsInvisible) {
  auto models = AllModels();
  for (const char* mixer : {"linear", "softmax"}) {
    auto encoder = TextConfig({mixer, mixer});
    encoder.causal = false;
    models.emplace_back(std::string("encoder ") + mixer, encoder);
  }
  for (const auto& [name, c] : models) {
    auto model = Evaluating(c);
    const Tensor tokens = RandomTokens(c, 1, 5);
    for (const int64_t rows : {1, 2})
      for (const std::vector<int64_t>& index : std::vector<std::vector<int64_t>>{
               {0, 1, 2, 3, 4}, {1, 2, 3, 4, 5}, {7, 8, 9, 10, 11}, {1, 4, 5, 9, 11}})
        EXPECT_LT(PaddingError(model, tokens, index, rows), 1e-6) << name << " " << index[4];
  }
}

// The derivative along one random direction a parameter, against central differences; float64.
double ModelGradientError(const ModelConfig& c) {
  torch::manual_seed(4);
  Transformer model(c);
  model.ToFloat64();
  const Tensor tokens = RandomTokens(c, 2, 6);
  Tensor targets = RandomTokens(c, 2, 6);
  targets[1][5] = -1;
  const auto loss = [&] { return TokenLoss(c, model.Forward(tokens), targets).sum(); };
  const auto parameters = model.NamedParameters();
  for (const auto& [name, p] : parameters)  // nothing stays at 0 or 1
    p.set_data(p + at::randn_like(p.detach()) * 0.3);
  loss().backward();
  torch::NoGradGuard no_grad;
  double worst = 0;
  for (const auto& [name, p] : parameters) {
    const Tensor direction = at::randn_like(p), kept = p.clone();
    const auto moved = [&](double step) {
      p.copy_(kept + step * direction);
      return loss().item<double>();
    };
    // Of fourth order: the norm of a head whose output is near 0 bends sharply.
    constexpr double h = 1e-5;
    const double numeric = (8 * (moved(h) - moved(-h)) - (moved(2 * h) - moved(-2 * h))) / (12 * h);
    p.copy_(kept);
    const double analytic = (p.grad() * direction).sum().item<double>();
    worst = std::max(worst, std::abs(analytic - numeric) / std::max(1.0, std::abs(numeric)));
  }
  return worst;
}

TEST(Transformer, GradientsOfTheWholeModel) {
  for (const bool pre_norm : {true, false})
    for (const char* activation : {"gelu", "relu"})
      for (auto c : {TextConfig({"linear", "softmax"}), ImageConfig({"softmax", "linear"})}) {
        c.pre_norm = pre_norm, c.activation = activation;
        c.tied = c.head == "categorical";
        EXPECT_LT(ModelGradientError(c), 1e-6) << c.head << " pre_norm " << pre_norm << activation;
      }
}

TEST(Transformer, GradientsOfEveryMixerInBothStyles) {
  for (const auto& [name, c] : AllModels()) EXPECT_LT(ModelGradientError(c), 1e-6) << name;
}

// Outputs and the gradients of all parameters, laid end to end, of one pass.
std::pair<Tensor, Tensor> RunOnce(const ModelConfig& c, bool autocast, bool float64) {
  auto model = Evaluating(c);
  model.SetAutocast(autocast);
  if (float64) model.ToFloat64();
  torch::manual_seed(9);
  const Tensor tokens = RandomTokens(c, 2, 18);
  const Tensor out = model.Forward(tokens);
  TokenLoss(c, out, RandomTokens(c, 2, 18)).mean().backward();
  std::vector<Tensor> gradients;
  for (const auto& [name, p] : model.NamedParameters())
    gradients.push_back(p.grad().flatten().to(at::kDouble));
  return {out.detach().to(at::kDouble), at::cat(gradients)};
}

double RmsError(const Tensor& x, const Tensor& ref) {
  return ((x - ref).norm() / ref.norm()).item<double>();
}

TEST(Transformer, Float32AndBFloat16AreCloseToFloat64) {
  for (const char* mixer : {"linear", "softmax"})
    for (const bool pre_norm : {true, false}) {
      auto c = ImageConfig({mixer, mixer, mixer});
      c.pre_norm = pre_norm;
      const auto [ref, d_ref] = RunOnce(c, false, true);
      const auto [single, d_single] = RunOnce(c, false, false);
      const auto [half, d_half] = RunOnce(c, true, false);
      EXPECT_LT(RmsError(single, ref), 1e-6) << mixer;
      EXPECT_LT(RmsError(d_single, d_ref), 1e-5) << mixer;
      EXPECT_LT(RmsError(half, ref), 5e-3) << mixer;  // 2^-9 a rounding
      EXPECT_LT(RmsError(d_half, d_ref), 2e-2) << mixer;
    }
}

TEST(Transformer, EveryMixerInBothStylesIsCloseToFloat64) {
  for (const auto& [name, c] : AllModels()) {
    const auto [ref, d_ref] = RunOnce(c, false, true);
    const auto [single, d_single] = RunOnce(c, false, false);
    const auto [half, d_half] = RunOnce(c, true, false);
    const double error = RmsError(single, ref), d_error = RmsError(d_single, d_ref);
    EXPECT_LT(error, 5e-6) << name;
    EXPECT_LT(d_error, 2e-5) << name;
    // bfloat16's roundings are 2^16 times those of float32. How much comes of one depends on the
    // model: the norm of a head's output turns a small sum of large terms into a large number.
    EXPECT_LT(RmsError(half, ref), 3e5 * error) << name;
    EXPECT_LT(RmsError(d_half, d_ref), 3e5 * d_error) << name;
  }
}

// A25: evaluation is repeatable, and what it depends on is in the file.
TEST(Transformer, RandomFeaturesAreFixedAndSaved) {
  auto c = TextConfig({"performer", "performer"});
  auto model = Evaluating(c);
  const Tensor tokens = RandomTokens(c, 1, 9), out = model.Forward(tokens);
  EXPECT_TRUE(at::equal(model.Forward(tokens), out));
  c.feature_seed = 5;
  auto other = Evaluating(c);
  EXPECT_FALSE(at::equal(other.Forward(tokens), out));
  other.Import(model.Export());
  EXPECT_TRUE(at::equal(other.Forward(tokens), out));
  model.RedrawFeatures(1);
  EXPECT_FALSE(at::equal(model.Forward(tokens), out));
  model.RedrawFeatures(0);
  EXPECT_TRUE(at::equal(model.Forward(tokens), out));
}

// D10: an untrained byte model knows nothing, at any width.
TEST(Transformer, InitialDecayIsTheLargestBeforeTraining) {
  ModelConfig c = TextConfig({"gated_delta", "kda"});
  c.block = "modern", c.heads = c.value_heads = 32;
  const auto largest = [&](double initial_decay) {
    torch::manual_seed(1);
    c.initial_decay = initial_decay;
    double most = 0;
    for (const auto& [name, value] : Transformer(c).NamedParameters())
      if (name.ends_with("A_log")) most = std::max(most, value.exp().max().item<double>());
    return most;
  };
  EXPECT_GT(largest(16), 14);
  EXPECT_LE(largest(16), 16);
  EXPECT_NEAR(largest(1), largest(16) / 16, 1e-6);
}

TEST(Transformer, UntrainedByteModelHasLossLn256) {
  for (const bool tied : {false, true})
    for (const int64_t dim : {32, 512}) {
      auto c = TextConfig({"linear", "linear"});
      c.vocab = 256, c.dim = dim, c.tied = tied, c.mlp_dim = 2 * dim;
      c.block = tied ? "modern" : "classic";
      auto model = Evaluating(c);
      const Tensor tokens = RandomTokens(c, 4, 32);
      const double loss =
          TokenLoss(c, model.Forward(tokens), RandomTokens(c, 4, 32)).mean().item<double>();
      EXPECT_NEAR(loss, std::log(256), 0.1) << "dim " << dim << " tied " << tied;
    }
}

TEST(Transformer, UntrainedMixtureIsNearlyFlat) {
  auto c = ImageConfig({"linear", "linear"});
  c.mixtures = 10;
  auto model = Evaluating(c);
  const double nats = TokenLoss(c, model.Forward(RandomTokens(c, 8, 18)), RandomTokens(c, 8, 18))
                          .mean()
                          .item<double>();
  EXPECT_NEAR(nats / std::log(2), 8, 0.3);
}

// B24
TEST(Transformer, MaxLenTokensAreTheMost) {
  const auto c = TextConfig({"linear"});
  auto model = Evaluating(c);
  EXPECT_EQ(model.Forward(RandomTokens(c, 1, 32)).size(1), 32);
  try {
    model.Forward(RandomTokens(c, 1, 33));
    FAIL() << "33 tokens were accepted";
  } catch (const Error& e) {
    EXPECT_STREQ(e.what(), "[model] sequences must have at most max_len = 32 tokens, but have 33");
  }
}

// B21
TEST(Transformer, TokensOutOfRangeAreRefused) {
  const auto c = TextConfig({"linear"});
  auto model = Evaluating(c);
  for (const int64_t token : {-1, 12, 65536}) {
    Tensor tokens = RandomTokens(c, 1, 4);
    tokens[0][2] = token;
    EXPECT_THROW(model.Forward(tokens), Error) << token;
  }
  Tensor tokens = at::full({1, 4}, c.start_token(0), at::kLong);
  EXPECT_NO_THROW(model.Forward(tokens));
}

TEST(Transformer, DropoutIsRandomInTrainingOnly) {
  auto c = TextConfig({"linear"});
  c.dropout = 0.5;
  auto model = Evaluating(c);
  const Tensor tokens = RandomTokens(c, 1, 8);
  EXPECT_TRUE(at::equal(model.Forward(tokens), model.Forward(tokens)));
  model.SetTraining(true);
  EXPECT_FALSE(at::equal(model.Forward(tokens), model.Forward(tokens)));
  torch::manual_seed(8);
  const Tensor first = model.Forward(tokens);
  torch::manual_seed(8);
  EXPECT_TRUE(at::equal(model.Forward(tokens), first));
}

TEST(Transformer, ExportAndImportAreExact) {
  const auto c = ImageConfig({"linear"});
  auto model = Evaluating(c);
  torch::manual_seed(77);
  Transformer other(c);
  other.SetTraining(false);
  const Tensor tokens = RandomTokens(c, 2, 18);
  EXPECT_FALSE(at::equal(model.Forward(tokens), other.Forward(tokens)));
  other.Import(model.Export());
  EXPECT_TRUE(at::equal(model.Forward(tokens), other.Forward(tokens)));

  auto cut = model.Export();
  cut[3].second.pop_back();
  EXPECT_THROW(other.Import(cut), Error);
  auto renamed = model.Export();
  renamed[5].first = "nobody";
  EXPECT_THROW(other.Import(renamed), Error);
  EXPECT_TRUE(at::equal(model.Forward(tokens), other.Forward(tokens))) << "half imported";
}

// D7: which layer spoils the numbers.
TEST(Transformer, FirstNonFiniteNamesTheLayer) {
  const auto c = TextConfig({"linear", "softmax"});
  auto model = Evaluating(c);
  const Tensor tokens = RandomTokens(c, 1, 8);
  EXPECT_EQ(model.FirstNonFinite(tokens), "");
  torch::NoGradGuard no_grad;
  auto parameters = model.NamedParameters();
  const auto find = [&](const std::string& name) {
    for (const auto& [key, tensor] : parameters)
      if (key == name) return tensor;
    return Tensor();
  };
  // Finite weights whose product overflows.
  Tensor up = find("layers.1.mlp.up_proj.weight"), down = find("layers.1.mlp.down_proj.weight");
  up.mul_(1e20), down.mul_(1e25);
  EXPECT_EQ(model.FirstNonFinite(tokens), "layers.1.mlp");
  find("layers.0.attn.k_proj.bias")[0] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(model.FirstNonFinite(tokens), "layers.0.attn.k_proj.bias");
}

// D8: training with the state carried from piece to piece is training in one pass.
TEST(Transformer, PiecesWithCarriedStateEqualOnePass) {
  constexpr int64_t kLength = 4096, kPiece = 512;
  for (const char* mixer : {"linear", "gated_delta", "kda", "retention"}) {
    auto c = TextConfig({mixer, mixer});
    c.max_len = kLength, c.block = "modern", c.dim = 16, c.mlp_dim = 16, c.rope_theta = 1e4;
    auto whole = Evaluating(c);
    const Tensor tokens = RandomTokens(c, 1, kLength), targets = RandomTokens(c, 1, kLength);
    const Tensor once = TokenLoss(c, whole.Forward(tokens), targets);
    once.sum().backward();
    auto pieces = Evaluating(c);
    Carry carry;
    std::vector<Tensor> losses;
    for (int64_t t = 0; t < kLength; t += kPiece) {
      const Tensor outputs = pieces.Forward(tokens.narrow(1, t, kPiece), nullptr, &carry);
      losses.push_back(TokenLoss(c, outputs, targets.narrow(1, t, kPiece)));
    }
    const Tensor loss = at::cat(losses, 1);
    loss.sum().backward();
    EXPECT_EQ(carry.tokens, kLength);
    EXPECT_LT((loss - once).abs().max().item<double>(), 1e-5) << mixer;
    const auto expected = whole.NamedParameters(), actual = pieces.NamedParameters();
    for (size_t i = 0; i < expected.size(); ++i) {
      const Tensor wanted = expected[i].second.grad();
      const double error = (actual[i].second.grad() - wanted).abs().max().item<double>();
      EXPECT_LT(error, 1e-3 * (1 + wanted.abs().max().item<double>())) << expected[i].first;
    }
  }
}

TEST(Transformer, DetachedStateKeepsGradientsFromEarlierPieces) {
  auto c = TextConfig({"linear"});
  auto model = Evaluating(c);
  const Tensor tokens = RandomTokens(c, 2, 8);
  Carry carry;
  model.Forward(tokens.narrow(1, 0, 4), nullptr, &carry);
  EXPECT_TRUE(carry.layers[0].S.requires_grad());
  carry.Detach();
  EXPECT_FALSE(carry.layers[0].S.requires_grad());
  model.Forward(tokens.narrow(1, 4, 4), nullptr, &carry).sum().backward();
  EXPECT_EQ(carry.tokens, 8);
  EXPECT_THROW(model.Forward(tokens.narrow(0, 0, 1), nullptr, &carry), Error);
  auto cached = Evaluating(TextConfig({"softmax"}));
  Carry none;
  EXPECT_THROW(cached.Forward(tokens, nullptr, &none), Error);
}

// Zero from itself; of another kind of attention, its gradient reaches that attention alone.
TEST(Transformer, AttentionDistanceTrainsAttentionAlone) {
  const auto c = TextConfig({"softmax", "softmax"});
  auto teacher = Evaluating(c), same = Evaluating(c);
  const Tensor tokens = RandomTokens(c, 2, 9);
  EXPECT_TRUE(at::equal(same.AttentionDistance(teacher, tokens), at::zeros({2})));

  auto student_config = c;
  student_config.mixers = {"linear", "linear"};
  auto student = Evaluating(student_config);
  const Tensor distance = student.AttentionDistance(teacher, tokens);
  EXPECT_TRUE(distance.gt(0).all().item<bool>());
  distance.sum().backward();
  for (const auto& [name, tensor] : student.NamedParameters())
    EXPECT_EQ(tensor.grad().defined(), name.find(".attn.") != std::string::npos) << name;
  for (const auto& [name, tensor] : teacher.NamedParameters())
    EXPECT_FALSE(tensor.grad().defined()) << name;
}

TEST(Transformer, UnknownMixerIsRefused) {
  EXPECT_THROW(Transformer(TextConfig({"linearr"})), Error);
}

}  // namespace
}  // namespace linattn
