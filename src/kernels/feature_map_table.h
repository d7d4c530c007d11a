#pragma once

#include <span>

#include "kernels/feature_map.h"

// The registered feature maps, by source file; kernels/feature_map.cc joins them.
namespace linattn {

// A map made of plain functions: SIMD code for float rows, the definition for one row in double.
struct RowFunctions {
  std::string_view name;
  int64_t (*features)(int64_t K);
  void (*forward)(const float* x, int64_t rows, int64_t K, float* y);
  void (*backward)(const float* x, const float* y, const float* d_y, int64_t rows, int64_t K,
                   float* d_x);
  void (*forward_row)(const double* x, int64_t K, double* y);
  void (*backward_row)(const double* x, const double* y, const double* d_y, int64_t K, double* d_x);
};

class RowMap final : public FeatureMap {
 public:
  explicit RowMap(const RowFunctions& functions) : f_(functions) {}
  std::string_view name() const override { return f_.name; }
  int64_t Features(int64_t K) const override { return f_.features(K); }
  void Forward(const float* x, int64_t rows, int64_t K, float* y) const override {
    f_.forward(x, rows, K, y);
  }
  void Forward(const double* x, int64_t rows, int64_t K, double* y) const override {
    for (int64_t i = 0, F = Features(K); i < rows; ++i) f_.forward_row(x + i * K, K, y + i * F);
  }
  void Backward(const float* x, const float* y, const float* d_y, int64_t rows, int64_t K,
                float* d_x) const override {
    f_.backward(x, y, d_y, rows, K, d_x);
  }
  void Backward(const double* x, const double* y, const double* d_y, int64_t rows, int64_t K,
                double* d_x) const override {
    for (int64_t i = 0, F = Features(K); i < rows; ++i)
      f_.backward_row(x + i * K, y + i * F, d_y + i * F, K, d_x + i * K);
  }

 private:
  RowFunctions f_;
};

std::span<const FeatureMap* const> ElementwiseMaps();  // elementwise_map.cc
std::span<const FeatureMap* const> NormalisedMaps();   // normalised_map.cc
std::span<const FeatureMap* const> ProductMaps();      // product_map.cc

}  // namespace linattn
