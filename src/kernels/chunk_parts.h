#pragma once

#include <cstdint>
#include <vector>

#include "kernels/chunk.h"

// Sequences cut into parts that are worked on at the same time, for calls with fewer heads than
// threads: equations (54) to (57) of docs/mixers.md.
namespace linattn {

// Every sequence of a call in parts of `shape.part` tokens, the last one shorter.
struct Parts {
  Sequences sequences;         // of the parts, in order
  std::vector<int64_t> first;  // [N+1] a sequence's first part
  int64_t count() const { return first.back(); }
};
Parts CutIntoParts(const Sequences& whole, int64_t part);

// States of P parts and HV value heads: before each part, at its end, and the gradient of the one
// at its end. What a part makes of the state before it: decay, and for the delta rule the matrix.
struct PartStates {
  int64_t P, HV, F, V, D;
  float *S, *z, *end_S, *end_z, *L, *l;  // [P,HV,F,V] and [P,HV,F]
  float *decay, *matrix;                 // [P,HV,D] and [P,HV,F,F], or null
  float *zeros, *identity;               // [F] and [F,F], or null
  // A null block only counts.
  PartStates(const ChunkShape& shape, int64_t parts, int64_t heads, float* block);
  int64_t floats;

  Array States(float* states) const { return MakeArray(states, {P, HV, F, V}); }
  Array Normalisers(float* z) const { return MakeArray(z, {P, HV, F}); }
};

// Parts of all sequences together, at most.
int64_t MostParts(const ChunkShape& shape, const MixerDims& dims);

// out.ST and out.zT of each part, from in.S0 and in.z0, and the products of decays.
void SumParts(const ChunkCall& call, const Sequences& parts, float* decay, ThreadScratch scratch);
// grad.d_S0 and grad.d_z0 of each part, from grad.d_ST and grad.d_zT; nothing else.
void SumPartGradients(const ChunkCall& call, const Sequences& parts, const MixerGradients& grad,
                      ThreadScratch scratch);
// The states before all parts of a sequence but the first, from the first's and what SumParts left
// at the ends; back: the gradients after all parts but the last, likewise.
void ScanParts(const Parts& parts, const PartStates& states, bool back);

}  // namespace linattn
