#pragma once

#include <ATen/core/Tensor.h>

#include <string_view>

#include "kernels/mixer.h"

namespace linattn {

// q [B,T,heads,key_dim], k [B,T,key_heads,key_dim] and v [B,T,value_heads,value_dim] side by side
// in the channels of one tensor, as a projection writes them. Their gradients are written side by
// side too: nothing is copied.
struct PackedHeads {
  at::Tensor all;  // [B,T,channels]; undefined: there are none
  int64_t heads = 0, key_heads = 0, value_heads = 0, key_dim = 0, value_dim = 0;
  int64_t channels() const { return (heads + key_heads) * key_dim + value_heads * value_dim; }
};

// MixerInputs (kernels/mixer.h: shapes, masks, options) as tensors; undefined means absent. All
// float64: the mixer's reference runs. Otherwise q, k, v, g, beta are float32, bfloat16 or float16,
// and S0, z0 float32. Views are read in place if their last axis is contiguous.
struct MixTensors {
  at::Tensor q, k, v, g, beta, S0, z0;
  PackedHeads packed;                   // instead of q, k and v
  at::Tensor lengths, k_lengths;        // [B] int64
  at::Tensor mask, k_mask;              // [B,T] bool or uint8
  at::Tensor boundaries, k_boundaries;  // [N+1] int64
  MixerOptions options;                 // a feature map must outlive the backward pass
  bool final_state = true;              // false: do not return ST and zT
};

struct MixResult {
  at::Tensor o{};  // [B,T,HV,V] (cache mixers [B,T,H,V]), dtype of v
  at::Tensor ST{},
      zT{};  // final state of state mixers, float32; undefined where the mixer has none
};

// Differentiable with respect to q, k, v, g, beta, S0 and z0, with gradients flowing in from o, ST
// and zT. Keeps its inputs, o and one number a token and head for backward. Throws Error as
// CheckInputs does.
MixResult Mix(const Mixer& mixer, const MixTensors& in);
MixResult Mix(std::string_view mixer, const MixTensors& in);  // by registered name

}  // namespace linattn
