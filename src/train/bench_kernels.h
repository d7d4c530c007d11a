#pragma once

#include "bench/kernel_bench.h"

namespace linattn {

// The job of a row of `linattn bench kernels` as somebody would write it with LibTorch's tensor
// operations alone: chunkwise products for state mixers, masked products and a softmax for
// `softmax`, autograd for backward.
bench::Baseline LibTorchBaseline(const Mixer& mixer, bench::Pass pass,
                                 const bench::MixerProblem<float>& problem,
                                 const bench::StepProblem* steps);

}  // namespace linattn
