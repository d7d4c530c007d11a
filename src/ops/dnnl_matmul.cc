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

struct Primitive {
  memory::desc a, b, c, bias, scratch;
  dnnl::matmul run;
};

std::shared_ptr<const Primitive> MakePrimitive(const MatmulSpec& s) {
  auto p = std::make_shared<Primitive>();
  p->a = {{s.M, s.K}, DnnlType(s.in), memory::dims{s.a_row, s.a_column}};
  p->b = {{s.K, s.N}, DnnlType(s.in), memory::dims{s.b_row, s.b_column}};
  p->c = {{s.M, s.N}, DnnlType(s.out), memory::dims{s.c_row, 1}};
  p->bias = {{1, s.N}, memory::data_type::f32, memory::dims{s.N, 1}};
  dnnl::primitive_attr attributes;
  // The library's own scratch space may not be used by two threads at once.
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  const auto d =
      s.bias ? dnnl::matmul::desc(p->a, p->b, p->bias, p->c) : dnnl::matmul::desc(p->a, p->b, p->c);
  const dnnl::matmul::primitive_desc pd(d, attributes, Engine());
  p->scratch = pd.scratchpad_desc();
  p->run = dnnl::matmul(pd);
  return p;
}

std::shared_ptr<const Primitive> CachedPrimitive(const MatmulSpec& spec) {
  static std::mutex mutex;
  static std::map<MatmulSpec, std::shared_ptr<const Primitive>> cache;
  std::lock_guard lock(mutex);
  auto& slot = cache[spec];
  if (slot) return slot;
  auto made = MakePrimitive(spec);
  if (cache.size() > kMaxPrimitives) {
    cache.clear();
    return made;
  }
  return slot = std::move(made);
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

}  // namespace

void DnnlMatmul(const MatmulSpec& spec, const void* A, const void* B, const float* bias, void* C) {
  if (spec.M == 0 || spec.N == 0) return;
  try {
    const auto p = CachedPrimitive(spec);
    const auto view = [](const memory::desc& desc, const void* data) {
      return memory(desc, Engine(), const_cast<void*>(data));
    };
    std::unordered_map<int, memory> arguments{
        {DNNL_ARG_SRC, view(p->a, A)},
        {DNNL_ARG_WEIGHTS, view(p->b, B)},
        {DNNL_ARG_DST, view(p->c, C)},
        {DNNL_ARG_SCRATCHPAD, view(p->scratch, Scratch(p->scratch.get_size()))}};
    if (spec.bias) arguments.emplace(DNNL_ARG_BIAS, view(p->bias, bias));
    thread_local dnnl::stream stream(Engine());
    p->run.execute(stream, arguments);
    stream.wait();
  } catch (const dnnl::error& e) {
    throw Error("matmul",
                fmt::format("oneDNN: {} (M={}, N={}, K={})", e.what(), spec.M, spec.N, spec.K),
                Fault::kInternal);
  }
}

}  // namespace linattn
