#pragma once

#include <cstdint>

#include "kernels/mixer.h"

// The hash of `lsh`: the direction of a key, turned at random, falls next to one of 2h unit vectors
// (Andoni et al. 2015, "Practical and optimal LSH for angular distance"). It must be the same in
// the float64 reference, in every SIMD target and on every machine, or outputs would differ by
// whole tokens. So it reads the key as float32, entries of the rotations are multiples of 2^-12
// (products are then exact in float64, with or without FMA), and sums run over the channels in
// order.
namespace linattn {

constexpr int64_t kMaxRounds = 64;

// Throws unless there are 1 to kMaxRounds rounds, an even number of buckets, chunks, and no window.
void CheckLshOptions(const MixerOptions& options);

// Rotations [rounds,K,buckets/2] of normal entries, by options.lsh.seed; round r's depend on r, K
// and the number of buckets only.
int64_t RotationFloats(const MixerOptions& options, int64_t K);
void FillRotations(const MixerOptions& options, int64_t K, float* rotations);

// bucket[i] = argmax of [x R, -x R], the first of equals, for rows x [rows,K] and the rotation R
// [K,buckets/2] of one round.
void HashRows(const float* x, int64_t rows, int64_t K, const float* rotation, int64_t buckets,
              int32_t* bucket);

}  // namespace linattn
