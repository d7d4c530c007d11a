// Whole sequences a task, or parts of them: how the chunk kernels use the threads they have.
#include <algorithm>

#include "kernels/chunk_parts.h"

namespace linattn {
namespace {

Array Absent() { return {}; }

// The states of sequence n's value heads: to[n] = from[m], [HV,...] each; zero if `from` is absent;
// nothing if `to` is.
void CopyStates(const Array& from, int64_t m, const Array& to, int64_t n) {
  if (!to.present()) return;
  const int64_t width = to.rank == 4 ? to.shape[3] : 1, rows = to.shape[2];
  for (int64_t h = 0; h < to.shape[1]; ++h) {
    for (int64_t f = 0; f < rows; ++f) {
      float* row = to.At<float>(n, h, f);
      if (from.present())
        std::copy_n(from.At<float>(m, h, f), width, row);
      else
        std::fill_n(row, width, 0.0f);
    }
  }
}

// A call in parts: the states between them, from which every part can be run by itself.
class PartedCall {
 public:
  PartedCall(const ChunkCall& call, const Sequences& whole, ThreadScratch scratch)
      : call_(call),
        scratch_(scratch),
        parts_(CutIntoParts(whole, call.shape.part)),
        states_(call.shape, parts_.count(), call.in.v.shape[2], scratch.shared) {}

  void Forward() {
    FindStates(Without(false));
    MixerInputs in = Inputs();
    const MixerOutputs out = Outputs();
    ForwardWhole(With(in, out), parts_.sequences, scratch_);
    ForEachSequence([&](int64_t n, int64_t, int64_t last) {
      CopyStates(out.ST, last, call_.out.ST, n);
      if (call_.shape.normalised) CopyStates(out.zT, last, call_.out.zT, n);
    });
  }

  void Backward(const MixerGradients& grad) {
    FindStates(parts_.sequences);  // also the last parts', for their decays
    const MixerInputs in = Inputs();
    const MixerOutputs out{.o = call_.out.o, .norm = call_.out.norm, .ST = {}, .zT = {}};
    const MixerGradients parts = FindGradients(With(in, out), grad);
    BackwardWhole(With(in, out), parts_.sequences, parts, scratch_);
    ForEachSequence([&](int64_t n, int64_t first, int64_t) {
      CopyStates(parts.d_S0, first, grad.d_S0, n);
      if (call_.shape.normalised) CopyStates(parts.d_z0, first, grad.d_z0, n);
    });
  }

 private:
  ChunkCall With(const MixerInputs& in, const MixerOutputs& out) const {
    return {call_.mixer, in, out, call_.phi, call_.key_phi, call_.scale, call_.eps, call_.shape};
  }
  // run(n, its first part, its last part).
  template <class Run>
  void ForEachSequence(const Run& run) const {
    for (size_t n = 0; n + 1 < parts_.first.size(); ++n)
      run(static_cast<int64_t>(n), parts_.first[n], parts_.first[n + 1] - 1);
  }
  // All parts but the first, or the last, of each sequence, whose sums nobody needs.
  Sequences Without(bool first) const {
    Sequences some;
    some.queries = parts_.sequences.queries, some.keys = parts_.sequences.keys;
    ForEachSequence([&](int64_t, int64_t begin, int64_t last) {
      some.queries[first ? begin : last].length = some.keys[first ? begin : last].length = 0;
    });
    return some;
  }
  MixerInputs Inputs() const {
    MixerInputs in = call_.in;
    in.S0 = states_.States(states_.S);
    if (call_.shape.normalised) in.z0 = states_.Normalisers(states_.z);
    return in;
  }
  MixerOutputs Outputs() const {
    MixerOutputs out = call_.out;
    out.ST = states_.States(states_.end_S), out.zT = states_.Normalisers(states_.end_z);
    return out;
  }

  void FindStates(const Sequences& parts) {
    MixerInputs in = call_.in;
    in.S0 = in.z0 = Absent();
    std::fill_n(states_.end_z, states_.P * states_.HV * states_.F, 0.0f);
    SumParts(With(in, Outputs()), parts, states_.decay, scratch_);
    if (states_.matrix) FindTransitions();
    ForEachSequence([&](int64_t n, int64_t first, int64_t) {
      CopyStates(call_.in.S0, n, states_.States(states_.S), first);
      CopyStates(call_.in.z0, n, states_.Normalisers(states_.z), first);
    });
    ScanParts(parts_, states_, false);
  }

