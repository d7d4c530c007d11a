#include "kernels/chunk_parts.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/chunk_parts.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/chunk_parts-inl.h"

HWY_BEFORE_NAMESPACE();
namespace linattn {
namespace HWY_NAMESPACE {

void SumPartsForTarget(const ChunkCall& call, const Sequences& parts, float* decay,
                       ThreadScratch scratch) {
  const int64_t HV = call.in.v.shape[2], D = call.shape.D;
  WithPolicy(call, [&]<class P>(P) {
    ForEachTask(call, parts, scratch, [&](const Task& task, float* block) {
      Pieces pieces(block);
      task.ForEachHead(ForwardScratch(call.shape, pieces),
                       [&](const HeadTask& head, const ForwardScratch& w) {
                         SumPart<P>(head, w, decay + (head.sequence * HV + head.value_head(0)) * D);
                       });
    });
  });
}

void SumPartGradientsForTarget(const ChunkCall& call, const Sequences& parts,
                               const MixerGradients& grad, ThreadScratch scratch) {
  WithPolicy(call, [&]<class P>(P) {
    ForEachTask(call, parts, scratch, [&](const Task& task, float* block) {
      Pieces pieces(block);
      task.ForEachHead(BackwardScratch(call.shape, pieces),
                       [&](const HeadTask& head, const BackwardScratch& w) {
                         SumPartGradient<P>(head, grad, w);
                       });
    });
  });
}

void ScanPartsForTarget(const Parts& parts, const PartStates& states, bool back) {
  const int64_t sequences = static_cast<int64_t>(parts.first.size()) - 1;
#pragma omp parallel for
  for (int64_t i = 0; i < sequences * states.HV; ++i) {
    const int64_t n = i / states.HV;
    ScanHead(states, parts.first[n], parts.first[n + 1], i % states.HV, back);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace linattn
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace linattn {
namespace {

HWY_EXPORT(SumPartsForTarget);
HWY_EXPORT(SumPartGradientsForTarget);
HWY_EXPORT(ScanPartsForTarget);

}  // namespace

void SumParts(const ChunkCall& call, const Sequences& parts, float* decay, ThreadScratch scratch) {
  HWY_DYNAMIC_DISPATCH(SumPartsForTarget)(call, parts, decay, scratch);
}

void SumPartGradients(const ChunkCall& call, const Sequences& parts, const MixerGradients& grad,
                      ThreadScratch scratch) {
  HWY_DYNAMIC_DISPATCH(SumPartGradientsForTarget)(call, parts, grad, scratch);
}

void ScanParts(const Parts& parts, const PartStates& states, bool back) {
  HWY_DYNAMIC_DISPATCH(ScanPartsForTarget)(parts, states, back);
}

}  // namespace linattn
#endif  // HWY_ONCE
