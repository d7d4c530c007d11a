#include "kernels/reference_fallback.h"

#include <list>
#include <vector>

namespace linattn {
namespace {

double Get(const Array& a, int64_t i) {
  switch (a.dtype) {
    case DType::kF64:
      return static_cast<const double*>(a.data)[i];
    case DType::kF32:
      return static_cast<const float*>(a.data)[i];
    case DType::kBF16:
      return ToFloat(static_cast<const BF16*>(a.data)[i]);
    default:
      return ToFloat(static_cast<const F16*>(a.data)[i]);
  }
}

void Set(const Array& a, int64_t i, double x) {
  const auto narrow = static_cast<float>(x);
  if (a.dtype == DType::kF32) static_cast<float*>(a.data)[i] = narrow;
  if (a.dtype == DType::kBF16) static_cast<BF16*>(a.data)[i] = ToBF16(narrow);
  if (a.dtype == DType::kF16) static_cast<F16*>(a.data)[i] = ToF16(narrow);
}

// run(dense, at) for every element: its place in row-major order and from a.data.
template <class Run>
void ForEachElement(const Array& a, const Run& run) {
  for (int64_t i = 0; i < a.size(); ++i) {
    int64_t at = 0, rest = i;
    for (int axis = a.rank - 1; axis >= 0; --axis) {
      at += rest % a.shape[axis] * a.stride[axis];
      rest /= a.shape[axis];
    }
    run(i, at);
  }
}

// Dense float64 copies of a call's arrays.
class Doubles {
 public:
  // With the contents: what the reference leaves alone, Narrow leaves alone.
  Array Of(const Array& a) {
    if (!a.present()) return a;
    std::vector<double>& memory = memory_.emplace_back(a.size());
    ForEachElement(a, [&](int64_t i, int64_t at) { memory[i] = Get(a, at); });
    Array copy = a;
    copy.data = memory.data();
    copy.dtype = DType::kF64;
    for (int64_t axis = a.rank - 1, stride = 1; axis >= 0; stride *= a.shape[axis--])
      copy.stride[axis] = stride;
    return copy;
  }

  MixerInputs Of(const MixerInputs& in) {
    MixerInputs copy = in;  // segments and options as they are
    copy.q = Of(in.q), copy.k = Of(in.k), copy.v = Of(in.v), copy.g = Of(in.g);
    copy.beta = Of(in.beta), copy.S0 = Of(in.S0), copy.z0 = Of(in.z0);
    return copy;
  }

  MixerOutputs Of(const MixerOutputs& out) {
    return {.o = Of(out.o), .norm = Of(out.norm), .ST = Of(out.ST), .zT = Of(out.zT)};
  }

  MixerGradients Of(const MixerGradients& grad) {
    return {.d_o = Of(grad.d_o),
            .d_ST = Of(grad.d_ST),
            .d_zT = Of(grad.d_zT),
            .d_q = Of(grad.d_q),
            .d_k = Of(grad.d_k),
            .d_v = Of(grad.d_v),
            .d_g = Of(grad.d_g),
            .d_beta = Of(grad.d_beta),
            .d_S0 = Of(grad.d_S0),
            .d_z0 = Of(grad.d_z0)};
  }

 private:
  std::list<std::vector<double>> memory_;
};

void Narrow(const Array& from, const Array& to) {
  if (!to.present()) return;
  const auto* values = static_cast<const double*>(from.data);
  ForEachElement(to, [&](int64_t i, int64_t at) { Set(to, at, values[i]); });
}

void CheckFloats(const Mixer& mixer, const MixerInputs& in, const MixerOutputs& out) {
  const MixerDims dims = CheckInputs(mixer, in);
  Check(in.q.dtype != DType::kF64, mixer.name,
        "q must be F32, BF16 or F16 here, but is F64 (the reference functions take it)");
  CheckOutputs(mixer, dims, out);
}

// x [n,...] -> its row i as [1,1,...].
Array TokenOf(const Array& x, int64_t i) {
  if (!x.present()) return x;
  Array token = x;
  token.data = x.At<float>(i);
  token.rank = x.rank + 1;
  token.shape = {1, 1, x.shape[1], x.shape[2]};
  token.stride = {x.stride[0], x.stride[0], x.stride[1], x.stride[2]};
  return token;
}

}  // namespace

void ForwardByReference(const Mixer& mixer, const MixerInputs& in, const MixerOutputs& out) {
  CheckFloats(mixer, in, out);
  Doubles doubles;
  const MixerOutputs results = doubles.Of(out);
  mixer.forward_ref(doubles.Of(in), results);
  Narrow(results.o, out.o), Narrow(results.norm, out.norm);
  Narrow(results.ST, out.ST), Narrow(results.zT, out.zT);
}

void BackwardByReference(const Mixer& mixer, const MixerInputs& in, const MixerOutputs& out,
                         const MixerGradients& grad) {
  CheckFloats(mixer, in, out);
  CheckGradients(mixer, in, grad);
  Doubles doubles;
  const MixerGradients results = doubles.Of(grad);
  mixer.backward_ref(doubles.Of(in), doubles.Of(out), results);
  Narrow(results.d_q, grad.d_q), Narrow(results.d_k, grad.d_k), Narrow(results.d_v, grad.d_v);
  Narrow(results.d_g, grad.d_g), Narrow(results.d_beta, grad.d_beta);
  Narrow(results.d_S0, grad.d_S0), Narrow(results.d_z0, grad.d_z0);
}

void StepByPrefill(const Mixer& mixer, const StepInputs& in) {
  CheckStep(mixer, in);
  for (int64_t i = 0; i < in.q.shape[0]; ++i) {
    MixerInputs token;
    token.q = TokenOf(in.q, i), token.k = TokenOf(in.k, i), token.v = TokenOf(in.v, i);
    token.g = TokenOf(in.g, i), token.beta = TokenOf(in.beta, i);
    token.options = in.options;
    mixer.prefill(token, TokenOf(in.o, i), in.state[i], in.length[i], in.capacity);
  }
}

}  // namespace linattn
