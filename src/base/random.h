#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <numbers>

namespace linattn {

// Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"): a keyed
// bijection of a 128-bit counter.
inline std::array<uint32_t, 4> Philox(std::array<uint32_t, 4> counter,
                                      std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53} * counter[0];
    const uint64_t p1 = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(p1 >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(p1),
               static_cast<uint32_t>(p0 >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(p0)};
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return counter;
}

// A stream of random numbers that is a pure function of (seed, stream, position): streams are
// independent, so one a sequence, worker or purpose makes results independent of batch and thread
// count. To save a generator, keep stream() and position() beside the seed; Seek restores it.
class Random {
 public:
  explicit Random(uint64_t seed, uint64_t stream = 0) : seed_(seed), stream_(stream) {}

  uint64_t seed() const { return seed_; }
  uint64_t stream() const { return stream_; }
  uint64_t position() const { return position_; }  // 32-bit words drawn so far
  void Seek(uint64_t position) {
    position_ = position;
    if (position % 4 != 0) Fill();
  }

  uint32_t NextU32() {
    if (position_ % 4 == 0) Fill();
    return block_[position_++ % 4];
  }
  uint64_t NextU64() {
    const uint64_t high = NextU32();
    return high << 32 | NextU32();
  }

  // Uniform on [0,1), 53 bits; draws two words.
  double Uniform() { return static_cast<double>(NextU64() >> 11) * 0x1p-53; }

  // Uniform on {0, ..., n-1}, n >= 1, without bias.
  uint64_t Below(uint64_t n) {
    const uint64_t too_low = (0 - n) % n;  // 2^64 mod n
    uint64_t x = NextU64();
    while (x < too_low) x = NextU64();
    return x % n;
  }

  // Standard normal (Box-Muller); draws four words and keeps nothing, so that position() is the
  // whole state.
  double Normal() {
    const double u = 1.0 - Uniform();  // (0,1]
    const double angle = 2 * std::numbers::pi * Uniform();
    return std::sqrt(-2 * std::log(u)) * std::cos(angle);
  }

 private:
  static uint32_t Low(uint64_t x) { return static_cast<uint32_t>(x); }
  static uint32_t High(uint64_t x) { return static_cast<uint32_t>(x >> 32); }
  void Fill() {
    const uint64_t block = position_ / 4;
    block_ =
        Philox({Low(block), High(block), Low(stream_), High(stream_)}, {Low(seed_), High(seed_)});
  }

  uint64_t seed_, stream_, position_ = 0;
  std::array<uint32_t, 4> block_{};
};

}  // namespace linattn
