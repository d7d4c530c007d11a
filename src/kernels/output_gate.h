#pragma once

#include <cstdint>

#include "kernels/gemm.h"
#include "kernels/layer_norm.h"

namespace linattn {

enum class OutputGate : uint8_t { kNone, kSwish, kSigmoid };

// What stands between a mixer and its output projection: RMSNorm of every head, then the gate.
struct OutputStage {
  LayerNormParameters norm;  // of one head: dim channels; without weight: no norm
  OutputGate gate = OutputGate::kNone;
  int64_t heads = 0;
};

// The rows of o, [heads*dim], in place: o = RMSNorm(o) * weight, times g sigmoid(g) (swish) or sigmoid(g).
// Row r of g, [heads*dim], starts at g.data + r * g.stride; unused without a gate. float32.
void ApplyOutputStage(const OutputStage& stage, ConstRows g, int64_t rows, Rows o);

}  // namespace linattn
