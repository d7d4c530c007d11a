#include "nn/transformer.h"

#include <fmt/ranges.h>
#include <torch/utils.h>

#include <algorithm>

#include "base/error.h"
#include "model/layer.h"
#include "model/parameters.h"
#include "nn/carry.h"
#include "nn/modules.h"

namespace linattn {

using at::Tensor;

struct Transformer::Impl {
  explicit Impl(const ModelConfig& config) : model(config) {}
  nn::Model model;
  bool autocast = false;
};

namespace {

constexpr const char* kWhere = "model";

void CheckTokens(const ModelConfig& c, const Tensor& tokens, const Tensor* mask,
                 int64_t before = 0) {
  if (c.reads_frames()) {
    Check(tokens.dim() == 3 && tokens.size(2) == c.row_width() && tokens.is_floating_point(),
          kWhere, "frames must be [B,T,{}] floats, but are {} with {} axes", c.row_width(),
          c10::toString(tokens.scalar_type()), tokens.dim());
  } else {
    Check(tokens.dim() == 2 && tokens.scalar_type() == at::kLong, kWhere,
          "tokens must be [B,T] int64, but are {} with {} axes",
          c10::toString(tokens.scalar_type()), tokens.dim());
  }
  Check(c.position == "none" || before + tokens.size(1) <= c.max_len, kWhere,
        "sequences must have at most max_len = {} tokens, but have {}", c.max_len,
        before + tokens.size(1));
  Check(mask == nullptr || mask->sizes() == tokens.sizes().slice(0, 2), kWhere,
        "mask must have the shape of the tokens, [{},{}], but has {} elements", tokens.size(0),
        tokens.size(1), mask == nullptr ? 0 : mask->numel());
  if (tokens.numel() == 0 || c.reads_frames()) return;
  const int64_t rows = c.vocab + std::max<int64_t>(1, c.classes);
  const auto least = tokens.min().item<int64_t>(), most = tokens.max().item<int64_t>();
  Check(least >= 0 && most < rows, kWhere, "tokens must be in [0, {}), but one is {}", rows,
        least < 0 ? least : most);
}

void CheckCarry(const ModelConfig& c, const Tensor& tokens, const Tensor* mask,
                const Carry& carry) {
  Check(mask == nullptr, kWhere,
        "there must be no mask where a state is carried, but there is one");
  for (int64_t i = 0; i < c.layers(); ++i) {
    Check(c.causal && PlanLayer(c, i).state(), kWhere,
          "every layer must be causal and have a state to be carried, but layer {} is {}", i,
          c.mixers[i]);
  }
  if (carry.layers.empty()) return;
  Check(std::ssize(carry.layers) == c.layers(), kWhere,
        "a carried state must be of {} layers, but is of {}", c.layers(), carry.layers.size());
  Check(carry.layers[0].S.size(0) == tokens.size(0), kWhere,
        "a carried state must be of {} sequences, but is of {}", tokens.size(0),
        carry.layers[0].S.size(0));
}

bool AllFinite(const Tensor& x) { return at::isfinite(x).all().item<bool>(); }

std::string ShapeString(at::IntArrayRef shape) {
  return fmt::format("[{}]", fmt::join(shape.begin(), shape.end(), ","));
}

using NamedList = std::vector<std::pair<std::string, Tensor>>;

// What the file holds, in its order; trained or not.
NamedList AllTensors(const nn::Model& model) {
  NamedList list;
  for (const auto& item : model.named_parameters()) list.emplace_back(item.key(), item.value());
  return list;
}

// The model's parameters are those that the file format promises, in its order.
void CheckParameters(const ModelConfig& config, const nn::Model& model) {
  const auto specs = Parameters(config);
  const auto parameters = model.named_parameters();
  for (size_t i = 0; i < std::max(specs.size(), parameters.size()); ++i) {
    Check(i < specs.size() && i < parameters.size(), kWhere,
          "there must be {} parameters, but are {}; the first that is too few or too many is {}",
          specs.size(), parameters.size(), i < specs.size() ? specs[i].name : parameters[i].key());
    const auto& [name, tensor] = parameters[i].pair();
    Check(name == specs[i].name && tensor.sizes() == at::IntArrayRef(specs[i].shape), kWhere,
          "parameter {} must be {} {}, but is {} {}", i, specs[i].name, ShapeString(specs[i].shape),
          name, ShapeString(tensor.sizes()));
  }
}

}  // namespace

Transformer::Transformer(const ModelConfig& config) {
  CheckConfig(config);
  impl_ = std::make_unique<Impl>(config);
  CheckParameters(config, impl_->model);
}
Transformer::~Transformer() = default;
Transformer::Transformer(Transformer&&) noexcept = default;
Transformer& Transformer::operator=(Transformer&&) noexcept = default;

const ModelConfig& Transformer::config() const { return impl_->model.config; }
void Transformer::SetTraining(bool on) { impl_->model.train(on); }
void Transformer::SetAutocast(bool on) { impl_->autocast = on; }
void Transformer::ToFloat64() { impl_->model.to(at::kDouble); }

Tensor Transformer::Forward(const Tensor& tokens, const Tensor* mask, Carry* carry) {
  CheckTokens(config(), tokens, mask, carry ? carry->tokens : 0);
  nn::Pass pass{.mask = mask ? *mask : Tensor(), .autocast = impl_->autocast, .carry = carry};
  if (carry == nullptr) return impl_->model.Forward(tokens, pass);
  CheckCarry(config(), tokens, mask, *carry);
  carry->layers.resize(config().layers());
  const Tensor outputs = impl_->model.Forward(tokens, pass);
  carry->tokens += tokens.size(1);
  return outputs;
}

NamedList Transformer::NamedParameters() const {
  NamedList list = AllTensors(impl_->model);
  std::erase_if(list, [](const auto& item) { return !item.second.requires_grad(); });
  return list;
}

void Transformer::RedrawFeatures(int64_t draw) {
  for (const auto& layer : impl_->model.layers) layer->attn->RedrawFeatures(config(), draw);
}

std::string Transformer::FirstNonFinite(const Tensor& tokens, const Tensor* mask) {
  torch::NoGradGuard no_grad;
  for (const auto& [name, tensor] : NamedParameters())
    if (!AllFinite(tensor)) return name;
  CheckTokens(config(), tokens, mask);
  std::string first;
  nn::Pass pass{.mask = mask ? *mask : Tensor(), .autocast = impl_->autocast};
  pass.observe = [&](const std::string& layer, const Tensor&, const Tensor& output) {
    if (first.empty() && !AllFinite(output)) first = layer;
  };
  const bool training = impl_->model.is_training();
  impl_->model.eval();
  impl_->model.Forward(tokens, pass);
  impl_->model.train(training);
  return first;
}

Tensor Transformer::AttentionDistance(const Transformer& teacher, const Tensor& tokens,
                                      const Tensor* mask) const {
  CheckTokens(config(), tokens, mask);
  const auto& layers = impl_->model.layers;
  Check(layers.size() == teacher.impl_->model.layers.size() && config().dim == teacher.config().dim,
        kWhere, "a teacher must have {} layers of width {}, but has {} of {}", layers.size(),
        config().dim, teacher.config().layers(), teacher.config().dim);
  const Tensor there = mask ? *mask : Tensor();
  const auto present = [&](const Tensor& y) {
    return mask ? y.to(at::kFloat).masked_fill(mask->eq(0).unsqueeze(-1), 0) : y.to(at::kFloat);
  };
  const nn::Pass own{.mask = there, .autocast = impl_->autocast};
  std::vector<Tensor> distances;
  nn::Pass pass{.mask = there, .autocast = teacher.impl_->autocast};
  pass.observe = [&](const std::string& layer, const Tensor& x, const Tensor& wanted) {
    if (!layer.ends_with(".attn")) return;
    const at::AutoGradMode gradients(true);
    const Tensor y = present(layers[distances.size()]->attn->Forward(x, own));
    const Tensor to = present(wanted);
    distances.push_back((y - to).square().sum() / to.square().sum().clamp_min(1e-30));
  };
  {
    const at::NoGradGuard no_gradient;  // of the teacher
    teacher.impl_->model.Forward(tokens, pass);
  }
  return at::stack(distances);
}

Transformer::Weights Transformer::Export() const {
  Weights weights;
  for (const auto& [name, tensor] : AllTensors(impl_->model)) {
    const Tensor flat = tensor.detach().to(at::kFloat).contiguous().view(-1);
    const float* data = flat.data_ptr<float>();
    weights.emplace_back(name, std::vector<float>(data, data + flat.numel()));
  }
  return weights;
}

void Transformer::Import(const Weights& weights) {
  torch::NoGradGuard no_grad;
  auto parameters = AllTensors(impl_->model);
  Check(weights.size() == parameters.size(), kWhere, "there must be {} tensors, but are {}",
        parameters.size(), weights.size());
  for (size_t i = 0; i < weights.size(); ++i) {
    const auto& [name, data] = weights[i];
    Check(name == parameters[i].first, kWhere, "tensor {} must be '{}', but is '{}'", i,
          parameters[i].first, name);
    const int64_t size = parameters[i].second.numel();
    Check(static_cast<int64_t>(data.size()) == size, kWhere,
          "tensor '{}' must have {} numbers, but has {}", name, size, data.size());
  }
  for (size_t i = 0; i < weights.size(); ++i) {
    auto& data = const_cast<std::vector<float>&>(weights[i].second);  // only read
    parameters[i].second.copy_(
        at::from_blob(data.data(), parameters[i].second.sizes(), at::kFloat));
  }
  for (const auto& layer : impl_->model.layers) layer->attn->FeaturesChanged();
}

}  // namespace linattn
