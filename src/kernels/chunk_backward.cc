#include "kernels/chunk.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/chunk_backward.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/chunk_backward-inl.h"

HWY_BEFORE_NAMESPACE();
namespace linattn {
namespace HWY_NAMESPACE {

void ChunkBackwardForTarget(const ChunkCall& call, const Sequences& sequences,
                            const MixerGradients& grad, ThreadScratch scratch) {
  WithPolicy(call, [&]<class P>(P) { BackwardTasks<P>(call, sequences, grad, scratch); });
}

}  // namespace HWY_NAMESPACE
}  // namespace linattn
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace linattn {

HWY_EXPORT(ChunkBackwardForTarget);

void BackwardWhole(const ChunkCall& call, const Sequences& sequences, const MixerGradients& grad,
                   ThreadScratch scratch) {
  HWY_DYNAMIC_DISPATCH(ChunkBackwardForTarget)
  (call, sequences, grad, scratch);
}

}  // namespace linattn
#endif  // HWY_ONCE
