// torch.ops.linattn.<mixer>, one op for each line of the mixers' registry, and
// torch.ops.linattn.logistic_mixture. From Python:
// torch.ops.load_library("lib/liblinattn_torch.so").
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <string>

#include "base/error.h"
#include "ops/logistic_mixture_op.h"
#include "ops/mix_op.h"

namespace linattn {
namespace {

// Absent results (S and z of mixers without them) are None. Names and meanings are those of
// kernels/mixer.h.
std::string SchemaOf(const Mixer& mixer) {
  return std::string(mixer.name) +
         "(Tensor q, Tensor k, Tensor v, Tensor? g=None, Tensor? beta=None, Tensor? S0=None, "
         "Tensor? z0=None, *, Tensor? lengths=None, Tensor? mask=None, Tensor? boundaries=None, "
         "Tensor? k_lengths=None, Tensor? k_mask=None, Tensor? k_boundaries=None, bool "
         "causal=True, "
         "bool cross=False, float scale=0, float eps=1e-06, bool normalise=True, int window=0, "
         "str feature_map='') "
         "-> (Tensor o, Tensor ST, Tensor zT)";
}

// Pops the arguments of SchemaOf from the stack, pushes its results. The op's name is the mixer's.
void MixBoxed(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  MixTensors in;
  const auto& arguments = op.schema().arguments();
  auto value = stack->end() - static_cast<ptrdiff_t>(arguments.size());
  for (auto* tensor : {&in.q, &in.k, &in.v, &in.g, &in.beta, &in.S0, &in.z0, &in.lengths, &in.mask,
                       &in.boundaries, &in.k_lengths, &in.k_mask, &in.k_boundaries}) {
    if (!value->isNone()) *tensor = value->toTensor();
    ++value;
  }
  in.options.causal = (value++)->toBool();
  in.options.cross = (value++)->toBool();
  in.options.scale = (value++)->toDouble();
  in.options.eps = (value++)->toDouble();
  in.options.normalise = (value++)->toBool();
  in.options.window = (value++)->toInt();
  if (const auto& map = value->toStringRef(); !map.empty())
    in.options.feature_map = &FeatureMapByName(map);
  const auto& qualified = op.schema().name();  // linattn::linear
  const auto result = Mix(qualified.substr(qualified.rfind(':') + 1), in);
  torch::jit::drop(*stack, arguments.size());
  torch::jit::push(*stack, result.o, result.ST, result.zT);
}

TORCH_LIBRARY(linattn, m) {
  for (const Mixer* mixer : AllMixers()) {
    m.def(SchemaOf(*mixer).c_str());
    const std::string name(mixer->name);
    m.impl(name.c_str(), c10::DispatchKey::CompositeImplicitAutograd,
           torch::CppFunction::makeFromBoxedFunction<&MixBoxed>());
  }
  m.def("logistic_mixture(Tensor params, Tensor pixels) -> Tensor", &LogisticMixtureLoss);
}

}  // namespace
}  // namespace linattn
