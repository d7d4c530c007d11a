#include "kernels/chunk.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/chunk_forward.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/chunk_forward-inl.h"

HWY_BEFORE_NAMESPACE();
namespace linattn {
namespace HWY_NAMESPACE {

void ChunkForwardForTarget(const ChunkCall& call, const Sequences& sequences,
                           ThreadScratch scratch) {
  WithPolicy(call, [&]<class P>(P) { ForwardTasks<P>(call, sequences, scratch); });
}

}  // namespace HWY_NAMESPACE
}  // namespace linattn
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace linattn {

HWY_EXPORT(ChunkForwardForTarget);

void ForwardWhole(const ChunkCall& call, const Sequences& sequences, ThreadScratch scratch) {
  HWY_DYNAMIC_DISPATCH(ChunkForwardForTarget)
  (call, sequences, scratch);
}

}  // namespace linattn
#endif  // HWY_ONCE
