#include "kernels/mixers/linear.h"

#include <hwy/aligned_allocator.h>
#include <omp.h>

#include "base/error.h"
#include "kernels/chunk.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/mixers/linear.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/chunk-inl.h"

HWY_BEFORE_NAMESPACE();
namespace linattn {
namespace HWY_NAMESPACE {

// kVectors columns of S [F,V]: S += k v^T and o = S^T q, in one pass. The last vector may be
// partial.
template <int kVectors, class Load, class Store>
HWY_INLINE void UpdateAndRead(const StepHead& step, int64_t column, Load load, Store store) {
  const FloatTag d;
  FloatVector v[kVectors], sum[kVectors];
#pragma GCC unroll 4
  for (int j = 0; j < kVectors; ++j) {
    v[j] = load(step.v + column + j * kLanes);
    sum[j] = hn::Zero(d);
  }
  float* HWY_RESTRICT S = step.S + column;
  for (int64_t f = 0; f < step.F; ++f, S += step.V) {
    const FloatVector k = hn::Set(d, step.k[f]), q = hn::Set(d, step.q[f]);
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) {
      const FloatVector s = hn::MulAdd(k, v[j], load(S + j * kLanes));
      store(s, S + j * kLanes);
      sum[j] = hn::MulAdd(q, s, sum[j]);
    }
  }
#pragma GCC unroll 4
  for (int j = 0; j < kVectors; ++j)
    store(hn::Mul(sum[j], hn::Set(d, step.factor)), step.o + column + j * kLanes);
}

// One token of one value head. step.factor: what S^T q is multiplied by if it is not normalised.
void LinearStep(StepHead step, bool normalise, float eps) {
  if (normalise) {
    AddScaled(1, step.k, step.F, step.z);
    const float den = step.factor * Dot(step.q, step.z, step.F) + eps;
    step.factor = den != 0 ? step.factor / den : 0;
  }
  const auto load = [](const float* p) HWY_ATTR { return hn::LoadU(FloatTag(), p); };
  const auto store = [](FloatVector v, float* p) HWY_ATTR { hn::StoreU(v, FloatTag(), p); };
  int64_t i = 0;
  for (; i + 4 * kLanes <= step.V; i += 4 * kLanes) UpdateAndRead<4>(step, i, load, store);
  for (; i + 2 * kLanes <= step.V; i += 2 * kLanes) UpdateAndRead<2>(step, i, load, store);
  for (; i + kLanes <= step.V; i += kLanes) UpdateAndRead<1>(step, i, load, store);
  if (const int64_t tail = step.V - i; tail > 0)
    UpdateAndRead<1>(
        step, i, [tail](const float* p) HWY_ATTR { return LoadPartial(p, tail); },
        [tail](FloatVector v, float* p) HWY_ATTR { StorePartial(v, p, tail); });
}

}  // namespace HWY_NAMESPACE
}  // namespace linattn
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace linattn {
namespace {

HWY_EXPORT(LinearStep);

const FeatureMap& Phi(const MixerOptions& options) {
  return options.feature_map ? *options.feature_map : FeatureMapByName("elu1");
}

const FeatureMap& KeyPhi(const MixerOptions& options) {
  return options.key_map ? *options.key_map : Phi(options);
}

float ScaleOf(const MixerOptions& options) {
  return options.scale != 0 ? static_cast<float>(options.scale) : 1.0f;
}

ChunkCall MakeCall(const MixerInputs& in, const MixerOutputs& out, const MixerDims& dims) {
  Check(in.q.dtype != DType::kF64, "linear",
        "q must be F32, BF16 or F16 here, but is F64 (the reference functions take it)");
  return {k_linear,
          in,
          out,
          Phi(in.options),
          KeyPhi(in.options),
          ScaleOf(in.options),
          static_cast<float>(in.options.eps),
          ShapeOfChunks(k_linear, dims, omp_get_max_threads())};
}

// to <- from, or zero: z (and its gradient) where it is not used.
void CopyOrZero(const Array& from, const Array& to) {
  for (int64_t n = 0; n < to.shape[0] && to.present(); ++n)
    for (int64_t h = 0; h < to.shape[1]; ++h)
      for (int64_t f = 0; f < to.shape[2]; ++f)
        *to.At<float>(n, h, f) = from.present() ? *from.At<float>(n, h, f) : 0.0f;
}

int64_t ScratchBytes(const MixerDims& dims, int threads) {
  return ScratchFloats(ShapeOfChunks(k_linear, dims, threads)) * threads *
         static_cast<int64_t>(sizeof(float));
}

void Forward(const MixerInputs& in, const MixerOutputs& out, void* scratch) {
  const MixerDims dims = CheckInputs(k_linear, in);
  CheckOutputs(k_linear, dims, out);
  const Sequences sequences = ResolveSegments(in, dims);
  const ChunkCall call = MakeCall(in, out, dims);
  ChunkForward(call, sequences, {static_cast<float*>(scratch), ScratchFloats(call.shape)});
  if (!in.options.normalise) CopyOrZero(in.z0, out.zT);
  ZeroTokens(out.o, sequences.masked_q);
  ZeroTokens(out.norm, sequences.masked_q);
}

void Backward(const MixerInputs& in, const MixerOutputs& out, const MixerGradients& grad,
              void* scratch) {
  const MixerDims dims = CheckInputs(k_linear, in);
  CheckOutputs(k_linear, dims, out);
  CheckGradients(k_linear, in, grad);
  Check(out.norm.present() || !in.options.normalise || !grad.d_o.present(), "linear",
        "norm must be what forward wrote, but is absent");
  const Sequences sequences = ResolveSegments(in, dims);
  const ChunkCall call = MakeCall(in, out, dims);
  ChunkBackward(call, sequences, grad, {static_cast<float*>(scratch), ScratchFloats(call.shape)});
  if (!in.options.normalise) CopyOrZero(grad.d_zT, grad.d_z0);
  ZeroTokens(grad.d_q, sequences.masked_q);
  ZeroTokens(grad.d_k, sequences.masked_k);
  ZeroTokens(grad.d_v, sequences.masked_k);
}

int64_t StateFloats(const MixerDims& d, const MixerOptions&, int64_t) { return d.HV * d.F * (d.V + 1); }

// Features of one head that a step keeps on its stack.
constexpr int64_t kStepFeatures = 4096;

// One token of key head h of sequence i, for all its value heads.
void StepKeyHead(const StepInputs& in, const FeatureMap& phi, int64_t i, int64_t h) {
  alignas(64) float q[kStepFeatures], k[kStepFeatures];
  const int64_t K = in.q.shape[2], F = phi.Features(K), HV = in.v.shape[1], V = in.v.shape[2];
  const int64_t group = HV / in.q.shape[1];
  phi.Forward(in.q.At<float>(i, h), 1, K, q);
  KeyPhi(in.options).Forward(in.k.At<float>(i, h), 1, K, k);
  for (int64_t j = h * group; j < (h + 1) * group; ++j) {
    const StepHead step{.F = F,
                        .V = V,
                        .q = q,
                        .k = k,
                        .v = in.v.At<float>(i, j),
                        .S = in.state[i] + j * F * V,
                        .z = in.state[i] + HV * F * V + j * F,
                        .o = in.o.At<float>(i, j),
                        .factor = ScaleOf(in.options)};
    HWY_DYNAMIC_DISPATCH(LinearStep)
    (step, in.options.normalise, static_cast<float>(in.options.eps));
  }
}

void Step(const StepInputs& in) {
  CheckStep(k_linear, in);
  const FeatureMap& phi = Phi(in.options);
  const int64_t n = in.q.shape[0], H = in.q.shape[1], F = phi.Features(in.q.shape[2]);
  Check(F <= kStepFeatures, "linear", "step must have at most {} features, but has {}",
        kStepFeatures, F);
  // Below this many floats of state, waking the threads costs more than they save.
  constexpr int64_t kParallelFloats = 1 << 16;
#pragma omp parallel for collapse(2) if (n * in.v.shape[1] * in.v.shape[2] * F > kParallelFloats)
  for (int64_t i = 0; i < n; ++i)
    for (int64_t h = 0; h < H; ++h) StepKeyHead(in, phi, i, h);
}

void Prefill(const MixerInputs& given, const Array& o, float* state, int64_t, int64_t) {
  MixerInputs in = given;
  Check(!in.S0.present() && !in.z0.present(), "linear",
        "S0 and z0 must be absent in prefill, but are given (the state block is the state)");
  const MixerDims d = CheckInputs(k_linear, in);
  Check(in.options.causal, "linear", "prefill must be causal, but options.causal is not set");
  Check(d.N == 1, "linear", "prefill must have one sequence, but has N={}", d.N);
  in.S0 = MakeArray(state, {1, d.HV, d.F, d.V});
  in.z0 = MakeArray(state + d.HV * d.F * d.V, {1, d.HV, d.F});
  const auto scratch = hwy::AllocateAligned<uint8_t>(ScratchBytes(d, omp_get_max_threads()));
  Forward(in, {.o = o, .norm = {}, .ST = in.S0, .zT = in.z0}, scratch.get());
}

// Useful operations: S += k v^T for each key and S^T q for each query.
double Flops(const MixerDims& d, bool) {
  return 2.0 * static_cast<double>(d.B * (d.S + d.T) * d.HV) * static_cast<double>(d.F * d.V);
}

double Bytes(const MixerDims& d, bool) {
  return 4.0 * static_cast<double>(d.B) *
         static_cast<double>(d.T * (d.H * d.K + d.HV * d.V) + d.S * (d.H * d.K + d.HV * d.V));
}

}  // namespace

const Mixer k_linear = {
    .name = "linear",
    .summary = "linear attention with a positive feature map (Katharopoulos et al. 2020)",
    .family = Family::kState,
    .decay = Decay::kNone,
    .write = Write::kAdd,
    .normalised = true,
    .feature_map = "elu1",
    .fixed_decay = false,
    .shared_qk = false,
    .tolerance = {.forward = 5e-6,
                  .backward = 2e-5,
                  .reason = "float32 sums of positive terms over T tokens, blocked by chunk"},
    .forward_ref = linear_ref::Forward,
    .backward_ref = linear_ref::Backward,
    .scratch_bytes = ScratchBytes,
    .forward = Forward,
    .backward = Backward,
    .state_floats = StateFloats,
    .step = Step,
    .prefill = Prefill,
    .flops = Flops,
    .bytes = Bytes,
};

}  // namespace linattn
#endif  // HWY_ONCE