  // What each part makes of the state before it: what it makes of the identity where all values
  // are zero (eq. 56).
  void FindTransitions() {
    const int64_t F = states_.F;
    MixerInputs in = call_.in;
    in.v = MakeArray(states_.zeros, {in.v.shape[0], in.v.shape[1], in.v.shape[2], F});
    in.v.stride = {0, 0, 0, 1};
    in.S0 = MakeArray(states_.identity, {states_.P, states_.HV, F, F});
    in.S0.stride = {0, 0, F, 1};
    in.z0 = Absent();
    MixerOutputs out;
    out.ST = MakeArray(states_.matrix, {states_.P, states_.HV, F, F});
    ChunkCall call = With(in, out);
    call.shape.V = F, call.shape.normalised = false;
    SumParts(call, parts_.sequences, states_.decay, scratch_);
  }

  // The gradients after each part; what comes back also says where those before it shall go.
  MixerGradients FindGradients(const ChunkCall& call, const MixerGradients& grad) {
    MixerGradients parts = grad;
    parts.d_ST = parts.d_zT = Absent();
    parts.d_S0 = states_.States(states_.end_S), parts.d_z0 = states_.Normalisers(states_.end_z);
    SumPartGradients(call, Without(true), parts, scratch_);
    parts.d_ST = states_.States(states_.L), parts.d_zT = states_.Normalisers(states_.l);
    ForEachSequence([&](int64_t n, int64_t, int64_t last) {
      CopyStates(grad.d_ST, n, parts.d_ST, last);
      CopyStates(grad.d_zT, n, parts.d_zT, last);
    });
    ScanParts(parts_, states_, true);
    return parts;
  }

  const ChunkCall& call_;
  ThreadScratch scratch_;
  Parts parts_;
  PartStates states_;
};

bool InParts(const ChunkCall& call) { return call.shape.part > 0 && call.in.options.causal; }

}  // namespace

Parts CutIntoParts(const Sequences& whole, int64_t part) {
  Parts parts;
  parts.first.push_back(0);
  for (const TokenList& list : whole.keys) {
    int64_t begin = 0;
    do {
      const int64_t n = std::min(part, list.length - begin);
      parts.sequences.keys.push_back(
          {list.row, list.begin + begin, n, list.index ? list.index + begin : nullptr});
      begin += part;
    } while (begin < list.length);
    parts.first.push_back(static_cast<int64_t>(parts.sequences.keys.size()));
  }
  parts.sequences.queries = parts.sequences.keys;
  return parts;
}

int64_t MostParts(const ChunkShape& shape, const MixerDims& dims) {
  return shape.part == 0 ? 0 : dims.N + dims.B * dims.T / shape.part;
}

PartStates::PartStates(const ChunkShape& s, int64_t parts, int64_t heads, float* block)
    : P(parts), HV(heads), F(s.F), V(s.V), D(s.D) {
  Pieces p(block);
  const int64_t all = P * HV;
  S = p.Take(all * F * V), z = p.Take(all * F);
  end_S = p.Take(all * F * V), end_z = p.Take(all * F);
  L = p.Take(all * F * V), l = p.Take(all * F);
  decay = p.Take(all * D);
  matrix = zeros = identity = nullptr;
  if (s.delta) {
    matrix = p.Take(all * F * F);
    zeros = p.Take(F), identity = p.Take(F * F);
  }
  floats = p.used();
  if (!identity) return;
  std::fill_n(zeros, F, 0.0f);
  std::fill_n(identity, F * F, 0.0f);
  for (int64_t f = 0; f < F; ++f) identity[f * F + f] = 1;
}

void ChunkForward(const ChunkCall& call, const Sequences& sequences, ThreadScratch scratch) {
  if (InParts(call)) return PartedCall(call, sequences, scratch).Forward();
  ForwardWhole(call, sequences, scratch);
}

void ChunkBackward(const ChunkCall& call, const Sequences& sequences, const MixerGradients& grad,
                   ThreadScratch scratch) {
  if (InParts(call)) return PartedCall(call, sequences, scratch).Backward(grad);
  BackwardWhole(call, sequences, grad, scratch);
}

}  // namespace linattn
