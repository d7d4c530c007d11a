#include "ops/mix_op.h"

#include <omp.h>
#include <torch/csrc/autograd/custom_function.h>

#include <array>
#include <memory>

#include "base/error.h"
#include "ops/torch_array.h"

namespace linattn {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Optional = c10::optional<Tensor>;

// The differentiable inputs, in the order of their gradients.
enum Input { kQ, kK, kV, kG, kBeta, kS0, kZ0, kInputs };

// Views of q, k and v in a tensor of packed channels.
std::array<Tensor, 3> SplitHeads(const PackedHeads& p, const Tensor& all) {
  const std::array<std::array<int64_t, 2>, 3> shapes{
      {{p.heads, p.key_dim}, {p.key_heads, p.key_dim}, {p.value_heads, p.value_dim}}};
  std::array<Tensor, 3> parts;
  int64_t channel = 0;
  for (int i = 0; i < 3; ++i) {
    const auto [heads, dim] = shapes[i];
    parts[i] = all.narrow(2, channel, heads * dim).unflatten(2, {heads, dim});
    channel += heads * dim;
  }
  return parts;
}

// What does not depend on gradients; shared by forward and backward.
struct Call {
  const Mixer* mixer;
  MixTensors tensors;  // without the differentiable ones
  bool reference = false;
};

Tensor RowsContiguous(const Tensor& x) {
  if (!x.defined() || x.dim() == 0 || x.size(-1) <= 1 || x.stride(-1) == 1) return x;
  return x.contiguous();
}

MixerInputs InputsOf(const Call& call, const variable_list& x) {
  const auto where = call.mixer->name;
  const auto& t = call.tensors;
  MixerInputs in;
  const std::array arrays{&in.q, &in.k, &in.v, &in.g, &in.beta, &in.S0, &in.z0};
  for (int i = 0; i < kInputs; ++i) *arrays[i] = ViewOf(x[i], where);
  auto& s = in.segments;
  s.lengths = ViewOf(t.lengths, where), s.k_lengths = ViewOf(t.k_lengths, where);
  s.mask = ViewOf(t.mask, where), s.k_mask = ViewOf(t.k_mask, where);
  s.boundaries = ViewOf(t.boundaries, where), s.k_boundaries = ViewOf(t.k_boundaries, where);
  in.options = t.options;
  return in;
}

Tensor Scratch(const Mixer& mixer, const MixerDims& dims) {
  constexpr int64_t kAlignment = 64;  // what the kernels ask for, and at::empty gives
  const int64_t bytes = mixer.scratch_bytes(dims, omp_get_max_threads());
  const Tensor scratch = at::empty({bytes + kAlignment}, at::kByte);
  const auto address = reinterpret_cast<uintptr_t>(scratch.data_ptr());
  return scratch.narrow(0, static_cast<int64_t>(-address % kAlignment), bytes);
}

// Outputs: o, norm, ST, zT; the last two undefined unless asked for.
struct Outputs {
  Tensor o{}, norm{}, ST{}, zT{};
  MixerOutputs views(std::string_view where) const {
    return {ViewOf(o, where), ViewOf(norm, where), ViewOf(ST, where), ViewOf(zT, where)};
  }
};

Outputs AllocateOutputs(const Call& call, const MixerDims& d, const Tensor& v) {
  const bool state = call.mixer->family == Family::kState;
  const auto sums = v.options().dtype(call.reference ? at::kDouble : at::kFloat);
  const int64_t heads = state ? d.HV : d.H;
  Outputs out{.o = at::empty({d.B, d.T, heads, d.V}, v.options())};
  if (!state || call.mixer->normalised) out.norm = at::empty({d.B, d.T, heads}, sums);
  if (!state || !call.tensors.final_state) return out;
  out.ST = at::empty({d.N, d.HV, d.F, d.V}, sums);
  if (call.mixer->normalised && call.tensors.options.normalise)
    out.zT = at::empty({d.N, d.HV, d.F}, sums);
  return out;
}

Outputs RunForward(const Call& call, const variable_list& x) {
  const MixerInputs in = InputsOf(call, x);
  const MixerDims dims = CheckInputs(*call.mixer, in);
  const Outputs out = AllocateOutputs(call, dims, x[kV]);
  const auto views = out.views(call.mixer->name);
  if (call.reference)
    call.mixer->forward_ref(in, views);
  else
    call.mixer->forward(in, views, Scratch(*call.mixer, dims).data_ptr());
  return out;
}

// Writes d_x for the inputs that need one: into `gradients` where those are defined already.
void RunBackward(const Call& call, const variable_list& x, const Outputs& out,
                 const std::array<bool, kInputs>& needed, const variable_list& cotangents,
                 variable_list& gradients) {
  const auto where = call.mixer->name;
  const MixerInputs in = InputsOf(call, x);
  MixerGradients g;
  g.d_o = ViewOf(cotangents[0], where);
  g.d_ST = ViewOf(cotangents[1], where), g.d_zT = ViewOf(cotangents[2], where);
  const std::array views{&g.d_q, &g.d_k, &g.d_v, &g.d_g, &g.d_beta, &g.d_S0, &g.d_z0};
  for (int i = 0; i < kInputs; ++i) {
    if (!needed[i]) continue;
    if (!gradients[i].defined()) gradients[i] = at::empty(x[i].sizes(), x[i].options());
    *views[i] = ViewOf(gradients[i], where);
  }
  if (call.reference) {
    call.mixer->backward_ref(in, out.views(where), g);
  } else {
    const Tensor scratch = Scratch(*call.mixer, CheckInputs(*call.mixer, in));
    call.mixer->backward(in, out.views(where), g, scratch.data_ptr());
  }
}

// Travels in AutogradContext::saved_data, whose values are IValues.
struct CallHolder : torch::CustomClassHolder {
  Call call;
  std::array<bool, kInputs> needed{};
};

struct MixFunction : torch::autograd::Function<MixFunction> {
  static variable_list forward(AutogradContext* ctx, c10::intrusive_ptr<CallHolder> holder,
                               const Optional& packed, const Optional& q, const Optional& k,
                               const Optional& v, const Optional& g, const Optional& beta,
                               const Optional& S0, const Optional& z0) {
    variable_list x;
    for (const auto* input : {&q, &k, &v, &g, &beta, &S0, &z0}) {
      holder->needed[x.size()] = input->has_value() && (*input)->requires_grad();
      x.push_back(RowsContiguous(input->value_or(Tensor())));
    }
    if (packed) {
      const auto parts = SplitHeads(holder->call.tensors.packed, RowsContiguous(*packed));
      std::copy(parts.begin(), parts.end(), x.begin());
      std::fill_n(holder->needed.begin(), 3, packed->requires_grad());
    }
    const Outputs out = RunForward(holder->call, x);
    x.insert(x.end(), {out.o, out.norm});
    ctx->save_for_backward(x);
    ctx->saved_data["call"] = c10::IValue::make_capsule(holder);
    ctx->set_materialize_grads(false);
    variable_list results{out.o};
    if (out.ST.defined()) results.push_back(out.ST);
    if (out.zT.defined()) results.push_back(out.zT);
    return results;
  }

