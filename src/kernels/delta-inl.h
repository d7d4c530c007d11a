// The delta rule inside a chunk of n tokens, equations (45), (46) and (48) of docs/mixers.md.
// Included once a SIMD target, inside foreach_target's loop.
#if defined(LINATTN_KERNELS_DELTA_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LINATTN_KERNELS_DELTA_INL_H_
#undef LINATTN_KERNELS_DELTA_INL_H_
#else
#define LINATTN_KERNELS_DELTA_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>

#include "kernels/dense-inl.h"

HWY_BEFORE_NAMESPACE();
namespace linattn {
namespace HWY_NAMESPACE {

// One triangular system: B [n,C] of which what lies below the diagonal is read, beta [n].
struct DeltaTriangle {
  int64_t n, V, C;
  const float *B, *beta;
};

// What each token still finds wrong, and what it writes to correct it:
//     E_i <- E_i - sum_{j < i} B_ij U_j,   U_i = beta_i E_i.
// E, U [n,V]. Substitution in registers: n is small, and forming the inverse would cost more.
inline void SolveWrites(const DeltaTriangle& w, float* E, float* U) {
  const float *B = w.B, *beta = w.beta;
  const int64_t n = w.n, V = w.V, C = w.C;
  ForEachPanel(V, [&](auto vectors, auto load, auto store, int64_t at) HWY_ATTR {
    constexpr int kVectors = vectors;
    for (int64_t i = 0; i < n; ++i) {
      FloatVector e[kVectors];
      for (int v = 0; v < kVectors; ++v) e[v] = load(E + i * V + at + v * kLanes);
      for (int64_t j = 0; j < i; ++j) {
        const FloatVector b = hn::Set(FloatTag(), B[i * C + j]);
        for (int v = 0; v < kVectors; ++v)
          e[v] = hn::NegMulAdd(b, load(U + j * V + at + v * kLanes), e[v]);
      }
      const FloatVector strength = hn::Set(FloatTag(), beta[i]);
      for (int v = 0; v < kVectors; ++v) {
        store(e[v], E + i * V + at + v * kLanes);
        store(hn::Mul(strength, e[v]), U + i * V + at + v * kLanes);
      }
    }
  });
}

// The gradient of SolveWrites, from the last token back. dU becomes the gradient dE of what E was
// before, and d_beta [n] is what the writes ask of beta:
//     x_j = dU_j - sum_{i > j} B_ij dE_i,   dE_j = beta_j x_j,   d_beta_j = x_j . E_j.
// That of B is -dE_i . U_j.
inline void SolveWritesBack(const DeltaTriangle& w, const float* E, float* dU, float* d_beta) {
  const float *B = w.B, *beta = w.beta;
  const int64_t n = w.n, V = w.V, C = w.C;
  std::fill_n(d_beta, n, 0.0f);
  ForEachPanel(V, [&](auto vectors, auto load, auto store, int64_t at) HWY_ATTR {
    constexpr int kVectors = vectors;
    for (int64_t j = n - 1; j >= 0; --j) {
      FloatVector x[kVectors], product = hn::Zero(FloatTag());
      for (int v = 0; v < kVectors; ++v) x[v] = load(dU + j * V + at + v * kLanes);
      for (int64_t i = n - 1; i > j; --i) {
        const FloatVector b = hn::Set(FloatTag(), B[i * C + j]);
        for (int v = 0; v < kVectors; ++v)
          x[v] = hn::NegMulAdd(b, load(dU + i * V + at + v * kLanes), x[v]);
      }
      const FloatVector strength = hn::Set(FloatTag(), beta[j]);
      for (int v = 0; v < kVectors; ++v) {
        product = hn::MulAdd(x[v], load(E + j * V + at + v * kLanes), product);
        store(hn::Mul(strength, x[v]), dU + j * V + at + v * kLanes);
      }
      d_beta[j] += hn::GetLane(hn::SumOfLanes(FloatTag(), product));
    }
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace linattn
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
