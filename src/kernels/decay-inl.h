// Decays inside a chunk of n tokens, equations (41), (42) and (50) to (52) of docs/mixers.md.
// Included once a SIMD target, inside foreach_target's loop.
//
// Token t keeps a_t = exp(g_t) of the state: one factor, or one a channel (D = 1 or F floats a
// token). What is left at token i of token j's write is a_{j+1} ... a_i, taken as a product of
// numbers in [0,1]: it cannot overflow, a gate of -inf is a factor of 0 and not inf - inf, and
// nothing cancels, where exp(G_i - G_j) of running sums G loses what G rounds to (4e-6 at -100).
// Only across a whole chunk the logarithms are summed, all of one sign, before exp: the rounding of
// factors near 1 would else add up over all tokens of a long memory.
#if defined(LINATTN_KERNELS_DECAY_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LINATTN_KERNELS_DECAY_INL_H_
#undef LINATTN_KERNELS_DECAY_INL_H_
#else
#define LINATTN_KERNELS_DECAY_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>

#include "kernels/chunk.h"
#include "kernels/dense-inl.h"
#include "kernels/exp-inl.h"
#include "kernels/mixer.h"

HWY_BEFORE_NAMESPACE();
namespace linattn {
namespace HWY_NAMESPACE {

// The factors of one chunk: of token i itself, a_i; of the state before the chunk at token i, a_1
// ... a_i; of token j's write at the chunk's end, a_{j+1} ... a_n; of the state across the chunk.
struct ChunkDecays {
  int64_t n, D;
  float *a, *enter, *leave, *pass;  // [n,D] [n,D] [n,D] [D]
};

HWY_INLINE void ExpInPlace(int64_t n, float* x) {
  ForEachVector(
      n, [=](auto load, auto store, int64_t i) HWY_ATTR { store(ExpOrNaN(load(x + i)), x + i); });
}

// From g in place of a.
inline void FillDecays(const ChunkDecays& w) {
  const int64_t n = w.n, D = w.D;
  float *a = w.a, *enter = w.enter, *leave = w.leave, *pass = w.pass;
  std::fill_n(pass, D, 0.0f);
  AddRows(a, n, D, pass);
  ExpInPlace(D, pass), ExpInPlace(n * D, a);
  ForEachVector(D, [=](auto load, auto store, int64_t f) HWY_ATTR {
    FloatVector left = load(a + f);
    store(left, enter + f);
    for (int64_t i = D + f; i < n * D; i += D) {
      left = hn::Mul(left, load(a + i));
      store(left, enter + i);
    }
    left = hn::Set(FloatTag(), 1.0f);
    for (int64_t i = (n - 1) * D + f; i >= 0; i -= D) {
      store(left, leave + i);
      left = hn::Mul(left, load(a + i));
    }
  });
}

// M [n,C] with M_ij = a_{j+1} ... a_i for j <= i, else 0; one factor a token.
inline void FillDecayTriangle(int64_t n, const float* a, int64_t C, float* M) {
  for (int64_t i = 0; i < n; ++i, M += C) {
    for (int64_t j = 0; j < i; ++j) M[j] = M[j - C] * a[i];
    M[i] = 1;
    std::fill(M + i + 1, M + n, 0.0f);
  }
}

// y (+)= sign x, token i's row times factor_i; x, y [n,F].
template <Decay decay>
HWY_INLINE void DecayRows(Block x, float sign, const float* factor, float* y, bool add = false) {
  const int64_t F = x.columns;
  for (int64_t i = 0; i < x.rows; ++i) {
    const float* from = x.data + i * x.stride;
    float* to = y + i * F;
    const float* own = decay == Decay::kPerChannel ? factor + i * F : nullptr;
    const float all = decay == Decay::kScalar ? sign * factor[i] : sign;
    ForEachVector(F, [=](auto load, auto store, int64_t f) HWY_ATTR {
      FloatVector by = hn::Set(FloatTag(), all);
      if constexpr (decay == Decay::kPerChannel) by = hn::Mul(by, load(own + f));
      const FloatVector base = add ? load(to + f) : hn::Zero(FloatTag());
      store(hn::MulAdd(by, load(from + f), base), to + f);
    });
  }
}

// to = from, row f times factor_f; [F,V].
template <Decay decay>
HWY_INLINE void DecayState(int64_t F, int64_t V, const float* factor, const float* from,
                           float* to) {
  if (decay == Decay::kNone && from == to) return;
  for (int64_t f = 0; f < F; ++f, from += V, to += V) {
    const FloatVector by = hn::Set(FloatTag(), decay == Decay::kNone     ? 1.0f
                                               : decay == Decay::kScalar ? factor[0]
                                                                         : factor[f]);
    ForEachVector(V, [=](auto load, auto store, int64_t v)
                         HWY_ATTR { store(hn::Mul(by, load(from + v)), to + v); });
  }
}

// The same for the normaliser, [F].
template <Decay decay>
HWY_INLINE void DecayNormaliser(int64_t F, const float* factor, const float* from, float* to) {
  if constexpr (decay == Decay::kPerChannel)
    Multiply(F, factor, from, to);
  else if (decay == Decay::kScalar || from != to)
    ScaleInto(decay == Decay::kScalar ? factor[0] : 1.0f, from, F, to);
}

// One factor a channel: A_ij = sum_f x_if y_jf a_{j+1,f} ... a_if for j <= i, else 0; A [n,C]. The
// row of x goes back in time and fades on its way: two operations a pair, token and vector.
inline void DecayedProduct(Block x, const float* y, const float* a, int64_t C, float* A) {
  const int64_t F = x.columns;
  for (int64_t i = 0; i < x.rows; ++i) std::fill_n(A + i * C, x.rows, 0.0f);
  ForEachPanel(F, [&](auto vectors, auto load, auto, int64_t f) HWY_ATTR {
    constexpr int kVectors = vectors;
    for (int64_t i = 0; i < x.rows; ++i) {
      FloatVector faded[kVectors];
      for (int v = 0; v < kVectors; ++v) faded[v] = load(x.data + i * x.stride + f + v * kLanes);
      for (int64_t j = i; j >= 0; --j) {
        FloatVector sum = hn::Zero(FloatTag());
        for (int v = 0; v < kVectors; ++v) {
          const int64_t at = j * F + f + v * kLanes;
          sum = hn::MulAdd(faded[v], load(y + at), sum);
          faded[v] = hn::Mul(faded[v], load(a + at));
        }
        A[i * C + j] += hn::GetLane(hn::SumOfLanes(FloatTag(), sum));
      }
    }
  });
}

// The gradient of DecayedProduct, from dA [n,C]; all else [n,F].
struct DecayedProductGradient {
  const float *dA, *x, *y, *a;
  float *dx, *dy, *dg;  // added to; dg may be null, dx may be dy
  int64_t n, F, C;
};

// dx_i += sum_j dA_ij y_j a_{j+1} ... a_i, dy_j += sum_i dA_ij x_i a_{j+1} ... a_i, and dg_t gets
// the pairs that g_t lies between, sum over i >= t > j of dA_ij x_i y_j a_{j+1} ... a_i. For each
// i: x_i fades back in time and meets, at each t, what y_j for j < t have come to on their way
// forward.
inline void AddDecayedProductGradient(const DecayedProductGradient& w) {
  const float *dA = w.dA, *x = w.x, *y = w.y, *a = w.a;
  float *dx = w.dx, *dy = w.dy, *dg = w.dg;
  const int64_t n = w.n, F = w.F, C = w.C;
  ForEachPanel(F, [&](auto vectors, auto load, auto store, int64_t f) HWY_ATTR {
    constexpr int kVectors = vectors;
    FloatVector faded[kMaxChunk][kVectors];  // x_i a_{j+1} ... a_i, for each j
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = i; j >= 0; --j) {
        const FloatVector d = hn::Set(FloatTag(), dA[i * C + j]);
        for (int v = 0; v < kVectors; ++v) {
          const int64_t at = j * F + f + v * kLanes;
          faded[j][v] = j == i ? load(x + at) : hn::Mul(faded[j + 1][v], load(a + at + F));
          store(hn::MulAdd(d, faded[j][v], load(dy + at)), dy + at);
        }
      }
      FloatVector sum[kVectors];  // of dA_ij y_j, at token j
      for (int v = 0; v < kVectors; ++v) sum[v] = hn::Zero(FloatTag());
      for (int64_t j = 0; j <= i; ++j) {
        const FloatVector d = hn::Set(FloatTag(), dA[i * C + j]);
        for (int v = 0; v < kVectors; ++v) {
          const int64_t at = j * F + f + v * kLanes;
          if (j > 0) sum[v] = hn::Mul(sum[v], load(a + at));
          if (dg && j > 0) store(hn::MulAdd(faded[j][v], sum[v], load(dg + at)), dg + at);
          sum[v] = hn::MulAdd(d, load(y + at), sum[v]);
        }
      }
      for (int v = 0; v < kVectors; ++v) {
        const int64_t at = i * F + f + v * kLanes;
        store(hn::Add(load(dx + at), sum[v]), dx + at);
      }
    }
  });
}

