#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/mixer.h"
#include "kernels/scratch.h"

// Sizes and scratch of the chunkwise state mixers; the part that does not depend on the SIMD
// target.
namespace linattn {

// C tokens a chunk, G value heads a key head, `heads` key heads a task; the rest as in MixerDims.
struct ChunkShape {
  int64_t C = 0, K = 0, F = 0, V = 0, G = 0, heads = 0;
};
ChunkShape ShapeOfChunks(const MixerDims& dims, int threads);

// One call of a mixer's fast functions, checked. eps and scale (on phi(q)) have their defaults
// filled in.
struct ChunkCall {
  const MixerInputs& in;
  const MixerOutputs& out;
  const FeatureMap& phi;
  float scale, eps;
  ChunkShape shape;
};

struct ThreadScratch {
  float* block;
  int64_t floats;  // a thread
  float* Of(int thread) const { return block + thread * floats; }
};

// Scratch of one task, forward. Letters as in docs/symbols.md; T marks a transpose. The states are
// those of all the task's key heads; Of(i) is head i's share.
struct ForwardScratch {
  float *raw, *Q, *K, *KT, *V, *O, *A, *den;  // [C,K] [C,F] [C,F] [F,C] [C,V] [C,V] [C,C] [C]
  float *S, *z;                               // [heads,G,F,V] [heads,G,F]
  ForwardScratch(const ChunkShape& s, Pieces& p)
      : raw(p.Take(s.C * s.K)),
        Q(p.Take(s.C * s.F)),
        K(p.Take(s.C * s.F)),
        KT(p.Take(s.F * s.C)),
        V(p.Take(s.C * s.V)),
        O(p.Take(s.C * s.V)),
        A(p.Take(s.C * s.C)),
        den(p.Take(s.C)),
        S(p.Take(s.heads * s.G * s.F * s.V)),
        z(p.Take(s.heads * s.G * s.F)) {}

  ForwardScratch Of(const ChunkShape& s, int64_t i) const {
    ForwardScratch head = *this;
    head.S += i * s.G * s.F * s.V, head.z += i * s.G * s.F;
    return head;
  }
};

// Scratch of one task, backward. L, l are the gradients of the state and of z.
struct BackwardScratch {
  float *raw, *Q, *K, *KT, *V, *VT;  // [C,K] [C,F] [C,F] [F,C] [C,V] [V,C]
  float *O, *dN, *dd, *dd_sum;       // [C,V] [C,V] [C] [C]
  float *A, *dA, *l_sum;             // [C,C] [C,C] [F]
  float *dF, *dFT, *dX, *dV;         // [C,F] [F,C] [C,K] [C,V]: of phi(q) or phi(k), and of q or k
  float *ST, *L, *z, *l;             // [heads,G,V,F] [heads,G,F,V] [heads,G,F] [heads,G,F]
  BackwardScratch(const ChunkShape& s, Pieces& p)
      : raw(p.Take(s.C * s.K)),
        Q(p.Take(s.C * s.F)),
        K(p.Take(s.C * s.F)),
        KT(p.Take(s.F * s.C)),
        V(p.Take(s.C * s.V)),
        VT(p.Take(s.V * s.C)),
        O(p.Take(s.C * s.V)),
        dN(p.Take(s.C * s.V)),
        dd(p.Take(s.C)),
        dd_sum(p.Take(s.C)),
        A(p.Take(s.C * s.C)),
        dA(p.Take(s.C * s.C)),
        l_sum(p.Take(s.F)),
        dF(p.Take(s.C * s.F)),
        dFT(p.Take(s.F * s.C)),
        dX(p.Take(s.C * s.K)),
        dV(p.Take(s.C * s.V)),
        ST(p.Take(s.heads * s.G * s.V * s.F)),
        L(p.Take(s.heads * s.G * s.F * s.V)),
        z(p.Take(s.heads * s.G * s.F)),
        l(p.Take(s.heads * s.G * s.F)) {}

  BackwardScratch Of(const ChunkShape& s, int64_t i) const {
    BackwardScratch head = *this;
    const int64_t state = i * s.G * s.F * s.V, normaliser = i * s.G * s.F;
    head.ST += state, head.L += state, head.z += normaliser, head.l += normaliser;
    return head;
  }
};

// Floats of scratch that one thread needs, forward or backward.
inline int64_t ScratchFloats(const ChunkShape& shape) {
  Pieces forward(nullptr), backward(nullptr);
  ForwardScratch{shape, forward};
  BackwardScratch{shape, backward};
  return std::max(forward.used(), backward.used());
}

// One token of one value head: phi(q), phi(k) [F]; v, o [V]; the head's part of the state block, S
// [F,V] and z [F].
struct StepHead {
  int64_t F, V;
  const float *q, *k, *v;
  float *S, *z, *o;
  float factor;  // scale
};

}  // namespace linattn
