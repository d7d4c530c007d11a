#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "kernels/mixer.h"

// Problems for tests of mixers, made in float64, and the memory that they are run in: any float
// type, between guard words.
namespace linattn::mixer_testing {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

struct Tensor {
  std::vector<int64_t> shape;
  std::vector<double> values;

  explicit Tensor(std::vector<int64_t> sizes = {}, double value = kNaN) : shape(std::move(sizes)) {
    int64_t n = shape.empty() ? 0 : 1;
    for (int64_t size : shape) n *= size;
    values.assign(n, value);
  }
  bool present() const { return !shape.empty(); }
};

// A Tensor's copy in memory of its own, contiguous, in any float dtype, with guard words around it.
class Buffer {
 public:
  Buffer(const Tensor& tensor, DType dtype) : dtype_(dtype), shape_(tensor.shape) {
    const int64_t n = static_cast<int64_t>(tensor.values.size());
    bytes_.assign(n * SizeOf(dtype) + 2 * kGuard, kGuardByte);
    for (int64_t i = 0; i < n; ++i) Set(i, tensor.values[i]);
  }
  Array view() {
    Array a;
    a.data = bytes_.data() + kGuard;
    a.dtype = dtype_;
    a.rank = static_cast<int>(shape_.size());
    for (int64_t i = a.rank - 1, stride = 1; i >= 0; stride *= shape_[i--]) {
      a.shape[i] = shape_[i];
      a.stride[i] = stride;
    }
    return a;
  }
  // The contents; fails the test if something was written outside.
  Tensor Read() const {
    Tensor tensor(shape_);
    for (size_t i = 0; i < tensor.values.size(); ++i) tensor.values[i] = Get(i);
    for (int64_t i = 0; i < kGuard; ++i) {
      EXPECT_EQ(bytes_[i], kGuardByte) << "wrote " << kGuard - i << " bytes before the array";
      EXPECT_EQ(bytes_[bytes_.size() - kGuard + i], kGuardByte) << "wrote behind the array";
    }
    return tensor;
  }

 private:
  static constexpr int64_t kGuard = 64;
  static constexpr uint8_t kGuardByte = 0xA5;
  template <class T>
  T* At(int64_t i) {
    return reinterpret_cast<T*>(bytes_.data() + kGuard) + i;
  }
  void Set(int64_t i, double x) {
    const float f = static_cast<float>(x);
    if (dtype_ == DType::kF64) *At<double>(i) = x;
    if (dtype_ == DType::kF32) *At<float>(i) = f;
    if (dtype_ == DType::kBF16) *At<BF16>(i) = ToBF16(f);
    if (dtype_ == DType::kF16) *At<F16>(i) = ToF16(f);
  }
  double Get(int64_t i) const {
    Buffer& self = const_cast<Buffer&>(*this);
    if (dtype_ == DType::kF64) return *self.At<double>(i);
    if (dtype_ == DType::kF32) return *self.At<float>(i);
    return dtype_ == DType::kBF16 ? ToFloat(*self.At<BF16>(i)) : ToFloat(*self.At<F16>(i));
  }

