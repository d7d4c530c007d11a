#pragma once

#include <cstdint>
#include <vector>

#include "kernels/cache_mixer.h"
#include "kernels/feature_map.h"
#include "kernels/lsh_lists.h"

// One key head of one sequence in `lsh`, with the query heads that read it: what a thread works on.
namespace linattn {

// One key head of one sequence.
struct LshUnit {
  const TokenList* tokens;
  int64_t h;
};
std::vector<LshUnit> LshUnits(const Sequences& sequences, int64_t HV);

// x / |x|, what keys are replaced by.
const FeatureMap& KeyDirections();

// Its T tokens in order, dense and in float32, because each of them is read in every round: for its
// `heads` query heads q, o, norm (d_o, d_q), for its key head k, unit = k / |k|, v (d_unit, d_v).
struct LshHead {
  LshHead(int64_t T, int64_t heads, int64_t K, int64_t V, bool backward, float* scratch);
  // A null scratch only counts.
  static int64_t Floats(const MixerDims& dims, bool backward);

  // Inputs of a unit; returns `in` with q, unit and v in their places.
  MixerInputs Load(MixerInputs in, const LshUnit& unit) const;

  // All rounds forward, of queries q over the keys and values of head kv_head of `in`: o and norm.
  void Attend(const MixerInputs& in, int64_t kv_head, LshLists& lists) const;
  // d_q, d_unit and d_v of what Load returned, from o, norm and d_o.
  void AttendBack(const MixerInputs& in, LshLists& lists) const;

  Array q, k, unit, v, o, norm, d_o, d_q, d_unit, d_v;
  float* work;
  int64_t floats;
};

// The unit's heads of an array [B,T,*,C] or [B,T,*] into x, all heads of which are the unit's, or
// back.
void LoadHeads(const Array& from, const LshUnit& unit, const Array& x);
void StoreHeads(const Array& x, const LshUnit& unit, const Array& to);

}  // namespace linattn
