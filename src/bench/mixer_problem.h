#pragma once

#include <hwy/aligned_allocator.h>

#include <cstdint>
#include <vector>

#include "kernels/mixer.h"
#include "runtime/float_buffer.h"

namespace linattn::bench {

enum class Pass { kForward, kBackward, kStep };

// B sequences of T tokens, H heads. For steps: B sequences that hold T tokens each.
struct Shape {
  int64_t B = 1, T = 8192, H = 8, K = 64, V = 64;
};

// A problem of random numbers with its results' memory, in float for what is timed, in double for
// references. Gates and keys are as layers give them.
template <class R>
class MixerProblem {
 public:
  MixerProblem(const Mixer& mixer, const Shape& shape);
  MixerProblem(const MixerProblem&) = delete;
  MixerProblem& operator=(const MixerProblem&) = delete;

  void AddGradients();  // grad and its memory; d_o is random

  Shape shape;
  MixerInputs in;
  MixerOutputs out;
  MixerGradients grad;
  // [B,T,H,channels] each; empty if the mixer has none
  std::vector<R> q, k, v, g, beta, o, norm, d_o, d_q, d_k, d_v, d_g, d_beta;

 private:
  void Allocate(const Mixer& mixer);  // [B,T,H] if not keep_axis
  Array Make(std::vector<R>& memory, int64_t channels, bool keep_axis = true);
};

// Bytes of all those vectors.
int64_t BytesOf(const MixerProblem<float>& problem);

// Scratch as forward and backward want it.
class Scratch {
 public:
  Scratch(const Mixer& mixer, const MixerInputs& in);
  void* get() const { return memory_.get(); }
  int64_t bytes() const { return bytes_; }

 private:
  int64_t bytes_;
  hwy::AlignedFreeUniquePtr<uint8_t[]> memory_;
};

// What a step is timed on: B copies of the state after the problem's tokens of sequence 0.
class StepProblem {
 public:
  static constexpr int64_t kRoom = 4096;  // steps before the states must start again

  StepProblem(const Mixer& mixer, const Shape& shape);
  StepProblem(const StepProblem&) = delete;
  StepProblem& operator=(const StepProblem&) = delete;

  bool full() const { return lengths_[0] >= capacity_; }
  void Restart();  // every sequence holds T tokens again
  void Step();
  int64_t tokens() const { return T_; }
  int64_t capacity() const { return capacity_; }
  const std::vector<float>& start() const { return start_; }  // a sequence's state, see Mixer
  int64_t state_bytes() const { return static_cast<int64_t>(start_.size() * sizeof(float)); }

  MixerProblem<float> token;  // T = 1: what is read, and o

 private:
  const Mixer& mixer_;
  int64_t T_, capacity_;
  std::vector<float> start_;
  int64_t stride_;      // of memory_: whole cache lines
  FloatBuffer memory_;  // [B,stride], as sessions keep it
  std::vector<float*> blocks_;
  std::vector<int64_t> lengths_;
  StepInputs in_;
};

// Throws Error unless `pass` of the mixer is right on `problem`, whose results it overwrites: head
// 0 of sequence 0 against the float64 reference, on as many tokens from the beginning as the
// reference can do in about a second (later ones cannot change what these give: d_o is zero behind
// them). Returns that number.
int64_t CheckRight(const Mixer& mixer, Pass pass, MixerProblem<float>& problem);
// The same for a step, after at most 256 tokens.
int64_t CheckStepRight(const Mixer& mixer, const Shape& shape);

// Useful operations of a pass, as docs/performance.md counts them: backward 2.5 times forward.
double FlopsOf(const Mixer& mixer, Pass pass, const Shape& shape);

}  // namespace linattn::bench
