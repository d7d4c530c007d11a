#pragma once

#include <cstdint>
#include <string_view>

namespace linattn {

// phi, applied to the rows of q and k before they meet. Rows are contiguous: x [rows,K] -> y [rows,F].
// The float overloads are the fast path, the double ones the definition that references use.
// Implementations are immutable and called from many threads at once.
class FeatureMap {
 public:
  virtual ~FeatureMap() = default;
  virtual std::string_view name() const = 0;
  virtual int64_t Features(int64_t K) const { return K; }  // F

  virtual void Forward(const float* x, int64_t rows, int64_t K, float* y) const = 0;
  virtual void Forward(const double* x, int64_t rows, int64_t K, double* y) const = 0;
  // d_x = J(x)^T d_y, overwriting d_x. y is Forward's result for x; d_x may be d_y when F = K.
  virtual void Backward(const float* x, const float* y, const float* d_y, int64_t rows, int64_t K,
                        float* d_x) const = 0;
  virtual void Backward(const double* x, const double* y, const double* d_y, int64_t rows, int64_t K,
                        double* d_x) const = 0;
};

// "elu1" (elu(x)+1, the paper's), "relu", "squared_relu", "identity". Throws Error naming the known ones.
const FeatureMap& FeatureMapByName(std::string_view name);

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
