#include "kernels/mixers/lsh.h"

#include <omp.h>

#include <algorithm>

#include "base/error.h"
#include "kernels/lsh_decode.h"
#include "kernels/lsh_head.h"

namespace linattn {
namespace {

int64_t ScratchBytes(const MixerDims& dims, int threads) {
  return threads * LshHead::Floats(dims, true) * static_cast<int64_t>(sizeof(float));
}

// What the units of a call share, and what each thread has of its own.
struct Workers {
  Workers(const MixerInputs& in, const MixerDims& dims, bool backward, void* scratch)
      : rotations(RotationFloats(in.options, dims.K)),
        lists(omp_get_max_threads(), LshLists(in.options, dims.T, dims.T)),
        dims(dims),
        backward(backward),
        scratch(static_cast<float*>(scratch)) {
    FillRotations(in.options, dims.K, rotations.data());
  }
  LshHead Head(const LshUnit& unit) const {
    return LshHead(unit.tokens->length, dims.H / dims.HV, dims.K, dims.V, backward,
                   scratch + omp_get_thread_num() * LshHead::Floats(dims, backward));
  }
  // The lists of a head that was loaded.
  LshLists& Lists(const LshHead& x) {
    LshLists& own = lists[omp_get_thread_num()];
    own.Hash(x.k.At<float>(), x.k.shape[1], dims.K, rotations.data(), nullptr, 0);
    return own;
  }
  std::vector<float> rotations;
  std::vector<LshLists> lists;
  const MixerDims& dims;
  bool backward;
  float* scratch;
};

void Forward(const MixerInputs& in, const MixerOutputs& out, void* scratch) {
  const MixerDims dims = CheckInputs(k_lsh, in);
  CheckOutputs(k_lsh, dims, out);
  CheckLshOptions(in.options);
  const Sequences sequences = ResolveSegments(in, dims);
  CheckFastInputs(k_lsh, in, sequences);
  ClearOutputs(dims, out, sequences.masked_q);
  Workers workers(in, dims, false, scratch);
  const std::vector<LshUnit> units = LshUnits(sequences, dims.HV);
#pragma omp parallel for schedule(dynamic)
  for (const LshUnit& unit : units) {
    const LshHead x = workers.Head(unit);
    const MixerInputs own = x.Load(in, unit);
    x.Attend(own, 0, workers.Lists(x));
    StoreHeads(x.o, unit, out.o), StoreHeads(x.norm, unit, out.norm);
  }
}

void Backward(const MixerInputs& in, const MixerOutputs& out, const MixerGradients& gradients,
              void* scratch) {
  const MixerDims dims = CheckInputs(k_lsh, in);
  CheckGradients(k_lsh, in, gradients);
  CheckLshOptions(in.options);
  const Sequences sequences = ResolveSegments(in, dims);
  CheckFastInputs(k_lsh, in, sequences);
  ClearGradients(gradients, sequences);
  if (!gradients.d_o.present()) return;
  CheckNorm(k_lsh, out);
  Workers workers(in, dims, true, scratch);
  const std::vector<LshUnit> units = LshUnits(sequences, dims.HV);
#pragma omp parallel for schedule(dynamic)
  for (const LshUnit& unit : units) {
    const LshHead x = workers.Head(unit);
    const MixerInputs own = x.Load(in, unit);
    LoadHeads(out.o, unit, x.o), LoadHeads(out.norm, unit, x.norm);
    LoadHeads(gradients.d_o, unit, x.d_o);
    x.AttendBack(own, workers.Lists(x));
    float* d_k = x.d_unit.At<float>();
    KeyDirections().Backward(x.k.At<float>(), x.unit.At<float>(), d_k, x.k.shape[1], dims.K, d_k);
    StoreHeads(x.d_q, unit, gradients.d_q), StoreHeads(x.d_unit, unit, gradients.d_k);
    StoreHeads(x.d_v, unit, gradients.d_v);
  }
}

// Of forward with the options that hold unless told: a chunk and a half a round, and the hash.
double Flops(const MixerDims& d, bool causal) {
  const LshOptions lsh;
  const double keys = std::min<double>(d.T, lsh.chunk * (causal ? 1.5 : 2));
  const double hash = static_cast<double>(d.HV) * d.K * lsh.buckets;
  const double rounds = static_cast<double>(lsh.rounds * d.B * d.T);
  return rounds * (2.0 * static_cast<double>((d.K + d.V) * d.H) * keys + hash);
}

constexpr Mixer Descriptor() {
  Mixer m = CacheMixer(
      {.name = "lsh",
       .summary = "softmax over the keys that a hash finds near the query; queries are the keys",
       .shared_qk = true,
       .self_only = true,
       .tolerance = {.forward = 5e-6,
                     .backward = 2e-5,
                     .reason = "blocked float32 sums; exp turns the rounding of a score into a "
                               "relative error"},
       .forward_ref = lsh_ref::Forward,
       .backward_ref = lsh_ref::Backward,
       .flops = Flops});
  m.scratch_bytes = ScratchBytes;
  m.forward = Forward;
  m.backward = Backward;
  m.state_floats = LshStateFloats;
  m.step = LshStep;
  m.prefill = LshPrefill;
  return m;
}

}  // namespace

constinit const Mixer k_lsh = Descriptor();

}  // namespace linattn
