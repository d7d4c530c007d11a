#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/mixer.h"
#include "kernels/scratch.h"

// The chunkwise forward and backward of the state mixers, one algorithm over the policies decay,
// write and normaliser (docs/mixers.md derives it). Here: sizes, scratch and entry points; what
// does not depend on the SIMD target.
namespace linattn {

// No chunk is longer.
constexpr int64_t kMaxChunk = 64;

// C tokens a chunk, G value heads a key head, `heads` key heads a task, D floats of a token's decay
// (0, 1 or F); the rest as in MixerDims. Where decays or the delta rule need the state before each
// chunk, backward keeps it before `segments` chunks, `kept` chunks apart, and before each chunk of
// one such segment at a time: about 2 sqrt(T/C) states; both are 0 where it needs none.
struct ChunkShape {
  int64_t C = 0, K = 0, F = 0, V = 0, G = 0, heads = 0, D = 0;
  bool delta = false, normalised = false;  // as this call has them
  int64_t kept = 0, segments = 0;
  // Tokens of a part, where sequences are cut into parts so that all threads have work
  // (chunk_parts.h); 0: they are not.
  int64_t part = 0;
  int64_t memories() const { return heads * G * F * V; }         // floats of a task's S
  int64_t states() const { return memories() + heads * G * F; }  // of its S and z
};
ChunkShape ShapeOfChunks(const Mixer& mixer, const MixerDims& dims, int threads);

// One call of a mixer's fast functions, checked. eps and scale (on phi(q)) have their defaults
// filled in.
struct ChunkCall {
  const Mixer& mixer;
  const MixerInputs& in;
  const MixerOutputs& out;
  const FeatureMap &phi, &key_phi;  // of q, of k
  float scale, eps;
  ChunkShape shape;
};

// Whether phi is the registered identity, whose rows need no copy of their own.
bool IsIdentity(const FeatureMap& phi);

struct ThreadScratch {
  float* block;
  int64_t floats;           // a thread
  float* shared = nullptr;  // behind them: states between the parts of sequences
  float* Of(int thread) const { return block + thread * floats; }
};

// o, norm, ST, zT of the tokens that `sequences` lists; not those of masked tokens, nor zT where
// the call does not normalise. Not causal only without decay and delta rule.
void ChunkForward(const ChunkCall& call, const Sequences& sequences, ThreadScratch scratch);
// The gradients that `grad` asks for, of the same tokens. Reads o and norm of a normalised call.
void ChunkBackward(const ChunkCall& call, const Sequences& sequences, const MixerGradients& grad,
                   ThreadScratch scratch);
// The same without parts: a task is some heads of a whole sequence.
void ForwardWhole(const ChunkCall& call, const Sequences& sequences, ThreadScratch scratch);
void BackwardWhole(const ChunkCall& call, const Sequences& sequences, const MixerGradients& grad,
                   ThreadScratch scratch);
// Floats of scratch that one thread needs, forward or backward.
int64_t ScratchFloats(const ChunkShape& shape);

// Scratch of one task, forward. Letters as in docs/symbols.md; T marks a transpose. The states are
// those of all the task's key heads; Of(i) is head i's share. D* are of one value head and carry
// its decays; without decay they are not there.
struct ForwardScratch {
  float *raw, *Q, *K, *KT, *V, *O, *den;  // [C,K] [C,F] [C,F] [F,C] [C,V] [C,V] [C]
  float *A, *B;                           // [C,C] tril(Q K^T), [C,C] tril(K K^T)
  float *a, *enter, *leave, *pass, *M;    // [C,D] [C,D] [C,D] [D] [C,C]: see decay-inl.h
  float *DQ, *DK, *DA, *DB;               // [C,F] [C,F] [C,C] [C,C]
  float *NK, *beta, *E, *U;               // [C,F] [C] [C,V] [C,V]: see delta-inl.h
  float *S, *z;                           // [heads,G,F,V] [heads,G,F], side by side
  float *next_S, *next_z;  // after the chunk; S and z themselves, except where states are kept
  ForwardScratch(const ChunkShape& s, Pieces& p);

  ForwardScratch Of(const ChunkShape& s, int64_t i) const {
    ForwardScratch head = *this;
    const int64_t memory = i * s.G * s.F * s.V, normaliser = i * s.G * s.F;
    head.S += memory, head.next_S += memory;
    head.z += normaliser, head.next_z += normaliser;
    return head;
  }
  // Before a chunk the state is `from`, and after it `to`; both hold states() floats, or are null.
  void SetStates(const ChunkShape& s, float* from, float* to) {
    S = from, z = Behind(from, s.memories());
    next_S = to, next_z = Behind(to, s.memories());
  }
};

// Scratch of one task, backward, around what it recomputes of the forward. L, l are the gradients
// of the state and of z. ST only where no states are kept, what follows only where they are.
struct BackwardScratch : ForwardScratch {
  float *VT, *dN, *dd, *dd_sum;  // [V,C] [C,V] [C] [C]
  float *dA, *dB, *l_sum;        // [C,C] [C,C] [F]
  float *dF, *dFT, *dX, *dV;     // [C,F] [F,2C] [C,K] [C,V]: of phi(q) or phi(k), and of q or k
  float *ST, *L, *l;             // [heads,G,V,F] [heads,G,F,V] [heads,G,F]

  float *dNT, *dK, *dD, *dP, *P;           // [V,2C] [C,F] [C,F] [C,C] [C,C]
  float *d_enter, *d_leave, *d_pass, *dg;  // [C,D] [C,D] [D] [C,D]
  float* d_beta;                           // [C]
  float *segment, *chunk;                  // [segments] and [kept] times states()
  BackwardScratch(const ChunkShape& s, Pieces& p);

  BackwardScratch Of(const ChunkShape& s, int64_t i) const {
    BackwardScratch head = *this;
    static_cast<ForwardScratch&>(head) = ForwardScratch::Of(s, i);
    const int64_t memory = i * s.G * s.F * s.V;
    head.ST += memory, head.L += memory, head.l += i * s.G * s.F;
    return head;
  }
};

}  // namespace linattn
