#include "kernels/machine_peak.h"

#include <omp.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <vector>

#include "kernels/native_dots.h"
#include "kernels/packed_matrix.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/machine_peak.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/dot-inl.h"

HWY_BEFORE_NAMESPACE();
namespace linattn {
namespace HWY_NAMESPACE {

// `rounds` of a tile of products of `parts` each, as a kernel does them but from the first cache.
// There are as many sums as cover the latency of two units. Returns the number of operations. What
// is read anew each time keeps the compiler from merging products, and `sink` from leaving them
// out.
template <class Dot>
double DotRounds(int64_t rounds, int64_t parts, float* sink) {
  constexpr int64_t kRows = 2, kColumns = HWY_TARGET <= HWY_AVX3 ? 6 : 4;
  Chunk words[kColumns] = {};
  asm volatile("" : : "r"(words) : "memory");
  typename Dot::Right column[kColumns];
#pragma GCC unroll 6
  for (int64_t n = 0; n < kColumns; ++n) column[n] = Dot::LoadRight(words[n].words);
  typename Dot::Sum sum[kRows][kColumns];
#pragma GCC unroll 2
  for (int64_t m = 0; m < kRows; ++m)
#pragma GCC unroll 6
    for (int64_t n = 0; n < kColumns; ++n) sum[m][n] = Dot::Start(0);
  for (int64_t r = 0; r < rounds; ++r) {
    asm volatile("" : : "r"(words) : "memory");
    const typename Dot::Left rows[kRows] = {Dot::SetLeft(words[0].words[0]),
                                            Dot::SetLeft(words[1].words[0])};
#pragma GCC unroll 2
    for (int64_t m = 0; m < kRows; ++m)
#pragma GCC unroll 6
      for (int64_t n = 0; n < kColumns; ++n) Dot::Add(sum[m][n], rows[m], column[n]);
  }
  FloatVector total = hn::Zero(FloatTag());
#pragma GCC unroll 2
  for (int64_t m = 0; m < kRows; ++m)
#pragma GCC unroll 6
    for (int64_t n = 0; n < kColumns; ++n) total = hn::Add(total, Dot::Float(sum[m][n]));
  *sink += hn::GetLane(hn::SumOfLanes(FloatTag(), total));
  return static_cast<double>(2 * rounds * kRows * kColumns * parts * kLanes);
}

double TypedDotRounds(WeightType type, int64_t rounds, float* sink) {
  const int64_t parts = InputsPerWord(type);
#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86
  const NativeDots native = MachineDots();
  if (native.bf16 && type == WeightType::kBFloat16)
    return DotRounds<NativeBFloat16Dot>(rounds, parts, sink);
  if (native.int8 && type == WeightType::kInt8)
    return DotRounds<NativeInt8Dot>(rounds, parts, sink);
#endif
  switch (type) {
    case WeightType::kFloat32:
      return DotRounds<Float32Dot>(rounds, parts, sink);
    case WeightType::kBFloat16:
      return DotRounds<BFloat16Dot>(rounds, parts, sink);
    case WeightType::kInt8:
      return DotRounds<Int8Dot>(rounds, parts, sink);
  }
  return 0;
}

// Reads `lines` cache lines, a multiple of 8, as four streams: what the prefetchers like best.
// Software prefetch only slows it down.
uint32_t ReadLines(const Chunk* HWY_RESTRICT memory, int64_t lines) {
  constexpr int64_t kStreams = 4, kAtOnce = 2;
  const WordTag d;
  auto any = hn::Zero(d), other = any;
  const int64_t part = lines / kStreams;
  for (int64_t i = 0; i < part; i += kAtOnce)
#pragma GCC unroll 4
    for (int64_t s = 0; s < kStreams; ++s)
#pragma GCC unroll 16
      for (int64_t lane = 0; lane < kChunkWords; lane += kLanes) {
        any = hn::Or(any, hn::Load(d, memory[s * part + i].words + lane));
        other = hn::Or(other, hn::Load(d, memory[s * part + i + 1].words + lane));
      }
  return hn::GetLane(hn::Or(any, other));
}

}  // namespace HWY_NAMESPACE
}  // namespace linattn
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace linattn {
namespace {

HWY_EXPORT(TypedDotRounds);
HWY_EXPORT(ReadLines);

using Clock = std::chrono::steady_clock;

// The best of several rounds, for `seconds` and at least once more than the first: the sum over
// threads of what `work(thread)` returns, in 1e9 a second.
template <class Work>
double BestRate(int threads, double seconds, const Work& work) {
  double best = 0;
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  do {
    double amount = 0;
    const auto start = Clock::now();
#pragma omp parallel num_threads(threads) reduction(+ : amount)
    amount += work(omp_get_thread_num());
    const double took = std::chrono::duration<double>(Clock::now() - start).count();
    best = std::max(best, amount / took / 1e9);
  } while (Clock::now() < end);
  return best;
}

double DotPeak(int threads, WeightType type, double seconds) {
  constexpr int64_t kRounds = 1 << 18;  // about 1 ms
  const auto run = HWY_DYNAMIC_DISPATCH(TypedDotRounds);
  return BestRate(threads, seconds, [=](int) {
    float sink = 0;
    const double operations = run(type, kRounds, &sink);
    return sink == 0 ? operations : 0;  // the words are zeros
  });
}

// Every thread reads its own `bytes` of memory.
double ReadPeak(int threads, const std::vector<Chunk>& memory, int64_t bytes, double seconds) {
  constexpr int64_t kAtLeast = 8 << 20;  // bytes, to be long against the start of the threads
  const int64_t lines = bytes / 64 / 8 * 8, passes = std::max<int64_t>(1, kAtLeast / bytes);
  const auto read = HWY_DYNAMIC_DISPATCH(ReadLines);
  return BestRate(threads, seconds, [&](int thread) {
    uint32_t any = 0;
    for (int64_t i = 0; i < passes; ++i) any |= read(memory.data() + thread * lines, lines);
    return any == 0 ? static_cast<double>(passes * lines * 64) : 0;
  });
}

int64_t L2Bytes() {
#ifdef _SC_LEVEL2_CACHE_SIZE
  if (const long bytes = sysconf(_SC_LEVEL2_CACHE_SIZE); bytes > 0) return bytes;
#endif
  return 512 << 10;
}

}  // namespace

double MeasureFmaPeak() { return DotPeak(omp_get_max_threads(), WeightType::kFloat32, 0.2); }

MachinePeak MeasureMachinePeak(int threads, double seconds) {
  const double each = 0.12 * seconds;
  constexpr int64_t kMemoryBytes = 256 << 20;  // in no cache
  const int64_t l2_bytes = L2Bytes() / 2;
  // 6 MB, about a thread's weights of the CIFAR-10 model in int8; what 4 KB pages of the second TLB
  // reach; and no more than 16 MB in all, or it is no longer the L3 that is measured.
  const int64_t l3_bytes =
      std::max<int64_t>(std::min(6 << 20, (16 << 20) / threads), 2 * L2Bytes());
  const std::vector<Chunk> memory(
      static_cast<size_t>(std::max(kMemoryBytes, l3_bytes * threads) / 64));
  MachinePeak peak{.threads = threads};
  peak.float32_gflops = DotPeak(threads, WeightType::kFloat32, each);
  peak.bfloat16_gflops = DotPeak(threads, WeightType::kBFloat16, each);
  peak.int8_gops = DotPeak(threads, WeightType::kInt8, each);
  peak.l2_gbps = ReadPeak(threads, memory, l2_bytes, each);
  peak.l3_gbps = ReadPeak(threads, memory, l3_bytes, each);
  peak.memory_gbps = ReadPeak(threads, memory, kMemoryBytes / threads, each);
  return peak;
}

}  // namespace linattn
#endif  // HWY_ONCE
