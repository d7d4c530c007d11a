#pragma once

#include <atomic>
#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace linattn {

// Where the threads of one team meet many times a step. They spin, for a meeting takes under a
// tenth of a microsecond when all are running. Where cores are taken by others they sleep: who has
// slept is let in at once when the last one comes, while a thread that spun or yielded has used up
// its turn and waits for those of the others (milliseconds each).
class SpinBarrier {
 public:
  // Before the team starts, by one thread.
  void Reset() { arrived_.store(0, std::memory_order_relaxed); }

  // Returns when `team` threads have called it as often as this one; at most 2^31 calls in all.
  void Wait(int64_t team) {
    const int64_t mine = arrived_.fetch_add(1, std::memory_order_acq_rel) + 1;
    const int64_t all = (mine + team - 1) / team * team;
    if (mine == all) return arrived_.notify_all();  // one load if nobody sleeps
    const int patience = patience_.load(std::memory_order_relaxed);
    for (int spin = 0; spin < patience; ++spin) {
      if (arrived_.load(std::memory_order_acquire) >= all) return More(patience);
      Pause();
    }
    patience_.store(kLeastSpins, std::memory_order_relaxed);
    for (int now; (now = arrived_.load(std::memory_order_acquire)) < all;)
      arrived_.wait(now, std::memory_order_acquire);
  }

 private:
  static constexpr int kLeastSpins = 1 << 6, kMostSpins = 1 << 12;  // about 1 and 50 us

  void More(int patience) {
    if (patience < kMostSpins) patience_.store(2 * patience, std::memory_order_relaxed);
  }

  static void Pause() {
#if defined(__x86_64__)
    _mm_pause();
#endif
  }

  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<int> patience_{kMostSpins};  // how long to spin before sleep
};

}  // namespace linattn
