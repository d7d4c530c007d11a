#include "kernels/output_gate.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/output_gate.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/layer_norm-inl.h"
#include "kernels/sigmoid-inl.h"

HWY_BEFORE_NAMESPACE();
namespace linattn {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

void OutputRow(const OutputStage& stage, const float* g, float* o) {
  const int64_t dim = stage.norm.dim, n = stage.heads * dim;
  if (stage.norm.weight != nullptr)
    for (int64_t i = 0; i < n; i += dim) NormalizeRow(stage.norm, o + i, 0.0f, o + i);
  if (stage.gate == OutputGate::kNone) return;
  const bool swish = stage.gate == OutputGate::kSwish;
  ForEachVector(n, [=](auto load, auto store, int64_t i) HWY_ATTR {
    const auto logit = load(g + i);
    store(hn::Mul(load(o + i), swish ? Silu(logit) : Sigmoid(logit)), o + i);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace linattn
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace linattn {
namespace {

HWY_EXPORT(OutputRow);

}  // namespace

void ApplyOutputStage(const OutputStage& stage, ConstRows g, int64_t rows, Rows o) {
  if (stage.norm.weight == nullptr && stage.gate == OutputGate::kNone) return;
  const auto run = HWY_DYNAMIC_DISPATCH(OutputRow);
  for (int64_t r = 0; r < rows; ++r) run(stage, g.data + r * g.stride, o.data + r * o.stride);
}

}  // namespace linattn
#endif  // HWY_ONCE
