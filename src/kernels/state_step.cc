#include "kernels/state_step.h"

#include "base/error.h"
#include "kernels/normaliser.h"
#include "kernels/state_mixer.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/state_step.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/chunk-inl.h"
#include "kernels/exp-inl.h"

#ifndef LINATTN_KERNELS_STATE_STEP_HEAD_
#define LINATTN_KERNELS_STATE_STEP_HEAD_
namespace linattn {

// One token of one value head: Q, K [F] are phi(q), phi(k), without the scale; v, o [V]; S [F,V]
// and z [F] the head's part of the state block.
struct StepHead {
  int64_t F, V;
  const float *Q, *K, *v;
  const float* g;  // [1] or [F] log decay; null: none
  float* a;        // [F] room for exp(g)
  float beta;
  float *S, *z, *o;
  float scale, eps;
  bool normalise;
};

}  // namespace linattn
#endif

HWY_BEFORE_NAMESPACE();
namespace linattn {
namespace HWY_NAMESPACE {

// Which policies a step has; kDecay of the state, kWrite onto it.
template <Decay decay, Write write>
struct StepPolicy {
  static constexpr Decay kDecay = decay;
  static constexpr Write kWrite = write;
};

// What row f of S keeps.
template <class P>
HWY_INLINE FloatVector Fade(const StepHead& step, int64_t f, FloatVector row) {
  if constexpr (P::kDecay == Decay::kNone) return row;
  return hn::Mul(row, hn::Set(FloatTag(), step.a[P::kDecay == Decay::kScalar ? 0 : f]));
}

// kVectors columns of S [F,V]: D = diag(a) S, S = D + K w^T, o = factor S^T Q, for w = v (add). In
// one pass. The last vector may be partial.
template <class P, int kVectors, class Load, class Store>
HWY_INLINE void AddAndRead(const StepHead& step, float factor, int64_t column, Load load,
                           Store store) {
  const FloatTag d;
  FloatVector v[kVectors], sum[kVectors];
#pragma GCC unroll 4
  for (int j = 0; j < kVectors; ++j) {
    v[j] = load(step.v + column + j * kLanes);
    sum[j] = hn::Zero(d);
  }
  float* HWY_RESTRICT S = step.S + column;
  for (int64_t f = 0; f < step.F; ++f, S += step.V) {
    const FloatVector k = hn::Set(d, step.K[f]), q = hn::Set(d, step.Q[f]);
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) {
      const FloatVector s = hn::MulAdd(k, v[j], Fade<P>(step, f, load(S + j * kLanes)));
      store(s, S + j * kLanes);
      sum[j] = hn::MulAdd(q, s, sum[j]);
    }
  }
#pragma GCC unroll 4
  for (int j = 0; j < kVectors; ++j)
    store(hn::Mul(sum[j], hn::Set(d, factor)), step.o + column + j * kLanes);
}

// The same for the delta rule, w = beta (v - D^T K). w must be known before the first row is
// written, so S is read twice; but S^T Q = D^T Q + (Q . K) w needs no third time, and the columns
// stay in the first-level cache between the two.
template <class P, int kVectors, class Load, class Store>
HWY_INLINE void CorrectAndRead(const StepHead& step, float factor, float qk, int64_t column,
                               Load load, Store store) {
  const FloatTag d;
  FloatVector w[kVectors], sum[kVectors];
#pragma GCC unroll 4
  for (int j = 0; j < kVectors; ++j) w[j] = sum[j] = hn::Zero(d);
  float* HWY_RESTRICT S = step.S + column;
  for (int64_t f = 0; f < step.F; ++f, S += step.V) {
    const FloatVector k = hn::Set(d, step.K[f]), q = hn::Set(d, step.Q[f]);
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) {
      const FloatVector s = Fade<P>(step, f, load(S + j * kLanes));
      w[j] = hn::MulAdd(k, s, w[j]);
      sum[j] = hn::MulAdd(q, s, sum[j]);
    }
  }
#pragma GCC unroll 4
  for (int j = 0; j < kVectors; ++j) {
    const FloatVector v = load(step.v + column + j * kLanes);
    w[j] = hn::Mul(hn::Set(d, step.beta), hn::Sub(v, w[j]));
    const FloatVector read = hn::MulAdd(hn::Set(d, qk), w[j], sum[j]);
    store(hn::Mul(read, hn::Set(d, factor)), step.o + column + j * kLanes);
  }
  S = step.S + column;
  for (int64_t f = 0; f < step.F; ++f, S += step.V) {
    const FloatVector k = hn::Set(d, step.K[f]);
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j)
      store(hn::MulAdd(k, w[j], Fade<P>(step, f, load(S + j * kLanes))), S + j * kLanes);
  }
}

