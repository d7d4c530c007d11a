#include "kernels/state_step.h"

#include <algorithm>
#include <cmath>

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
  bool backwards;      // rows from the last to the first
  const float* ahead;  // [F,V] state that comes soon: fetched beside this one
};

// A run of value heads of one sequence, from `first` on: that one, how far apart they are, and how
// many of them share a key head.
struct StepRun {
  StepHead head;
  const float* beta;  // of the first; null: 1
  int64_t first, heads, group;
  int64_t v_stride, g_stride, beta_stride, o_stride;
  const float* next;  // states that come after these; null: none
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

// run(f) for the rows of S, in the step's direction.
template <class Run>
HWY_INLINE void ForEachRow(const StepHead& step, const Run& run) {
  const int64_t by = step.backwards ? -1 : 1;
  for (int64_t n = step.F, f = step.backwards ? n - 1 : 0; n > 0; --n, f += by) run(f);
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
  ForEachRow(step, [&](int64_t f) HWY_ATTR {
    float* HWY_RESTRICT S = step.S + f * step.V + column;
    const FloatVector k = hn::Set(d, step.K[f]), q = hn::Set(d, step.Q[f]);
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) {
      const FloatVector s = hn::MulAdd(k, v[j], Fade<P>(step, f, load(S + j * kLanes)));
      __builtin_prefetch(step.ahead + f * step.V + column + j * kLanes, 1, 2);
      store(s, S + j * kLanes);
      sum[j] = hn::MulAdd(q, s, sum[j]);
    }
  });
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
  ForEachRow(step, [&](int64_t f) HWY_ATTR {
    const float* HWY_RESTRICT S = step.S + f * step.V + column;
    const FloatVector k = hn::Set(d, step.K[f]), q = hn::Set(d, step.Q[f]);
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) {
      const FloatVector s = Fade<P>(step, f, load(S + j * kLanes));
      __builtin_prefetch(step.ahead + f * step.V + column + j * kLanes, 1, 2);
      w[j] = hn::MulAdd(k, s, w[j]);
      sum[j] = hn::MulAdd(q, s, sum[j]);
    }
  });
#pragma GCC unroll 4
  for (int j = 0; j < kVectors; ++j) {
    const FloatVector v = load(step.v + column + j * kLanes);
    w[j] = hn::Mul(hn::Set(d, step.beta), hn::Sub(v, w[j]));
    const FloatVector read = hn::MulAdd(hn::Set(d, qk), w[j], sum[j]);
    store(hn::Mul(read, hn::Set(d, factor)), step.o + column + j * kLanes);
  }
  ForEachRow(step, [&](int64_t f) HWY_ATTR {
    float* HWY_RESTRICT S = step.S + f * step.V + column;
    const FloatVector k = hn::Set(d, step.K[f]);
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j)
      store(hn::MulAdd(k, w[j], Fade<P>(step, f, load(S + j * kLanes))), S + j * kLanes);
  });
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

// z = a z + K; returns Q . z.
template <class P>
HWY_INLINE float StepNormaliser(const StepHead& step) {
  FloatVector sum = hn::Zero(FloatTag());
  ForEachVector(step.F, [&](auto load, auto store, int64_t i) HWY_ATTR {
    FloatVector z = load(step.z + i);
    if constexpr (P::kDecay == Decay::kScalar) z = hn::Mul(z, hn::Set(FloatTag(), step.a[0]));
    if constexpr (P::kDecay == Decay::kPerChannel) z = hn::Mul(z, load(step.a + i));
    z = hn::Add(z, load(step.K + i));
    store(z, step.z + i);
    sum = hn::MulAdd(load(step.Q + i), z, sum);
  });
  return hn::GetLane(hn::SumOfLanes(FloatTag(), sum));
}

template <class P>
HWY_INLINE void StepOne(const StepHead& step) {
  if constexpr (P::kDecay == Decay::kScalar) step.a[0] = std::exp(step.g[0]);
  if constexpr (P::kDecay == Decay::kPerChannel)
    ForEachVector(step.F, [&](auto load, auto store, int64_t i)
                              HWY_ATTR { store(ExpOrNaN(load(step.g + i)), step.a + i); });
  float factor = step.scale;
  if (step.normalise) factor *= InverseNormaliser(step.scale * StepNormaliser<P>(step) + step.eps);
  StepColumns<P>(step, factor);
}

// Small heads that come after so many floats of state are fetched beside the one under way (64
// sequences of 16 layers, 32 x 32, states from memory: a step 13-18% faster). Those of 64 x 64
// prefetchers follow by themselves.
constexpr int64_t kAheadFloats = 2048;

// Every other head runs through its rows backwards: prefetchers that run on would else leave a
// thread's heads, at whose end that of the next begins, and take away lines which another core
// writes (batch 1, two threads: 40 us a token instead of 10). Always, so that sums are the same.
template <class P>
void StepWith(const StepRun& run) {
  StepHead step = run.head;
  const int64_t floats = step.F * step.V, heads = kAheadFloats / floats;
  for (int64_t j = 0; j < run.heads; ++j) {
    step.ahead = step.S;
    if (j + heads < run.heads)
      step.ahead += heads * floats;
    else if (run.next)
      step.ahead = run.next + std::max<int64_t>(0, j + heads - run.heads) * floats;
    if (run.beta) step.beta = run.beta[j * run.beta_stride];
    step.backwards = (run.first + j) % 2 == 1;
    StepOne<P>(step);
    step.v += run.v_stride, step.g += run.g_stride, step.o += run.o_stride;
    step.S += floats, step.z += step.F;
    if ((j + 1) % run.group == 0) step.Q += step.F, step.K += step.F;
  }
}

