#include "ops/dnnl_matmul.h"

#include <dnnl.hpp>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "base/error.h"

namespace linattn {
namespace {

using dnnl::memory;

// Shapes vary with the length of a batch; past this many the primitives are made anew.
constexpr size_t kMaxPrimitives = 1024;

const dnnl::engine& Engine() {
  static const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

memory::data_type DnnlType(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return memory::data_type::f32;
    case DType::kBF16:
      return memory::data_type::bf16;
    case DType::kF16:
      return memory::data_type::f16;
    default:
      Fail("matmul", "matrices must be F32, BF16 or F16, but are {}", NameOf(dtype));
  }
}

struct Matmul {
  memory::desc a, b, c, bias, scratch;
  dnnl::matmul run;
  dnnl::reorder pack;  // of packed ones, from `plain` to b
  memory::desc plain;
};

struct WeightGradient {
  memory::desc x, d_y, d_w, scratch;
  dnnl::inner_product_backward_weights run;
};

// The library's own scratch space may not be used by two threads at once.
dnnl::primitive_attr OwnScratch() {
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  return attributes;
}

Matmul Make(const MatmulSpec& s) {
  Matmul p;
  p.plain = {{s.K, s.N}, memory::data_type::f32, memory::dims{s.b_row, s.b_column}};
  p.a = {{s.M, s.K}, DnnlType(s.in), memory::dims{s.a_row, s.a_column}};
  p.b = {{s.K, s.N}, DnnlType(s.in), memory::dims{s.b_row, s.b_column}};
  if (s.packed) p.b = {{s.K, s.N}, DnnlType(s.in), memory::format_tag::any};
  p.c = {{s.M, s.N}, DnnlType(s.out), memory::dims{s.c_row, 1}};
  p.bias = {{1, s.N}, memory::data_type::f32, memory::dims{s.N, 1}};
  const auto d =
      s.bias ? dnnl::matmul::desc(p.a, p.b, p.bias, p.c) : dnnl::matmul::desc(p.a, p.b, p.c);
  const dnnl::matmul::primitive_desc pd(d, OwnScratch(), Engine());
  p.b = pd.weights_desc();
  p.scratch = pd.scratchpad_desc();
  p.run = dnnl::matmul(pd);
  if (s.packed) p.pack = dnnl::reorder(dnnl::reorder::primitive_desc(Engine(), p.plain, Engine(), p.b));
  return p;
}

WeightGradient Make(const WeightGradientSpec& s) {
  WeightGradient p;
  p.x = {{s.rows, s.in}, DnnlType(s.type), memory::dims{s.in, 1}};
  p.d_y = {{s.rows, s.out}, DnnlType(s.type), memory::dims{s.out, 1}};
  const auto strides = s.transposed ? memory::dims{1, s.out} : memory::dims{s.in, 1};
  p.d_w = {{s.out, s.in}, memory::data_type::f32, strides};
  const memory::desc w({s.out, s.in}, DnnlType(s.type), memory::format_tag::any);
  const dnnl::inner_product_forward::primitive_desc hint(
      {dnnl::prop_kind::forward_training, p.x, w, p.d_y}, Engine());
  const dnnl::inner_product_backward_weights::primitive_desc pd({p.x, p.d_w, p.d_y}, OwnScratch(),
                                                                Engine(), hint);
  p.scratch = pd.scratchpad_desc();
  p.run = dnnl::inner_product_backward_weights(pd);
  return p;
}

template <class Spec>
auto Cached(const Spec& spec) -> std::shared_ptr<const decltype(Make(spec))> {
  using Primitive = const decltype(Make(spec));
  static std::mutex mutex;
  static std::map<Spec, std::shared_ptr<Primitive>> cache;
  std::lock_guard lock(mutex);
  if (cache.size() > kMaxPrimitives) cache.clear();
  auto& slot = cache[spec];
  if (!slot) slot = std::make_shared<Primitive>(Make(spec));
  return slot;
}

// Grows only; a thread's calls follow each other, so that they can share it.
void* Scratch(size_t bytes) {
  thread_local std::unique_ptr<memory> scratch;
  thread_local size_t capacity = 0;
  if (bytes > capacity) {
    const auto size = static_cast<memory::dim>(bytes);
    scratch = std::make_unique<memory>(memory::desc({size}, memory::data_type::u8, memory::dims{1}),
                                       Engine());
    capacity = bytes;
  }
  return scratch ? scratch->get_data_handle() : nullptr;
}

memory View(const memory::desc& desc, const void* data) {
  return memory(desc, Engine(), const_cast<void*>(data));
}

void Execute(const dnnl::primitive& primitive, const memory::desc& scratch,
             std::unordered_map<int, memory> arguments) {
  arguments.emplace(DNNL_ARG_SCRATCHPAD, View(scratch, Scratch(scratch.get_size())));
  thread_local dnnl::stream stream(Engine());
  primitive.execute(stream, arguments);
  stream.wait();
}

// Runs `run`, which calls oneDNN, for a product of M x K by K x N.
template <class Run>
auto Guarded(int64_t M, int64_t N, int64_t K, const Run& run) {
  try {
    return run();
  } catch (const dnnl::error& e) {
    throw Error("matmul", fmt::format("oneDNN: {} (M={}, N={}, K={})", e.what(), M, N, K),
                Fault::kInternal);
  }
}

}  // namespace

void DnnlMatmul(const MatmulSpec& spec, const void* A, const void* B, const float* bias, void* C) {
  if (spec.M == 0 || spec.N == 0) return;
  Guarded(spec.M, spec.N, spec.K, [&] {
    const auto p = Cached(spec);
    std::unordered_map<int, memory> arguments{{DNNL_ARG_SRC, View(p->a, A)},
                                              {DNNL_ARG_WEIGHTS, View(p->b, B)},
                                              {DNNL_ARG_DST, View(p->c, C)}};
    if (spec.bias) arguments.emplace(DNNL_ARG_BIAS, View(p->bias, bias));
    Execute(p->run, p->scratch, std::move(arguments));
  });
}

int64_t PackedBytes(const MatmulSpec& spec) {
  return Guarded(spec.M, spec.N, spec.K,
                 [&] { return static_cast<int64_t>(Cached(spec)->b.get_size()); });
}

void PackB(const MatmulSpec& spec, const float* B, void* packed) {
  Guarded(spec.M, spec.N, spec.K, [&] {
    const auto p = Cached(spec);
    Execute(p->pack, {}, {{DNNL_ARG_FROM, View(p->plain, B)}, {DNNL_ARG_TO, View(p->b, packed)}});
  });
}

void DnnlWeightGradient(const WeightGradientSpec& spec, const void* d_Y, const void* X,
                        float* d_W) {
  Guarded(spec.out, spec.in, spec.rows, [&] {
    const auto p = Cached(spec);
    Execute(p->run, p->scratch,
            {{DNNL_ARG_SRC, View(p->x, X)},
             {DNNL_ARG_DIFF_DST, View(p->d_y, d_Y)},
             {DNNL_ARG_DIFF_WEIGHTS, View(p->d_w, d_W)}});
  });
}

}  // namespace linattn
