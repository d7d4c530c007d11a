#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace linattn {

// What a model of state mixers keeps of a batch's earlier tokens, so that long sequences can be
// trained on piece by piece: as much for any length. A new one has read nothing. Gradients flow
// through it into earlier pieces, unless it is detached between them.
struct Carry {
  struct Layer {
    at::Tensor S, z;  // of the mixer, as MixResult returns them
    at::Tensor conv;  // [B,W-1,channels] the convolution's last inputs
  };
  int64_t tokens = 0;         // read so far
  std::vector<Layer> layers;  // [L], or empty: nothing is read yet

  void Detach() {
    for (Layer& layer : layers) {
      for (at::Tensor* tensor : {&layer.S, &layer.z, &layer.conv}) {
        if (tensor->defined()) *tensor = tensor->detach();
      }
    }
  }
};

}  // namespace linattn