// out_i += x_i y_i: summed over channels where they share a factor; x, y [n,F], out [n,D].
template <Decay decay>
HWY_INLINE void AddGateTerms(Block x, const float* y, float* out) {
  const int64_t F = x.columns;
  for (int64_t i = 0; i < x.rows; ++i) {
    const float *left = x.data + i * x.stride, *right = y + i * F;
    if constexpr (decay == Decay::kScalar) {
      out[i] += Dot(left, right, F);
    } else {
      float* to = out + i * F;
      ForEachVector(F, [=](auto load, auto store, int64_t f) HWY_ATTR {
        store(hn::MulAdd(load(left + f), load(right + f), load(to + f)), to + f);
      });
    }
  }
}

// dg_t += sum over i >= t > j of P_ij, for a lower triangle P [n,C], one factor a token.
inline void AddCrossings(int64_t n, int64_t C, const float* P, float* dg) {
  float below[kMaxChunk] = {};  // of token j: sum over i >= t of P_ij
  for (int64_t t = n - 1; t > 0; --t) {
    AddScaled(1, P + t * C, t, below);
    dg[t] += SumOf(t, [=](auto load, int64_t j) HWY_ATTR { return load(below + j); });
  }
}

// dg_t += d_pass + sum_{i >= t} d_enter_i + sum_{j < t} d_leave_j, all [n,D] and d_pass [D]: a gate
// lies between the chunk's start and each later token, between each earlier token and the chunk's
// end, and between the two ends.
inline void AddGatesOfEnds(int64_t n, int64_t D, const float* d_enter, const float* d_leave,
                           const float* d_pass, float* dg) {
  ForEachVector(D, [=](auto load, auto store, int64_t f) HWY_ATTR {
    FloatVector sum = load(d_pass + f);
    for (int64_t i = (n - 1) * D + f; i >= 0; i -= D) {
      sum = hn::Add(sum, load(d_enter + i));
      store(hn::Add(load(dg + i), sum), dg + i);
    }
    sum = hn::Zero(FloatTag());
    for (int64_t i = D + f; i < n * D; i += D) {
      sum = hn::Add(sum, load(d_leave + i - D));
      store(hn::Add(load(dg + i), sum), dg + i);
    }
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace linattn
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
