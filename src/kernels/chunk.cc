#include "kernels/chunk.h"

namespace linattn {

namespace {

// Key heads a task: as many as possible, since a task reads the tokens' rows once for all of them,
// which then lie side by side in memory; but their states should stay in a core's L2, and the
// threads should get equal shares.
int64_t HeadsPerTask(const MixerDims& d, int threads) {
  constexpr int64_t kStateFloats = 1 << 16;  // 256 KB
  for (int64_t tasks = 1; tasks < d.H; ++tasks) {
    const int64_t heads = (d.H + tasks - 1) / tasks, all = d.N * ((d.H + heads - 1) / heads);
    const bool small = heads * (d.HV / d.H) * d.F * d.V <= kStateFloats;
    if (small && (all % threads == 0 || all >= 4 * threads)) return heads;
  }
  return 1;
}

}  // namespace

ChunkShape ShapeOfChunks(const MixerDims& d, int threads) {
  return {
      .C = 16, .K = d.K, .F = d.F, .V = d.V, .G = d.HV / d.H, .heads = HeadsPerTask(d, threads)};
}

}  // namespace linattn