template <Decay decay>
void StepWithDecay(Write write, const StepRun& run) {
  if (write == Write::kAdd)
    StepWith<StepPolicy<decay, Write::kAdd>>(run);
  else
    StepWith<StepPolicy<decay, Write::kDelta>>(run);
}

void StepValueHeads(Decay decay, Write write, const StepRun& run) {
  switch (decay) {
    case Decay::kNone:
      return StepWithDecay<Decay::kNone>(write, run);
    case Decay::kScalar:
      return StepWithDecay<Decay::kScalar>(write, run);
    case Decay::kPerChannel:
      return StepWithDecay<Decay::kPerChannel>(write, run);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace linattn
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace linattn {
namespace {

HWY_EXPORT(StepValueHeads);

// phi of the heads [h, h + count) of sequence i of x [n,H,K] -> y [count,F].
void MapHeads(const FeatureMap& phi, const Array& x, int64_t i, int64_t h, int64_t count, int64_t F,
              float* y) {
  const int64_t K = x.shape[2];
  if (x.stride[1] == K) return phi.Forward(x.At<float>(i, h), count, K, y);
  for (int64_t j = 0; j < count; ++j) phi.Forward(x.At<float>(i, h + j), 1, K, y + j * F);
}

// What is the same for all heads and sequences of a step.
struct StepCall {
  StepCall(const Mixer& mixer, const StepInputs& in)
      : mixer(mixer), in(in), phi(QueryMap(mixer, in.options)), key_phi(KeyMap(mixer, in.options)) {
    F = phi.Features(in.q.shape[2]);
    scale = static_cast<float>(ScaleOf(mixer, in.options, in.q.shape[2]));
  }
  StepRun RunFor(int64_t i, int64_t j) const;
  const float* StateAfter(int64_t i, int64_t h) const;
  void Heads(int64_t i, int64_t begin, int64_t end) const;

  const Mixer& mixer;
  const StepInputs& in;
  const FeatureMap &phi, &key_phi;
  int64_t F;
  float scale;
};

// Of the value heads of sequence i from j on; Q, K, a and the number of heads are left open.
StepRun StepCall::RunFor(int64_t i, int64_t j) const {
  const int64_t HV = in.v.shape[1], V = in.v.shape[2];
  StepRun run{};
  run.head.F = F, run.head.V = V, run.head.beta = 1;
  run.head.v = in.v.At<float>(i, j), run.head.o = in.o.At<float>(i, j);
  run.v_stride = in.v.stride[1], run.o_stride = in.o.stride[1];
  if (in.g.present()) run.head.g = in.g.At<float>(i, j), run.g_stride = in.g.stride[1];
  if (in.beta.present()) run.beta = in.beta.At<float>(i, j), run.beta_stride = in.beta.stride[1];
  run.head.S = in.state[i] + j * F * V;
  run.head.z = in.state[i] + HV * F * V + j * F;
  run.head.scale = scale, run.head.eps = static_cast<float>(in.options.eps);
  run.head.normalise = mixer.normalised && in.options.normalise;
  run.first = j, run.group = HV / in.q.shape[1];
  return run;
}

// What a thread comes to when sequence i is done up to key head h; null: nothing.
const float* StepCall::StateAfter(int64_t i, int64_t h) const {
  const int64_t end = in.share.whole() ? in.q.shape[1] : in.share.end;
  if (h == end) h = in.share.whole() ? 0 : in.share.begin, ++i;
  if (i == in.q.shape[0]) return nullptr;
  return in.state[i] + h * (in.v.shape[1] / in.q.shape[1]) * F * in.v.shape[2];
}

// One token of the key heads [begin, end) of sequence i, for all their value heads.
void StepCall::Heads(int64_t i, int64_t begin, int64_t end) const {
  alignas(64) float Q[kStepFeatures], K[kStepFeatures], a[kStepFeatures];
  const int64_t most = kStepFeatures / F, group = in.v.shape[1] / in.q.shape[1];
  for (int64_t h = begin; h < end; h += most) {
    const int64_t count = std::min(most, end - h);
    MapHeads(phi, in.q, i, h, count, F, Q);
    MapHeads(key_phi, in.k, i, h, count, F, K);
    StepRun run = RunFor(i, h * group);
    run.head.Q = Q, run.head.K = K, run.head.a = a;
    run.heads = count * group;
    run.next = StateAfter(i, h + count);
    HWY_DYNAMIC_DISPATCH(StepValueHeads)(mixer.decay, mixer.write, run);
  }
}

}  // namespace

void StateStep(const Mixer& mixer, const StepInputs& in) {
  if (in.share.whole()) CheckStep(mixer, in);
  const StepCall call(mixer, in);
  const int64_t n = in.q.shape[0], H = in.q.shape[1];
  if (!in.share.whole()) {
    for (int64_t i = 0; i < n; ++i) call.Heads(i, in.share.begin, in.share.end);
    return;
  }
  Check(call.F <= kStepFeatures, mixer.name, "step must have at most {} features, but has {}",
        kStepFeatures, call.F);
  // Below this many floats of state, waking the threads costs more than they save.
  constexpr int64_t kParallelFloats = 1 << 16;
#pragma omp parallel for collapse(2) if (n * in.v.shape[1] * in.v.shape[2] * call.F > \
                                         kParallelFloats)
  for (int64_t i = 0; i < n; ++i)
    for (int64_t h = 0; h < H; ++h) call.Heads(i, h, h + 1);
}

}  // namespace linattn
#endif  // HWY_ONCE
