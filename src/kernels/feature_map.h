#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace linattn {

// phi, applied to the rows of q and k before they meet. Rows are contiguous: x [rows,K] -> y
// [rows,F]. The float overloads are the fast path, the double ones the definition that references
// use. Implementations are immutable and called from many threads at once; the float ones never
// allocate.
class FeatureMap {
 public:
  virtual ~FeatureMap() = default;
  virtual std::string_view name() const = 0;
  virtual int64_t Features(int64_t K) const { return K; }  // F
  // The map of k where this is the one of q: itself, unless queries and keys are treated unlike.
  virtual const FeatureMap& OfKeys() const { return *this; }

  virtual void Forward(const float* x, int64_t rows, int64_t K, float* y) const = 0;
  virtual void Forward(const double* x, int64_t rows, int64_t K, double* y) const = 0;
  // d_x = J(x)^T d_y, overwriting d_x. y is Forward's result for x. Nothing may overlap, except
  // that d_x may be d_y for elementwise maps, l2 and exp.
  virtual void Backward(const float* x, const float* y, const float* d_y, int64_t rows, int64_t K,
                        float* d_x) const = 0;
  virtual void Backward(const double* x, const double* y, const double* d_y, int64_t rows,
                        int64_t K, double* d_x) const = 0;
};

// The registered maps, for one row x [K]. Where F is not stated it is K; "positive" ones may be
// normalised.
//
//   elu1          elu(x) + 1; positive. Katharopoulos et al. 2020, "Transformers are RNNs"
//   relu          max(x, 0); positive
//   squared_relu  max(x, 0)^2; positive
//   identity      x
//   l2            x / sqrt(sum x^2 + 1e-6); a row of zeros stays zero. The delta rule's keys (Yang
//                 et al. 2024, "Parallelizing Linear Transformers with the Delta Rule")
//   exp           softmax over the row's features; positive. Kernels normalised by the sum of
//                 their features: Schlag et al. 2021
//   dpfp, dpfp2, dpfp3, dpfp4
//                 deterministic parameter-free projection, nu = 1 to 4: with r = max([x,-x], 0)
//                 of 2K, feature (i,j) = r_j r_{(j-i) mod 2K} for i = 1..nu; F = 2K nu; positive.
//                 Schlag, Irie and Schmidhuber 2021, "Linear Transformers Are Secretly Fast Weight
//                 Programmers", eq. 37
//   taylor2       1, x, and the products x_i x_j, i <= j, weighted so that phi(q).phi(k) = 1 + a +
//                 a^2/2 with a = q.k K^-1/2; F = 1 + K + K(K+1)/2; the sum, not each feature, is
//                 positive. Arora et al. 2024, "Simple linear attention language models" (Based)
//   hadamard      x_i x_{F+i}, F = K/2 rounded up (a last number without a partner stays as it is):
//                 behind a learned matrix, the elementwise product of two projections; of either
//                 sign
//   hedgehog      [softmax(x), softmax(-x)] over the features; F = 2K; positive. The row-wise part
//                 of Zhang et al. 2024, "The Hedgehog & the Porcupine"; the learned matrix of each
//                 head stands before it, in the layer
//   favor         positive random features of a fixed projection, see favor_map.h; its OfKeys()
//                 differs from it
//
// NaN stays NaN. Products (squared_relu, dpfp, hadamard, taylor2) overflow float beyond |x| = 1e19,
// favor beyond 1e36; the others take every finite float.
//
// Throws Error naming the known ones.
const FeatureMap& FeatureMapByName(std::string_view name);
std::span<const FeatureMap* const> AllFeatureMaps();
std::string FeatureMapNames();  // "elu1, relu, ..." for messages and --help

// The user's own elementwise map: f(x) and f'(x). Keeps a reference to `name`'s characters.
class ElementwiseMap : public FeatureMap {
 public:
  using Scalar = double (*)(double x);
  ElementwiseMap(std::string_view name, Scalar f, Scalar derivative)
      : name_(name), f_(f), derivative_(derivative) {}
  std::string_view name() const override { return name_; }
  void Forward(const float* x, int64_t rows, int64_t K, float* y) const override;
  void Forward(const double* x, int64_t rows, int64_t K, double* y) const override;
  void Backward(const float* x, const float* y, const float* d_y, int64_t rows, int64_t K,
                float* d_x) const override;
  void Backward(const double* x, const double* y, const double* d_y, int64_t rows, int64_t K,
                double* d_x) const override;

 private:
  std::string_view name_;
  Scalar f_, derivative_;
};

}  // namespace linattn
