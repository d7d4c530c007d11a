#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <numeric>

#include "runtime/reference_model.h"
#include "runtime/session.h"

// A sanitizer brings a malloc of its own.
#ifndef LINATTN_SANITIZED

namespace {
std::atomic<int64_t> g_allocations{0};
}  // namespace

extern "C" void* __libc_malloc(size_t bytes);
extern "C" void* __libc_memalign(size_t alignment, size_t bytes);

// Stand in for the C library's in this test program, and count.
extern "C" void* malloc(size_t bytes) {
  ++g_allocations;
  return __libc_malloc(bytes);
}
extern "C" void* aligned_alloc(size_t alignment, size_t bytes) {
  ++g_allocations;
  return __libc_memalign(alignment, bytes);
}
extern "C" int posix_memalign(void** memory, size_t alignment, size_t bytes) {
  ++g_allocations;
  *memory = __libc_memalign(alignment, bytes);
  return *memory == nullptr ? ENOMEM : 0;
}

namespace linattn {
namespace {

ModelConfig Text(const std::string& mixers, const std::string& block) {
  ModelConfig c;
  c.task = "text", c.position = "learned", c.head = "categorical", c.vocab = 40, c.max_len = 100;
  c.dim = 48, c.heads = c.value_heads = 3, c.head_dim = c.value_dim = 16, c.mlp_dim = 96;
  c.block = block, c.mixers = ExpandMixers(mixers, 2);
  return c;
}

// Allocations of 20 steps of n sequences.
int64_t AllocationsOf(const PackedModel& model, int64_t n) {
  Session session(model, n);
  std::vector<int64_t> slots(n);
  std::iota(slots.begin(), slots.end(), 0);
  const std::vector<int32_t> tokens(n, 3);
  session.Step(slots, tokens);  // starts the threads and chooses the SIMD target
  const int64_t before = g_allocations;
  for (int t = 0; t < 20; ++t) session.Step(slots, tokens);
  return g_allocations - before;
}

TEST(AllocationTest, StepsAllocateNothing) {
  std::vector<ModelConfig> configs = {Text("linear,softmax", "classic"),
                                      Text("3x gated_delta + 1x softmax", "modern")};
  for (const Mixer* mixer : AllMixers())
    configs.push_back(Text(std::string(mixer->name), "modern"));
  configs[1].rope_theta = 1e4, configs[1].window = 7, configs[1].feature_map = "hedgehog";
  for (const ModelConfig& c : configs) {
    const PackedModel model(c, reference::DenseTensors(c, 1));
    for (const int64_t n : {1, 3, 40})  // shared matrices, and groups of sequences
      EXPECT_EQ(AllocationsOf(model, n), 0) << c.mixers[0] << " " << n;
  }
}

TEST(AllocationTest, TheCounterCounts) {
  const ModelConfig c = Text("linear", "classic");
  const PackedModel model(c, reference::DenseTensors(c, 1));
  Session session(model, 1);
  const int64_t before = g_allocations;
  session.Prefill(0, std::vector<int32_t>(40, 3));
  EXPECT_GT(g_allocations - before, 0);
}

}  // namespace
}  // namespace linattn

#endif
