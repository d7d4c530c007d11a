#include "kernels/chunk.h"

#include <cstring>

namespace linattn {

ChunkShape ShapeOfChunks(const MixerDims& d) {
  return {.C = 32, .K = d.K, .F = d.F, .V = d.V, .G = d.HV / d.H};
}

void ZeroTokens(const Array& array, const std::vector<TokenList>& tokens) {
  if (!array.present()) return;
  const int64_t width = array.rank == 4 ? array.shape[3] : 1;
  const int64_t bytes = SizeOf(array.dtype);
  for (const TokenList& list : tokens) {
    for (int64_t i = 0; i < list.length; ++i) {
      for (int64_t h = 0; h < array.shape[2]; ++h) {
        const int64_t at =
            list.row * array.stride[0] + list[i] * array.stride[1] + h * array.stride[2];
        std::memset(static_cast<char*>(array.data) + at * bytes, 0, width * bytes);
      }
    }
  }
}

}  // namespace linattn
