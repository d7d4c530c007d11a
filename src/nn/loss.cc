#include "nn/loss.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "base/error.h"
#include "ops/logistic_mixture_op.h"

namespace linattn {
namespace {

using at::Tensor;

constexpr const char* kWhere = "loss";

// outputs [N, outputs], targets [N], all of them in [0, vocab)
Tensor Losses(const ModelConfig& c, const Tensor& outputs, const Tensor& targets) {
  if (c.head == "logistic_mixture") return LogisticMixtureLoss(outputs, targets.to(at::kByte));
  return at::nll_loss(at::log_softmax(outputs, -1), targets, {}, at::Reduction::None);
}

void CheckTargets(const ModelConfig& c, const Tensor& outputs, const Tensor& targets) {
  Check(outputs.dim() == 3 && outputs.size(2) == c.outputs(), kWhere,
        "outputs must be [B,T,{}], but have {} axes and end in {}", c.outputs(), outputs.dim(),
        outputs.dim() ? outputs.size(-1) : 0);
  Check(targets.scalar_type() == at::kLong && targets.sizes() == outputs.sizes().slice(0, 2),
        kWhere, "targets must be [B,T] int64 with {} elements, but are {} with {}",
        outputs.size(0) * outputs.size(1), c10::toString(targets.scalar_type()), targets.numel());
  if (targets.numel() == 0) return;
  const auto least = targets.min().item<int64_t>(), most = targets.max().item<int64_t>();
  const int64_t symbols = c.head == "categorical" ? c.vocab : std::min<int64_t>(c.vocab, 256);
  Check(least >= -1 && most < symbols, kWhere, "targets must be in [-1, {}), but one is {}",
        symbols, least < -1 ? least : most);
}

}  // namespace

Tensor TokenLoss(const ModelConfig& config, const Tensor& outputs, const Tensor& targets) {
  CheckTargets(config, outputs, targets);
  const Tensor rows = outputs.flatten(0, 1), wanted = targets.flatten();
  const Tensor scored = wanted.ge(0);
  if (scored.all().item<bool>()) return Losses(config, rows, wanted).view(targets.sizes());
  // Taken out rather than multiplied by 0, so that whatever stands in the others cannot reach the
  // gradient.
  const Tensor index = scored.nonzero().flatten();
  const Tensor losses = Losses(config, rows.index_select(0, index), wanted.index_select(0, index));
  return at::zeros({rows.size(0)}, losses.options())
      .index_copy(0, index, losses)
      .view(targets.sizes());
}

}  // namespace linattn