template <class P>
void StepColumns(const StepHead& step, float factor) {
  const float qk = P::kWrite == Write::kDelta ? Dot(step.Q, step.K, step.F) : 0;
  const auto columns = [&](auto vectors, int64_t i, auto load, auto store) HWY_ATTR {
    if constexpr (P::kWrite == Write::kAdd)
      AddAndRead<P, vectors()>(step, factor, i, load, store);
    else
      CorrectAndRead<P, vectors()>(step, factor, qk, i, load, store);
  };
  const auto load = [](const float* p) HWY_ATTR { return hn::LoadU(FloatTag(), p); };
  const auto store = [](FloatVector v, float* p) HWY_ATTR { hn::StoreU(v, FloatTag(), p); };
  using std::integral_constant;
  int64_t i = 0;
  for (; i + 4 * kLanes <= step.V; i += 4 * kLanes)
    columns(integral_constant<int, 4>(), i, load, store);
  for (; i + 2 * kLanes <= step.V; i += 2 * kLanes)
    columns(integral_constant<int, 2>(), i, load, store);
  for (; i + kLanes <= step.V; i += kLanes) columns(integral_constant<int, 1>(), i, load, store);
  if (const int64_t tail = step.V - i; tail > 0)
    columns(
        integral_constant<int, 1>(), i,
        [tail](const float* p) HWY_ATTR { return LoadPartial(p, tail); },
        [tail](FloatVector v, float* p) HWY_ATTR { StorePartial(v, p, tail); });
}

// z = a z + K.
template <class P>
HWY_INLINE void StepNormaliser(const StepHead& step) {
  ForEachVector(step.F, [&](auto load, auto store, int64_t i) HWY_ATTR {
    FloatVector z = load(step.z + i);
    if constexpr (P::kDecay == Decay::kScalar) z = hn::Mul(z, hn::Set(FloatTag(), step.a[0]));
    if constexpr (P::kDecay == Decay::kPerChannel) z = hn::Mul(z, load(step.a + i));
    store(hn::Add(z, load(step.K + i)), step.z + i);
  });
}

template <class P>
void StepWith(const StepHead& step) {
  if constexpr (P::kDecay != Decay::kNone)
    ForEachVector(P::kDecay == Decay::kScalar ? 1 : step.F,
                  [&](auto load, auto store, int64_t i)
                      HWY_ATTR { store(ExpOrNaN(load(step.g + i)), step.a + i); });
  float factor = step.scale;
  if (step.normalise) {
    StepNormaliser<P>(step);
    factor *= InverseNormaliser(step.scale * Dot(step.Q, step.z, step.F) + step.eps);
  }
  StepColumns<P>(step, factor);
}

template <Decay decay>
void StepWithDecay(Write write, const StepHead& step) {
  if (write == Write::kAdd)
    StepWith<StepPolicy<decay, Write::kAdd>>(step);
  else
    StepWith<StepPolicy<decay, Write::kDelta>>(step);
}

void StepValueHead(Decay decay, Write write, const StepHead& step) {
  switch (decay) {
    case Decay::kNone:
      return StepWithDecay<Decay::kNone>(write, step);
    case Decay::kScalar:
      return StepWithDecay<Decay::kScalar>(write, step);
    case Decay::kPerChannel:
      return StepWithDecay<Decay::kPerChannel>(write, step);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace linattn
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace linattn {
namespace {

HWY_EXPORT(StepValueHead);

// One token of key head h of sequence i, for all its value heads.
void StepKeyHead(const Mixer& mixer, const StepInputs& in, int64_t i, int64_t h) {
  alignas(64) float Q[kStepFeatures], K[kStepFeatures], a[kStepFeatures];
  const FeatureMap &phi = QueryMap(mixer, in.options), &key_phi = KeyMap(mixer, in.options);
  const int64_t channels = in.q.shape[2], F = phi.Features(channels);
  const int64_t HV = in.v.shape[1], V = in.v.shape[2], group = HV / in.q.shape[1];
  phi.Forward(in.q.At<float>(i, h), 1, channels, Q);
  key_phi.Forward(in.k.At<float>(i, h), 1, channels, K);
  for (int64_t j = h * group; j < (h + 1) * group; ++j) {
    const StepHead step{.F = F,
                        .V = V,
                        .Q = Q,
                        .K = K,
                        .v = in.v.At<float>(i, j),
                        .g = in.g.present() ? in.g.At<float>(i, j) : nullptr,
                        .a = a,
                        .beta = in.beta.present() ? *in.beta.At<float>(i, j) : 1.0f,
                        .S = in.state[i] + j * F * V,
                        .z = in.state[i] + HV * F * V + j * F,
                        .o = in.o.At<float>(i, j),
                        .scale = static_cast<float>(ScaleOf(mixer, in.options, channels)),
                        .eps = static_cast<float>(in.options.eps),
                        .normalise = mixer.normalised && in.options.normalise};
    HWY_DYNAMIC_DISPATCH(StepValueHead)(mixer.decay, mixer.write, step);
  }
}

}  // namespace

void StateStep(const Mixer& mixer, const StepInputs& in) {
  CheckStep(mixer, in);
  const int64_t n = in.q.shape[0], H = in.q.shape[1];
  const int64_t F = QueryMap(mixer, in.options).Features(in.q.shape[2]);
  Check(F <= kStepFeatures, mixer.name, "step must have at most {} features, but has {}",
        kStepFeatures, F);
  // Below this many floats of state, waking the threads costs more than they save.
  constexpr int64_t kParallelFloats = 1 << 16;
#pragma omp parallel for collapse(2) if (n * in.v.shape[1] * in.v.shape[2] * F > kParallelFloats)
  for (int64_t i = 0; i < n; ++i)
    for (int64_t h = 0; h < H; ++h) StepKeyHead(mixer, in, i, h);
}

}  // namespace linattn
#endif  // HWY_ONCE
