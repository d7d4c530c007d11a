#include "kernels/state_mixer.h"

#include <hwy/aligned_allocator.h>
#include <omp.h>

#include <cmath>

#include "base/error.h"
#include "kernels/chunk_parts.h"
#include "kernels/log_decay.h"

namespace linattn {
namespace {

ChunkCall MakeCall(const Mixer& mixer, const MixerInputs& in, const MixerOutputs& out,
                   const MixerDims& dims) {
  ChunkShape shape = ShapeOfChunks(mixer, dims, omp_get_max_threads());
  shape.normalised = mixer.normalised && in.options.normalise;
  return {.mixer = mixer,
          .in = in,
          .out = out,
          .phi = QueryMap(mixer, in.options),
          .key_phi = KeyMap(mixer, in.options),
          .scale = static_cast<float>(ScaleOf(mixer, in.options, dims.K)),
          .eps = static_cast<float>(in.options.eps),
          .shape = shape};
}

ThreadScratch Share(const ChunkShape& shape, void* scratch) {
  const int64_t floats = ScratchFloats(shape);
  auto* block = static_cast<float*>(scratch);
  return {block, floats, block + floats * omp_get_max_threads()};
}

MixerDims CheckFast(const Mixer& mixer, const MixerInputs& in, const MixerOutputs& out) {
  const MixerDims dims = CheckInputs(mixer, in);
  Check(in.q.dtype != DType::kF64, mixer.name,
        "q must be F32, BF16 or F16 here, but is F64 (the reference functions take it)");
  CheckOutputs(mixer, dims, out);
  return dims;
}

// The sum over the features of a normalised mixer that does not normalise: it is left as it was.
bool LeavesNormaliser(const Mixer& mixer, const MixerInputs& in) {
  return mixer.normalised && !in.options.normalise;
}

// to <- from, or zero.
void CopyOrZero(const Array& from, const Array& to) {
  for (int64_t n = 0; n < to.shape[0] && to.present(); ++n)
    for (int64_t h = 0; h < to.shape[1]; ++h)
      for (int64_t f = 0; f < to.shape[2]; ++f)
        *to.At<float>(n, h, f) = from.present() ? *from.At<float>(n, h, f) : 0.0f;
}

}  // namespace

const FeatureMap& QueryMap(const Mixer& mixer, const MixerOptions& options) {
  return options.feature_map ? *options.feature_map : FeatureMapByName(mixer.feature_map);
}

const FeatureMap& KeyMap(const Mixer& mixer, const MixerOptions& options) {
  return options.key_map ? *options.key_map : QueryMap(mixer, options).OfKeys();
}

double ScaleOf(const Mixer& mixer, const MixerOptions& options, int64_t K) {
  if (options.scale != 0) return options.scale;
  return mixer.normalised ? 1 : 1 / std::sqrt(static_cast<double>(K));
}

int64_t StateScratchBytes(const Mixer& mixer, const MixerDims& dims, int threads) {
  const ChunkShape shape = ShapeOfChunks(mixer, dims, threads);
  const PartStates parts(shape, MostParts(shape, dims), dims.HV, nullptr);
  return (ScratchFloats(shape) * threads + parts.floats) * static_cast<int64_t>(sizeof(float));
}

void StateForward(const Mixer& mixer, const MixerInputs& in, const MixerOutputs& out,
                  void* scratch) {
  const MixerDims dims = CheckFast(mixer, in, out);
  const Sequences sequences = ResolveSegments(in, dims);
  CheckLogDecay(mixer.name, in.g, sequences);
  const ChunkCall call = MakeCall(mixer, in, out, dims);
  ChunkForward(call, sequences, Share(call.shape, scratch));
  if (LeavesNormaliser(mixer, in)) CopyOrZero(in.z0, out.zT);
  ZeroTokens(out.o, sequences.masked_q);
  if (mixer.normalised) ZeroTokens(out.norm, sequences.masked_q);
}

void StateBackward(const Mixer& mixer, const MixerInputs& in, const MixerOutputs& out,
                   const MixerGradients& grad, void* scratch) {
  const MixerDims dims = CheckFast(mixer, in, out);
  CheckGradients(mixer, in, grad);
  const bool normalises = mixer.normalised && in.options.normalise;
  Check(out.norm.present() || !normalises || !grad.d_o.present(), mixer.name,
        "norm must be what forward wrote, but is absent");
  const Sequences sequences = ResolveSegments(in, dims);
  CheckLogDecay(mixer.name, in.g, sequences);
  const ChunkCall call = MakeCall(mixer, in, out, dims);
  ChunkBackward(call, sequences, grad, Share(call.shape, scratch));
  if (LeavesNormaliser(mixer, in)) CopyOrZero(grad.d_zT, grad.d_z0);
  ZeroTokens(grad.d_q, sequences.masked_q);
  for (const Array& d : {grad.d_k, grad.d_v, grad.d_g, grad.d_beta})
    ZeroTokens(d, sequences.masked_k);
}

void StatePrefill(const Mixer& mixer, const MixerInputs& given, const Array& o, float* state) {
  MixerInputs in = given;
  Check(!in.S0.present() && !in.z0.present(), mixer.name,
        "S0 and z0 must be absent in prefill, but are given (the state block is the state)");
  const MixerDims d = CheckInputs(mixer, in);
  Check(in.options.causal, mixer.name, "prefill must be causal, but options.causal is not set");
  Check(d.N == 1, mixer.name, "prefill must have one sequence, but has N={}", d.N);
  in.S0 = MakeArray(state, {1, d.HV, d.F, d.V});
  if (mixer.normalised) in.z0 = MakeArray(state + d.HV * d.F * d.V, {1, d.HV, d.F});
  const int threads = omp_get_max_threads();
  const auto scratch = hwy::AllocateAligned<uint8_t>(mixer.scratch_bytes(d, threads));
  mixer.forward(in, {.o = o, .norm = {}, .ST = in.S0, .zT = in.z0}, scratch.get());
}

int64_t StateFloats(const Mixer& mixer, const MixerDims& d) {
  return d.HV * d.F * (d.V + (mixer.normalised ? 1 : 0));
}

// Useful operations: S^T q of a query is a product and a sum for each number of the state; so are
// k v^T of a key and, for the delta rule, S^T k. A decay is a product.
double StateFlops(const Mixer& mixer, const MixerDims& d) {
  const double read = 2, write = mixer.write == Write::kDelta ? 4 : 2;
  const double decay = mixer.decay == Decay::kNone ? 0 : 1;
  const auto queries = static_cast<double>(d.T), keys = static_cast<double>(d.S);
  return static_cast<double>(d.B * d.HV) * static_cast<double>(d.F * d.V) *
         (queries * read + keys * (write + decay));
}

double StateBytes(const Mixer& mixer, const MixerDims& d) {
  const int64_t gates = mixer.decay == Decay::kNone     ? 0
                        : mixer.decay == Decay::kScalar ? d.HV
                                                        : d.HV * d.F;
  const int64_t betas = mixer.write == Write::kDelta ? d.HV : 0, rows = d.H * d.K + d.HV * d.V;
  return 4.0 * static_cast<double>(d.B) *
         static_cast<double>(d.T * rows + d.S * (rows + gates + betas));
}

}  // namespace linattn
