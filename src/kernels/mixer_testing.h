#pragma once

#include <gtest/gtest.h>
#include <hwy/aligned_allocator.h>
#include <hwy/targets.h>
#include <omp.h>

#include <cstring>
#include <memory>
#include <string>

#include "base/error.h"
#include "base/error_testing.h"
#include "kernels/mixer_problem_testing.h"
#include "kernels/simd_testing.h"

// Runs the problems of tests of mixers through the reference functions in float64 and through the
// fast ones in another dtype, in buffers and scratch that start as NaN and end in guard words.
namespace linattn::mixer_testing {
// Threads as given until it goes.
class Threads {
 public:
  explicit Threads(int threads) : before_(omp_get_max_threads()) { omp_set_num_threads(threads); }
  ~Threads() { omp_set_num_threads(before_); }
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

 private:
  int before_;
};

// Arrays of one call, in memory of their own.
class Call {
 public:
  MixerInputs in;
  MixerOutputs out;
  MixerGradients grad;

  Call(const Mixer& mixer, const Problem& p, DType dtype, DType output) : p_(p) {
    const DType state = dtype == DType::kF64 ? DType::kF64 : DType::kF32;
    const auto given = [&](const std::map<std::string, Tensor>& from, const char* name, DType as) {
      const auto it = from.find(name);
      return it == from.end() || !it->second.present() ? Array() : Own(name, it->second, as);
    };
    in.options = p.options;
    in.q = given(p.inputs, "q", dtype), in.k = given(p.inputs, "k", dtype);
    in.v = given(p.inputs, "v", dtype), in.g = given(p.inputs, "g", dtype);
    in.beta = given(p.inputs, "beta", dtype);
    in.S0 = given(p.inputs, "S0", state), in.z0 = given(p.inputs, "z0", state);
    SetSegments();
    grad.d_o = given(p.cotangents, "d_o", dtype);
    grad.d_ST = given(p.cotangents, "d_ST", state), grad.d_zT = given(p.cotangents, "d_zT", state);
    const Spec& s = p.spec;
    out.o = Result("o", {s.B, s.T, p.HO, s.V}, output);
    const bool keeps_state = mixer.family == Family::kState;
    if (!keeps_state || mixer.normalised) out.norm = Result("norm", {s.B, s.T, p.HO}, state);
    if (keeps_state) out.ST = Result("ST", {p.N, p.HV, p.F, s.V}, state);
    if (keeps_state && mixer.normalised) out.zT = Result("zT", {p.N, p.HV, p.F}, state);
    const auto gradient = [&](const char* name, const Array& input, DType as) {
      if (!input.present()) return Array();
      std::vector<int64_t> shape(input.shape.begin(), input.shape.begin() + input.rank);
      return Result(name, shape, as);
    };
    grad.d_q = gradient("d_q", in.q, output), grad.d_k = gradient("d_k", in.k, output);
    grad.d_v = gradient("d_v", in.v, output), grad.d_g = gradient("d_g", in.g, output);
    grad.d_beta = gradient("d_beta", in.beta, output);
    grad.d_S0 = gradient("d_S0", in.S0, state), grad.d_z0 = gradient("d_z0", in.z0, state);
  }

  Tensor Input(const std::string& name) const { return buffers_.at(name)->Read(); }

  Results Read(bool backward) const {
    Results results;
    for (const std::string& name : results_)
      if (backward || name[1] != '_') results[name] = buffers_.at(name)->Read();
    return results;
  }

 private:
  Array Own(const std::string& name, const Tensor& tensor, DType dtype) {
    buffers_[name] = std::make_unique<Buffer>(tensor, dtype);
    return buffers_[name]->view();
  }
  Array Result(const std::string& name, std::vector<int64_t> shape, DType dtype) {
    results_.push_back(name);
    return Own(name, Tensor(std::move(shape)), dtype);
  }
  void SetSegments() {
    Segments& to = in.segments;
    const auto list = [](const std::vector<int64_t>& x) {
      return x.empty() ? Array() : MakeArray(x.data(), {static_cast<int64_t>(x.size())});
    };
    to.lengths = list(p_.spec.lengths), to.k_lengths = list(p_.spec.k_lengths);
    to.boundaries = list(p_.spec.boundaries), to.k_boundaries = list(p_.spec.k_boundaries);
    mask_.assign(p_.spec.mask.begin(), p_.spec.mask.end());
    if (!mask_.empty()) to.mask = MakeArray(mask_.data(), {p_.spec.B, p_.spec.T});
  }

  const Problem p_;
  std::vector<uint8_t> mask_;
  std::map<std::string, std::unique_ptr<Buffer>> buffers_;
  std::vector<std::string> results_;
};

inline Results Reference(const Mixer& mixer, const Problem& p, bool backward = false) {
  Call call(mixer, p, DType::kF64, DType::kF64);
  mixer.forward_ref(call.in, call.out);
  if (backward) mixer.backward_ref(call.in, call.out, call.grad);
  return call.Read(backward);
}

// Scratch that starts as NaN and ends in guard bytes.
class Scratch {
 public:
  Scratch(const Mixer& mixer, const MixerInputs& in)
      : bytes_(mixer.scratch_bytes(CheckInputs(mixer, in), omp_get_max_threads())),
        block_(hwy::AllocateAligned<uint8_t>(bytes_ + kGuard)) {
    std::memset(block_.get(), 0xFF, bytes_ + kGuard);  // every float a NaN
  }
  ~Scratch() {
    for (int64_t i = bytes_; i < bytes_ + kGuard; ++i)
      EXPECT_EQ(block_[i], 0xFF) << "wrote behind the scratch";
  }
  void* get() const { return block_.get(); }