  DType dtype_;
  std::vector<int64_t> shape_;
  std::vector<uint8_t> bytes_;
};

// Sizes of a problem. `heads` is the smaller number of heads, `group` how many of the others share
// one.
struct Spec {
  int64_t B = 2, T = 37, S = -1, heads = 2, group = 1, K = 8, V = 6;  // S < 0: self-attention
  bool causal = true;
  bool states = false;  // S0, z0 and gradients into ST, zT (state mixers)
  bool exact = false;   // inputs that BF16 and F16 hold exactly
  unsigned seed = 1;
  const FeatureMap* feature_map = nullptr;  // null: the mixer's default (state mixers)
  std::vector<int64_t> lengths = {}, k_lengths = {}, mask = {}, boundaries = {}, k_boundaries = {};
};

struct Problem {
  Spec spec;
  MixerOptions options = {};
  int64_t N = 0, H = 0, HV = 0, HO = 0, F = 0;
  std::map<std::string, Tensor> inputs = {};      // q k v g beta S0 z0
  std::map<std::string, Tensor> cotangents = {};  // d_o d_ST d_zT
};

using Results = std::map<std::string, Tensor>;  // o norm ST zT, d_q d_k d_v d_g d_beta d_S0 d_z0

inline Tensor Normal(std::vector<int64_t> shape, std::mt19937& random) {
  Tensor x(std::move(shape));
  std::normal_distribution<double> normal;
  for (double& value : x.values) value = normal(random);
  return x;
}

// Rows of norm 1, as the delta rule wants its keys: longer ones make the state grow without bound.
inline void NormaliseRows(Tensor& x) {
  const int64_t K = x.shape.back();
  for (size_t row = 0; row < x.values.size(); row += K) {
    double sum = 0;
    for (int64_t i = 0; i < K; ++i) sum += x.values[row + i] * x.values[row + i];
    for (int64_t i = 0; i < K; ++i) x.values[row + i] /= std::sqrt(sum);
  }
}

// To what float holds, or all short floats.
inline void Round(Tensor& x, bool exact) {
  for (double& value : x.values) {
    const double unit = std::abs(value) < 1 ? 0x1p-8 : 0x1p-5;
    value = exact ? std::round(value / unit) * unit : static_cast<float>(value);
  }
}

inline Problem MakeProblem(const Mixer& mixer, const Spec& s) {
  Problem p{.spec = s};
  const bool state = mixer.family == Family::kState;
  const int64_t S = s.S < 0 ? s.T : s.S, many = s.heads * s.group;
  p.options.causal = s.causal;
  p.options.cross = s.S >= 0;
  p.N = s.boundaries.empty() ? s.B : static_cast<int64_t>(s.boundaries.size()) - 1;
  p.H = state ? s.heads : many;
  p.HV = state ? many : s.heads;
  p.HO = many;
  p.options.feature_map = s.feature_map;
  p.F = s.K;
  if (state)
    p.F = (s.feature_map ? *s.feature_map : FeatureMapByName(mixer.feature_map)).Features(s.K);
  std::mt19937 random(s.seed);
  const auto make = [&](std::vector<int64_t> shape) { return Normal(shape, random); };
  p.inputs["q"] = make({s.B, s.T, p.H, s.K});
  p.inputs["k"] = make({s.B, S, s.heads, s.K});
  p.inputs["v"] = make({s.B, S, p.HV, s.V});
  if (mixer.decay == Decay::kScalar) p.inputs["g"] = make({s.B, s.T, p.HV});
  if (mixer.decay == Decay::kPerChannel) p.inputs["g"] = make({s.B, s.T, p.HV, s.K});
  for (double& g : p.inputs["g"].values) g = -std::abs(g) / 4 - 0x1p-8;
  if (mixer.write == Write::kDelta) p.inputs["beta"] = make({s.B, s.T, p.HV});
  for (double& beta : p.inputs["beta"].values) beta = std::min(1.0, std::abs(beta));
  if (mixer.write == Write::kDelta) NormaliseRows(p.inputs["k"]);
  p.cotangents["d_o"] = make({s.B, s.T, p.HO, s.V});
  if (s.states && state) {
    p.inputs["S0"] = make({p.N, p.HV, p.F, s.V});
    p.cotangents["d_ST"] = make({p.N, p.HV, p.F, s.V});
  }
  if (s.states && state && mixer.normalised) {
    p.inputs["z0"] = make({p.N, p.HV, p.F});
    for (double& z : p.inputs["z0"].values) z = std::abs(z);  // a sum of features
    p.cotangents["d_zT"] = make({p.N, p.HV, p.F});
  }
  for (auto* tensors : {&p.inputs, &p.cotangents})
    for (auto& [name, x] : *tensors) Round(x, s.exact);
  return p;
}

}  // namespace linattn::mixer_testing
