#include "kernels/native_dots.h"

#include <atomic>

namespace linattn {
namespace {

std::atomic<bool> allow_bf16 = true, allow_int8 = true;

NativeDots Ask() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  return {__builtin_cpu_supports("avx512bf16") != 0, __builtin_cpu_supports("avx512vnni") != 0};
#else
  return {};
#endif
}

}  // namespace

NativeDots MachineDots() {
  static const NativeDots machine = Ask();
  return {machine.bf16 && allow_bf16.load(std::memory_order_relaxed),
          machine.int8 && allow_int8.load(std::memory_order_relaxed)};
}

void SetDotsForTest(NativeDots allowed) {
  allow_bf16 = allowed.bf16;
  allow_int8 = allowed.int8;
}

}  // namespace linattn