  static variable_list backward(AutogradContext* ctx, variable_list cotangents) {
    const auto holder =
        c10::static_intrusive_pointer_cast<CallHolder>(ctx->saved_data["call"].toCapsule());
    variable_list x = ctx->get_saved_variables();
    const Outputs out{.o = x[kInputs], .norm = x[kInputs + 1]};
    x.resize(kInputs);
    cotangents.resize(3);
    for (auto& cotangent : cotangents) cotangent = RowsContiguous(cotangent);
    variable_list gradients(kInputs);
    const PackedHeads& packed = holder->call.tensors.packed;
    Tensor d_packed;
    if (packed.heads > 0 && holder->needed[kQ]) {
      d_packed = at::empty({x[kQ].size(0), x[kQ].size(1), packed.channels()}, x[kQ].options());
      const auto parts = SplitHeads(packed, d_packed);
      std::copy(parts.begin(), parts.end(), gradients.begin());
    }
    RunBackward(holder->call, x, out, holder->needed, cotangents, gradients);
    if (packed.heads > 0) std::fill_n(gradients.begin(), 3, Tensor());
    gradients.insert(gradients.begin(), {Tensor(), d_packed});  // of the holder, of packed
    return gradients;
  }
};

void CheckPacked(const Mixer& mixer, const PackedHeads& p) {
  Check(p.all.dim() == 3 && p.all.size(2) == p.channels(), mixer.name,
        "packed q, k and v must be [B,T,{}], but have {} axes and end in {}", p.channels(),
        p.all.dim(), p.all.dim() ? p.all.size(-1) : 0);
}

void CheckDTypes(const Mixer& mixer, const std::array<const Tensor*, kInputs>& x,
                 at::ScalarType type) {
  for (const Tensor* t : x)
    Check(!t->defined() || (t->scalar_type() == at::kDouble) == (type == at::kDouble), mixer.name,
          "either all tensors or none are float64, but q is {} and another is {}",
          c10::toString(type), c10::toString(t->scalar_type()));
}

}  // namespace

MixResult Mix(const Mixer& mixer, const MixTensors& in) {
  const std::array x{&in.q, &in.k, &in.v, &in.g, &in.beta, &in.S0, &in.z0};
  const Tensor& packed = in.packed.all;
  const bool apart = in.q.defined() && in.k.defined() && in.v.defined();
  Check(packed.defined() ? !in.q.defined() && !in.k.defined() && !in.v.defined() : apart,
        mixer.name, "q, k and v must be given, all apart or all packed");
  if (packed.defined()) CheckPacked(mixer, in.packed);
  auto holder = c10::make_intrusive<CallHolder>();
  holder->call = {.mixer = &mixer, .tensors = in};
  for (auto* t : {&holder->call.tensors.q, &holder->call.tensors.k, &holder->call.tensors.v,
                  &holder->call.tensors.g, &holder->call.tensors.beta, &holder->call.tensors.S0,
                  &holder->call.tensors.z0, &holder->call.tensors.packed.all})
    t->reset();  // autograd keeps them
  const auto type = (packed.defined() ? packed : in.q).scalar_type();
  holder->call.reference = type == at::kDouble;
  CheckDTypes(mixer, x, type);
  const auto optional = [](const Tensor& t) { return t.defined() ? Optional(t) : c10::nullopt; };
  const auto results =
      MixFunction::apply(holder, optional(packed), optional(in.q), optional(in.k), optional(in.v),
                         optional(in.g), optional(in.beta), optional(in.S0), optional(in.z0));
  MixResult result{.o = results[0]};
  if (results.size() > 1) result.ST = results[1];
  if (results.size() > 2) result.zT = results[2];
  return result;
}

MixResult Mix(std::string_view mixer, const MixTensors& in) { return Mix(MixerByName(mixer), in); }

}  // namespace linattn