 private:
  static constexpr int64_t kGuard = 64;
  int64_t bytes_;
  hwy::AlignedFreeUniquePtr<uint8_t[]> block_;
};

inline Results Fast(const Mixer& mixer, const Problem& p, bool backward = false,
                    DType dtype = DType::kF32, DType output = DType::kF32) {
  Call call(mixer, p, dtype, output);
  mixer.forward(call.in, call.out, Scratch(mixer, call.in).get());
  if (backward) mixer.backward(call.in, call.out, call.grad, Scratch(mixer, call.in).get());
  return call.Read(backward);
}

// The state blocks that a problem's B sequences start from.
class States {
 public:
  States(const Mixer& mixer, const Problem& p, int64_t capacity) : capacity_(capacity) {
    const MixerDims dims{.H = p.H, .HV = p.HV, .K = p.spec.K, .F = p.F, .V = p.spec.V, .N = p.N};
    blocks_.assign(p.spec.B,
                   std::vector<float>(mixer.state_floats(dims, p.options, capacity), 0.0f));
    for (int64_t b = 0; b < p.spec.B; ++b) {
      int64_t at = 0;
      for (const char* name : {"S0", "z0"}) {
        const auto it = p.inputs.find(name);
        if (it == p.inputs.end()) continue;
        const int64_t n = static_cast<int64_t>(it->second.values.size()) / p.N;
        for (int64_t i = 0; i < n; ++i) blocks_[b][at++] = it->second.values[b * n + i];
      }
      pointers_.push_back(blocks_[b].data());
    }
  }
  int64_t capacity() const { return capacity_; }
  float* const* pointers() const { return pointers_.data(); }
  float* block(int64_t b) const { return pointers_[b]; }
  const std::vector<std::vector<float>>& blocks() const { return blocks_; }

 private:
  int64_t capacity_;
  std::vector<std::vector<float>> blocks_;
  std::vector<float*> pointers_;
};

// x[:, t] of x [B,T,heads,C].
inline Array TokenOf(const Array& x, int64_t t) {
  Array token = x;
  token.data = x.At<float>(0, t);
  token.rank = 3;
  token.shape = {x.shape[0], x.shape[2], x.shape[3], 0};
  token.stride = {x.stride[0], x.stride[2], x.stride[3], 0};
  return token;
}

// Tokens [begin, end) of every sequence by `step`, into call.out.o.
inline void StepTokens(const Mixer& mixer, const Call& call, const States& states, int64_t begin,
                       int64_t end) {
  for (int64_t t = begin; t < end; ++t) {
    const std::vector<int64_t> lengths(call.in.q.shape[0], t);
    StepInputs in;
    in.q = TokenOf(call.in.q, t), in.k = TokenOf(call.in.k, t), in.v = TokenOf(call.in.v, t);
    in.o = TokenOf(call.out.o, t);
    for (auto [token, x] : {std::pair{&in.g, &call.in.g}, {&in.beta, &call.in.beta}}) {
      if (!x->present()) continue;
      *token = TokenOf(*x, t);
      token->rank = x->rank - 1;
    }
    in.state = states.pointers();
    in.length = lengths.data();
    in.capacity = states.capacity();
    in.options = call.in.options;
    mixer.step(in);
  }
}

// x[b:b+1, begin:end] of x [B,T,...].
inline Array Slice(const Array& x, int64_t b, int64_t begin, int64_t end) {
  if (!x.present()) return x;
  Array slice = x;
  slice.data = x.At<float>(b, begin);
  slice.shape[0] = 1;
  slice.shape[1] = end - begin;
  return slice;
}

// The same by `prefill`, sequence by sequence.
inline void PrefillTokens(const Mixer& mixer, const Call& call, const States& states, int64_t begin,
                          int64_t end) {
  for (int64_t b = 0; b < call.in.q.shape[0]; ++b) {
    MixerInputs in;
    in.options = call.in.options;
    in.q = Slice(call.in.q, b, begin, end), in.k = Slice(call.in.k, b, begin, end);
    in.v = Slice(call.in.v, b, begin, end), in.g = Slice(call.in.g, b, begin, end);
    in.beta = Slice(call.in.beta, b, begin, end);
    mixer.prefill(in, Slice(call.out.o, b, begin, end), states.block(b), begin, states.capacity());
  }
}

// max|x - ref| / max|ref|, infinities compared by value. floor: the least size to measure against,
// for results whose terms cancel.
inline double RelativeError(const Tensor& x, const Tensor& ref, double floor = 0) {
  double error = 0, size = floor;
  for (size_t i = 0; i < ref.values.size(); ++i) {
    if (x.values[i] == ref.values[i]) continue;
    const double e = std::abs(x.values[i] - ref.values[i]);
    error = std::isfinite(e) ? std::max(error, e) : std::numeric_limits<double>::infinity();
  }
  for (double r : ref.values)
    if (std::isfinite(r)) size = std::max(size, std::abs(r));
  return error == 0 ? 0 : size == 0 ? error : error / size;
}

inline void ExpectClose(const Mixer& mixer, const Results& x, const Results& ref,
                        double floor = 0) {
  for (const auto& [name, expected] : ref) {
    const double bound = name[1] == '_' ? mixer.tolerance.backward : mixer.tolerance.forward;
    EXPECT_LE(RelativeError(x.at(name), expected, floor), bound) << name;
  }
}

}  // namespace linattn::mixer_testing
