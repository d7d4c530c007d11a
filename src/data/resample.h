#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace linattn {

// Changes the sample rate of a stream, by a Kaiser-windowed sinc (beta 8: images and aliases 80 dB
// down) with its cutoff at 0.9 of the lower rate's half, in polyphase form. N samples in give
// ceil(N to / from) out, whatever the pieces they come in. Ours, not a library's, because its
// memory is a short list of floats, which can be saved.
class Resampler {
 public:
  Resampler(int64_t from, int64_t to);  // Hz

  void Push(std::span<const float> samples, std::vector<float>& out);  // appends
  void Finish(std::vector<float>& out);  // as if silence followed; then it is new again
  void Reset();

  // All that a continuation needs; Restore throws Error if it is not of the same rates.
  std::vector<float> Save() const;
  void Restore(std::span<const float> state);

 private:
  int64_t up_ = 1, down_ = 1;  // output n stands at input n down_ / up_
  int64_t taps_ = 0;           // of a phase, even
  std::vector<float> filter_;  // [up_, taps_]
  std::vector<float> buffer_;  // from the first input on that an output still needs
  int64_t first_ = 0;          // in the buffer: first of the next output's inputs
  int64_t phase_ = 0;          // of the next output, < up_
};

}  // namespace linattn
