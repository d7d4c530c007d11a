#include "kernels/chunk.h"

#include <cmath>

namespace linattn {

namespace {

// Tokens of a part, or 0. A pass over all parts but one that finds the states between them is half
// of a forward's work (add), or as much again and more (the delta rule, which also carries an F x F
// matrix along): it pays from two, or four, threads a head on. Of at least 256 tokens, so that a
// part's work outweighs its states; at most 64 parts. The threads decide whether, the shape alone
// decides where to cut: every number of threads that cuts gets the same results.
int64_t TokensOfPart(const Mixer& mixer, const MixerDims& d, int threads, int64_t C) {
  constexpr int64_t kLeast = 256, kMostParts = 64;
  const int64_t pays = mixer.write == Write::kDelta ? 4 : 2;
  if (threads < pays * d.N * d.H || d.T < 2 * kLeast) return 0;
  return std::max(kLeast, (d.T + kMostParts * C - 1) / (kMostParts * C) * C);
}

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

int64_t CeilDivide(int64_t n, int64_t by) { return (n + by - 1) / by; }

}  // namespace

bool IsIdentity(const FeatureMap& phi) {
  static const FeatureMap* const identity = &FeatureMapByName("identity");
  return &phi == identity;
}

ChunkShape ShapeOfChunks(const Mixer& mixer, const MixerDims& d, int threads) {
  ChunkShape s{.C = 16, .K = d.K, .F = d.F, .V = d.V, .G = d.HV / d.H};
  s.part = TokensOfPart(mixer, d, threads, s.C);
  s.heads = s.part > 0 ? 1 : HeadsPerTask(d, threads);
  s.D = mixer.decay == Decay::kNone ? 0 : mixer.decay == Decay::kScalar ? 1 : d.F;
  s.delta = mixer.write == Write::kDelta;
  s.normalised = mixer.normalised;
  if (s.D > 0 || s.delta) {
    const int64_t chunks = std::max<int64_t>(1, CeilDivide(s.part > 0 ? s.part : d.T, s.C));
    s.kept = static_cast<int64_t>(std::ceil(std::sqrt(static_cast<double>(chunks))));
    s.segments = CeilDivide(chunks, s.kept);
  }
  return s;
}

ForwardScratch::ForwardScratch(const ChunkShape& s, Pieces& p) {
  const int64_t decay = s.D > 0, delta = s.delta;  // 0: no floats of these
  raw = p.Take(s.C * s.K);
  Q = p.Take(s.C * s.F), K = p.Take(s.C * s.F), KT = p.Take(s.F * s.C);
  V = p.Take(s.C * s.V), O = p.Take(s.C * s.V), den = p.Take(s.C);
  A = p.Take(s.C * s.C), B = p.Take(delta * s.C * s.C);
  a = p.Take(s.C * s.D), enter = p.Take(s.C * s.D), leave = p.Take(s.C * s.D);
  pass = p.Take(s.D), M = p.Take(decay * s.C * s.C);
  DQ = p.Take(decay * s.C * s.F), DK = p.Take(decay * s.C * s.F);
  DA = p.Take(decay * s.C * s.C), DB = p.Take(decay * delta * s.C * s.C);
  NK = p.Take(delta * s.C * s.F), beta = p.Take(delta * s.C);
  E = p.Take(delta * s.C * s.V), U = p.Take(delta * s.C * s.V);
  float* state = p.Take(s.states());
  SetStates(s, state, state);
}

BackwardScratch::BackwardScratch(const ChunkShape& s, Pieces& p) : ForwardScratch(s, p) {
  const int64_t keeps = s.kept > 0, delta = s.delta;
  VT = p.Take(s.V * s.C), dN = p.Take(s.C * s.V), dd = p.Take(s.C), dd_sum = p.Take(s.C);
  dA = p.Take(s.C * s.C), dB = p.Take(delta * s.C * s.C), l_sum = p.Take(s.F);
  dF = p.Take(s.C * s.F), dFT = p.Take(s.F * 2 * s.C);
  dX = p.Take(s.C * s.K), dV = p.Take(s.C * s.V);
  ST = p.Take((1 - keeps) * s.memories());
  L = p.Take(s.states()), l = Behind(L, s.memories());
  dNT = p.Take(keeps * s.V * 2 * s.C), dK = p.Take(keeps * s.C * s.F);
  dD = p.Take(keeps * s.C * s.F), dP = p.Take(keeps * s.C * s.C), P = p.Take(keeps * s.C * s.C);
  d_enter = p.Take(s.C * s.D), d_leave = p.Take(s.C * s.D), d_pass = p.Take(s.D);
  dg = p.Take(s.C * s.D), d_beta = p.Take(delta * s.C);
  segment = p.Take(s.segments * s.states()), chunk = p.Take(s.kept * s.states());
}

int64_t ScratchFloats(const ChunkShape& given) {
  ChunkShape shape = given;
  if (shape.part > 0 && shape.delta) shape.V = std::max(shape.V, shape.F);  // transitions, too
  Pieces forward(nullptr), backward(nullptr);
  ForwardScratch{shape, forward};
  BackwardScratch{shape, backward};
  return std::max(forward.used(), backward.used());
}

}  // namespace linattn
