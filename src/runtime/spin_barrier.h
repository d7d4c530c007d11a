#pragma once

#include <atomic>
#include <cstdint>
#include <thread>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace linattn {

// Where the threads of one team meet many times a step. They spin, for a meeting takes under a
// tenth of a microsecond when all are running; after a while they yield, so that a machine with
// fewer free cores than threads goes on.
class SpinBarrier {
 public:
  // Before the team starts, by one thread.
  void Reset() { arrived_.store(0, std::memory_order_relaxed); }

  // Returns when `team` threads have called it as often as this one.
  void Wait(int64_t team) {
    const int64_t mine = arrived_.fetch_add(1, std::memory_order_acq_rel) + 1;
    const int64_t all = (mine + team - 1) / team * team;
    constexpr int kSpins = 1 << 12;  // about 50 us
    for (int spin = 0; arrived_.load(std::memory_order_acquire) < all; ++spin)
      spin < kSpins ? Pause() : std::this_thread::yield();
  }

 private:
  static void Pause() {
#if defined(__x86_64__)
    _mm_pause();
#endif
  }

  alignas(64) std::atomic<int64_t> arrived_{0};
};

}  // namespace linattn
