#pragma once

#include <complex>
#include <cstdint>
#include <span>
#include <vector>

namespace linattn {

// Log-mel energies of a stream of samples: Hann windows of 25 ms every 10 ms, power spectrum of the
// next power of two, triangles evenly spaced in mel (1127 ln(1 + f / 700)) from 20 Hz to half the
// rate, natural logarithm, floor 1e-6 (16-bit rounding noise). Frame t covers samples [t hop, t hop
// + window), so a file and a stream give the same frames, bit for bit, and N samples give Frames(N)
// of them; samples at the end that fill no window are not seen.
class LogMel {
 public:
  LogMel(int64_t rate, int64_t features);

  int64_t window() const { return window_; }  // samples
  int64_t hop() const { return hop_; }
  int64_t Frames(int64_t samples) const {
    return samples < window_ ? 0 : 1 + (samples - window_) / hop_;
  }

  void Push(std::span<const float> samples, std::vector<float>& frames);  // appends [n,features]
  void Reset() { pending_.clear(); }

  std::vector<float> Save() const { return pending_; }
  void Restore(std::span<const float> state);  // throws Error if it is none of this rate

 private:
  struct Triangle {
    int64_t first = 0;           // bin
    std::vector<float> weights;  // of the bins from there on
  };
  void Frame(const float* samples, std::vector<float>& frames);
  void MakeTriangles(int64_t rate, int64_t features);

  int64_t window_, hop_, size_;             // size_: of the transform
  std::vector<float> hann_;                 // [window_]
  std::vector<std::complex<float>> roots_;  // [size_/2] exp(-2 pi i k / size_)
  std::vector<std::complex<float>> work_;   // [size_]
  std::vector<float> power_;                // [size_/2 + 1]
  std::vector<Triangle> triangles_;         // [features]
  std::vector<float> pending_;              // samples from the next frame's first on
};

}  // namespace linattn
